from .screen import text_of
from .verdict import Verdict, verify

__all__ = [
    "Verdict",
    "text_of",
    "verify",
]

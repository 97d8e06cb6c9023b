from .place import Place
from .run import Runner
from .settings import load
from .text import show

__all__ = [
    "Place",
    "Runner",
    "load",
    "show",
]

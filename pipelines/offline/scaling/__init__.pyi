from .family import INTERACTIONS, members
from .picture import in_words
from .report import sizes
from .run import fit

__all__ = [
    "INTERACTIONS",
    "fit",
    "in_words",
    "members",
    "sizes",
]

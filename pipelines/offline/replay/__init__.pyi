from .place import Place
from .run import Runner
from .settings import Spec, load, load_run
from .sizes import text_of_sizes
from .text import show

__all__ = [
    "Place",
    "Runner",
    "Spec",
    "load",
    "load_run",
    "show",
    "text_of_sizes",
]

from .run import Runner
from .settings import Spec, load, load_run
from .sizes import text_of_sizes
from .text import show
from .workspace import Workspace

__all__ = [
    "Runner",
    "Spec",
    "Workspace",
    "load",
    "load_run",
    "show",
    "text_of_sizes",
]

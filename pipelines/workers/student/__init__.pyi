from .export import Exports
from .warm import start_warm
from .worker import StudentWorker

__all__ = [
    "Exports",
    "StudentWorker",
    "start_warm",
]

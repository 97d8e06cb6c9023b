from .worker import StudentWorker

__all__ = [
    "StudentWorker",
]

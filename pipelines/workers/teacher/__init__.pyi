from .worker import TeacherWorker

__all__ = [
    "TeacherWorker",
]

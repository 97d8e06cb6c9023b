from .batches import cuts, portion_of
from .worker import TeacherWorker, snapshot_name

__all__ = [
    "TeacherWorker",
    "cuts",
    "portion_of",
    "snapshot_name",
]

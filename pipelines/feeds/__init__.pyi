from .cuts import StudentCuts, block_cuts
from .student import Cut, RowSource, StudentFeed
from .table import TableSource
from .teacher import Portion, Step, TeacherFeed, portion_of

__all__ = [
    "Cut",
    "Portion",
    "RowSource",
    "Step",
    "StudentCuts",
    "StudentFeed",
    "TableSource",
    "TeacherFeed",
    "block_cuts",
    "portion_of",
]

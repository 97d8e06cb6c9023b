from .cuts import StudentCuts, block_cuts
from .student import Cut, Rows, StudentFeed
from .table import TableSource
from .teacher import Portion, Step, TeacherFeed, portion_of

__all__ = [
    "Cut",
    "Portion",
    "Rows",
    "Step",
    "StudentCuts",
    "StudentFeed",
    "TableSource",
    "TeacherFeed",
    "block_cuts",
    "portion_of",
]

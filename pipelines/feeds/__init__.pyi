from .commons import Commons
from .cuts import StudentCuts, block_cuts
from .growth import Growth, batch_growth, block_growth
from .own_rows import OwnRows
from .student import Cut, RowSource, StudentFeed
from .table import Places, Sliced, TableSource, taken
from .teacher import Portion, Step, TeacherFeed, portion_of

__all__ = [
    "Commons",
    "Cut",
    "Growth",
    "OwnRows",
    "Places",
    "Portion",
    "RowSource",
    "Sliced",
    "Step",
    "StudentCuts",
    "StudentFeed",
    "TableSource",
    "TeacherFeed",
    "batch_growth",
    "block_cuts",
    "block_growth",
    "portion_of",
    "taken",
]

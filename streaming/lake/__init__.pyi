from .compaction import Merge
from .housekeeping import Done, Housekeeper, compact, floor, pinned_ranges, retain
from .reader import LakeReader
from .readers import Readers
from .settings import LakeSettings
from .side_tables import DEAD_LETTERS, LATE_FEEDBACK, SideTable
from .source import LakeSource
from .writer import Lake, LakeWriter

__all__ = [
    "DEAD_LETTERS",
    "LATE_FEEDBACK",
    "Done",
    "Housekeeper",
    "Lake",
    "LakeReader",
    "LakeSettings",
    "LakeSource",
    "LakeWriter",
    "Merge",
    "Readers",
    "SideTable",
    "compact",
    "floor",
    "pinned_ranges",
    "retain",
]

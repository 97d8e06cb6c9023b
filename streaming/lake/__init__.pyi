from .compaction import FileMerge
from .housekeeping import Housekeeper, Housework, compact_table, expire_rows, lay_out, pinned_ranges, retention_floor
from .reader import LakeReader
from .readers import Readers
from .settings import LakeSettings
from .side_tables import DEAD_LETTERS, LATE_FEEDBACK, SideTable, side_rows
from .source import LakeSource
from .times import first_row_at, length_ms, newest_time_ms
from .where import Where
from .writer import LakeTable, LakeWriter

__all__ = [
    "DEAD_LETTERS",
    "LATE_FEEDBACK",
    "FileMerge",
    "Housekeeper",
    "Housework",
    "LakeReader",
    "LakeSettings",
    "LakeSource",
    "LakeTable",
    "LakeWriter",
    "Readers",
    "SideTable",
    "Where",
    "compact_table",
    "expire_rows",
    "first_row_at",
    "lay_out",
    "length_ms",
    "newest_time_ms",
    "pinned_ranges",
    "retention_floor",
    "side_rows",
]

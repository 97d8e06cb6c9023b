from .chunk import Chunk, HeldRows, PlayedStream
from .in_order import InOrder
from .label_column import FeedbackFile, LabelColumn
from .pacer import Pacer
from .recorded import RecordedConfig, RecordedStream, reading_of, reading_of_feedback
from .settled import settled_rows
from .timed_parquet import TimedParquet

__all__ = [
    "Chunk",
    "FeedbackFile",
    "HeldRows",
    "InOrder",
    "LabelColumn",
    "Pacer",
    "PlayedStream",
    "RecordedConfig",
    "RecordedStream",
    "TimedParquet",
    "reading_of",
    "reading_of_feedback",
    "settled_rows",
]

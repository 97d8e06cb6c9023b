from .chunk import Chunk, HeldRows, PlayedStream
from .in_order import InOrder
from .pacer import Pacer
from .recorded import FeedbackFile, RecordedConfig, RecordedStream
from .settled import settled_rows

__all__ = [
    "Chunk",
    "FeedbackFile",
    "HeldRows",
    "InOrder",
    "Pacer",
    "PlayedStream",
    "RecordedConfig",
    "RecordedStream",
    "settled_rows",
]

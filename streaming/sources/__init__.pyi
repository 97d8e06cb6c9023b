from .chunk import Chunk, Held, PlayedStream
from .in_order import InOrder
from .pacer import Pacer
from .recorded import FeedbackFile, RecordedConfig, RecordedStream
from .settled import settled_rows

__all__ = [
    "Chunk",
    "FeedbackFile",
    "Held",
    "InOrder",
    "Pacer",
    "PlayedStream",
    "RecordedConfig",
    "RecordedStream",
    "settled_rows",
]

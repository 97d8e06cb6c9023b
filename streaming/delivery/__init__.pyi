from .header import partition_of
from .outbox import CommitRecord, Outbox
from .publisher import ExamplesPublisher
from .reader import Block, BlockPosition, ExamplesReader, check_whole

__all__ = [
    "Block",
    "BlockPosition",
    "CommitRecord",
    "ExamplesPublisher",
    "ExamplesReader",
    "Outbox",
    "check_whole",
    "partition_of",
]

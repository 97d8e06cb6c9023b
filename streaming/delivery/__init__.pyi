from .examples import Block, BlockPosition, ExamplesPublisher, ExamplesReader, check_whole, partition_of
from .outbox import CommitRecord, Outbox

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

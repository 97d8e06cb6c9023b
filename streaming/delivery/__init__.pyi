from .header import partition_of
from .mending import mend
from .outbox import CommitRecord, Outbox
from .publisher import ExamplesPublisher
from .reader import Block, BlockPosition, ExamplesReader, check_whole
from .replay import Letters, Place, Record, places_of
from .trimming import ExamplesTrimmer

__all__ = [
    "Block",
    "BlockPosition",
    "CommitRecord",
    "ExamplesPublisher",
    "ExamplesReader",
    "ExamplesTrimmer",
    "Letters",
    "Outbox",
    "Place",
    "Record",
    "check_whole",
    "mend",
    "partition_of",
    "places_of",
]

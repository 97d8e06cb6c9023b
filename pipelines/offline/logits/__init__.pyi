from .faults import chosen, learned_labels
from .kept import Snapshot, drop_snapshots, keep, kept_snapshots, snapshots_of
from .starts import Starts, keep_start, known_upto, learned_upto, start_of
from .stored import rescored
from .stream import LogitsOf, Stream, logged_logits, stored_logits
from .teachers import blocks_of, lockstep_logits, versions_of

__all__ = [
    "LogitsOf",
    "Snapshot",
    "Starts",
    "Stream",
    "blocks_of",
    "chosen",
    "drop_snapshots",
    "keep",
    "keep_start",
    "kept_snapshots",
    "known_upto",
    "learned_labels",
    "learned_upto",
    "lockstep_logits",
    "logged_logits",
    "rescored",
    "snapshots_of",
    "start_of",
    "stored_logits",
    "versions_of",
]

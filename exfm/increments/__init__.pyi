from .chain import Chain, ChainWriter, Head
from .follower import Follower, Value
from .increment import Full, Increment, Probe, probe_of, take_full, take_up
from .stored import read_increment, write_increment

__all__ = [
    "Chain",
    "ChainWriter",
    "Follower",
    "Full",
    "Head",
    "Increment",
    "Probe",
    "Value",
    "probe_of",
    "read_increment",
    "take_full",
    "take_up",
    "write_increment",
]

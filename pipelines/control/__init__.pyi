from .conclusion import tracker_of
from .lifecycle import CAUGHT_UP, failed_before_learning, run, start_over
from .preflight import locked, writable
from .reconciler import with_roster
from .signals import stopping
from .wanted import Wanted, wanted_of

__all__ = [
    "CAUGHT_UP",
    "Wanted",
    "failed_before_learning",
    "locked",
    "run",
    "start_over",
    "stopping",
    "tracker_of",
    "wanted_of",
    "with_roster",
    "writable",
]

"""Classification of causes of death by the exception raised."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from exfm.errors import ConfigError, Diverged, Unusable
from pipelines.live.rules.restarts import Cause
from streaming.errors import BadInput, BrokerAway, DataLost, DiskFull, RankLost, StillHeld
from streaming.process_limit import met_limit

FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = ("No space left on device", "disk is full", "Disk quota exceeded")
"""What libraries written in Rust and C say, whose errors carry no number: Delta Lake, SQLite."""

READ_ONLY_WORDS = "Read-only file system"


class Died(Exception):
    """A worker has died, or cannot continue."""

    def __init__(self, reason: str, cause: Cause = Cause.CRASH) -> None:
        super().__init__(reason, cause)  # both, so that it survives the way from one process to another
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[0])

    @staticmethod
    def of(error: Exception) -> Died:
        if is_read_only(error):
            return Died(
                f"the file system has become read-only ({error}): nothing can be written, and what was committed is "
                "kept. Check the disk and mount it writable again",
                Cause.PERMANENT,
            )
        limit = "" if (met := met_limit(error)) is None else f"; {met}"
        kind = Orphaned if any(isinstance(each, RankLost) for each in _chain(error)) else Died
        return kind(f"{type(error).__name__}: {error}{limit}", cause_of(error))


class Gone(Died):
    """The worker's process has ended or is unreachable."""


class Orphaned(Died):
    """A rank has ended because another one of its worker was lost."""


def cause_of(error: BaseException) -> Cause:
    """The first specific cause, from the outermost error inwards.

    >>> cause_of(BrokerAway("no broker answers")), cause_of(ZeroDivisionError())
    (<Cause.BROKER_AWAY: 'broker away'>, <Cause.CRASH: 'crash'>)
    """
    for each in _chain(error):
        if isinstance(each, DiskFull) or _is_full(each):
            return Cause.DISK_FULL
        if isinstance(each, BrokerAway):
            return Cause.BROKER_AWAY
        if isinstance(each, StillHeld):
            return Cause.STILL_HELD
        if isinstance(each, BadInput | ConfigError):
            return Cause.MISTAKE
        if isinstance(each, DataLost | Diverged | Unusable) or is_read_only(each):
            return Cause.PERMANENT
    return Cause.CRASH


def is_read_only(error: BaseException) -> bool:
    """True for an error of a read-only file system, as the kernel makes one whose disk fails.

    >>> is_read_only(OSError(30, "Read-only file system")), is_read_only(OSError(28, "No space left on device"))
    (True, False)
    """
    return any(getattr(each, "errno", None) == errno.EROFS or READ_ONLY_WORDS in str(each) for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on, as Python itself would show them."""
    visited: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in visited:
        visited.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return any(words in str(error) for words in FULL_WORDS)

"""Why something died, whichever library said it and however deep."""

from __future__ import annotations

import errno
import pickle

import pytest

from exfm.errors import ConfigError, Diverged, ModelError, OtherFormat
from pipelines.live.rules.causes import Died, cause_of
from pipelines.live.rules.restarts import Cause
from streaming.errors import BadInput, BrokerAway, DataLost, DiskFull, StillHeld, StreamingError


def raised(outer: BaseException, *, from_: BaseException | None = None, during: BaseException | None = None):
    """`outer` as it is after `raise outer from from_`, or raised while `during` was handled."""
    try:
        if during is None:
            raise outer from from_
        try:
            raise during
        except BaseException:
            raise outer  # noqa: B904
    except BaseException as error:
        return error


class DeltaError(Exception):
    """As the lake's library has it: no number, no OSError."""


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ZeroDivisionError("x"), Cause.CRASH),
        (StreamingError("x"), Cause.CRASH),
        (ModelError("x"), Cause.CRASH),
        (MemoryError(), Cause.CRASH),
        (OSError(errno.EIO, "I/O error"), Cause.CRASH),
        (BrokerAway("x"), Cause.BROKER_AWAY),
        (raised(StreamingError("publishing failed"), from_=BrokerAway("x")), Cause.BROKER_AWAY),
        (raised(StreamingError("closing failed"), during=BrokerAway("x")), Cause.BROKER_AWAY),
        (StillHeld("x"), Cause.STILL_HELD),
        (DiskFull("x"), Cause.DISK_FULL),
        (OSError(errno.ENOSPC, "No space left on device"), Cause.DISK_FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), Cause.DISK_FULL),
        (raised(ModelError("checkpoint"), from_=OSError(errno.ENOSPC, "")), Cause.DISK_FULL),
        (raised(RuntimeError("a"), from_=raised(ValueError("b"), from_=OSError(errno.ENOSPC, ""))), Cause.DISK_FULL),
        (DeltaError("Unable to copy data to file: No space left on device (os error 28)"), Cause.DISK_FULL),
        (RuntimeError("database or disk is full"), Cause.DISK_FULL),
        (BadInput("x"), Cause.MISTAKE),
        (ConfigError("x"), Cause.MISTAKE),
        (DataLost("retention has deleted all before 7"), Cause.PERMANENT),
        (Diverged("16 batches in a row"), Cause.PERMANENT),
        (OtherFormat("format 3"), Cause.PERMANENT),
        (raised(BadInput("cannot write"), from_=BrokerAway("x")), Cause.MISTAKE),  # the outermost knows best
    ],
)
def test_cause(error, cause):
    assert cause_of(error) is cause


def test_what_python_would_not_show_is_no_cause():
    error = raised(StreamingError("x"), during=BrokerAway("handled, and over"))
    error.__suppress_context__ = True  # `from None`
    assert cause_of(error) is Cause.CRASH


def test_errors_that_go_in_circles_end():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert cause_of(one) is Cause.CRASH


def test_a_death_keeps_words_and_cause_on_its_way_between_processes():
    died = pickle.loads(pickle.dumps(Died.of(BrokerAway("nobody answers at 127.0.0.1:9092"))))
    assert (str(died), died.cause) == ("BrokerAway: nobody answers at 127.0.0.1:9092", Cause.BROKER_AWAY)

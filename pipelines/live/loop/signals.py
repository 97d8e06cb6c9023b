"""Signals (Ctrl-C and SIGTERM) over the life of a run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptible() -> Iterator[None]:
    """Context in which SIGTERM interrupts like Ctrl-C, even before and after the coordinator's loop."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed_cleanup() -> Iterator[None]:
    """Ignore further signals after an interrupt, which would otherwise leave Ray or the broker behind."""
    try:
        yield
    except KeyboardInterrupt:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise


@contextmanager
def stopping(stop: Callable[[str], None], stop_asked: Callable[[], bool]) -> Iterator[None]:
    """Context in which a signal calls `stop` with a reason. One that comes when stopping was asked for already
    raises KeyboardInterrupt: the run then ends at once. Later ones are ignored, so that they do not break that off."""
    at_once = False

    def asked(number: int, frame: object) -> None:
        nonlocal at_once
        if at_once:
            return
        if stop_asked():
            at_once = True
            raise KeyboardInterrupt
        stop("interrupted" if number == signal.SIGINT else "asked to stop")

    before = {number: signal.signal(number, asked) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Makes a failing history smaller: what is left out as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from tests.simulation.history import LARGE, Event, Full, History, Kill, Run, Settings, Stop, Write

MOST_TRIES = 600
PLAIN = Settings()


def shrunk(history: History, fails: Callable[[History], bool], tries: int = MOST_TRIES) -> History:
    """The smallest history found for which `fails` holds, within so many tries. The same every time.

    >>> from tests.simulation.drawing import draw
    >>> shrunk(draw(1), lambda history: history.rows >= 2).rows
    2
    """
    left = tries
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in islice(_smaller(history), left):
            left -= 1
            if fails(candidate):
                history, smaller = candidate, True
                break
    return history


def _smaller(history: History) -> Iterator[History]:
    """Simpler ones, the boldest first."""
    events = history.events
    size = len(events) // 2
    while size:
        for start in range(0, len(events), size):
            yield history.with_events(events[:start] + events[start + size :])
        size //= 2
    for at, event in enumerate(events):
        for simpler in _simpler(event):
            yield history.with_events((*events[:at], simpler, *events[at + 1 :]))
    for name in _plainer(history):
        yield replace(history, settings=replace(history.settings, **{name: getattr(PLAIN, name)}))
    if history.settings.segment_rows != LARGE:
        yield replace(history, settings=replace(history.settings, segment_rows=LARGE))


def _plainer(history: History) -> Iterator[str]:
    """Settings that can be as they are by default, for these events."""
    whole = any(len(m.rows) != 1 for e in history.events if isinstance(e, Write) for m in e.messages)
    needed = {"tasks": True, "horizon": True, "pace": True, "codecs": whole}
    needed["partitions"] = any(getattr(event, "partition", 0) for event in history.events)
    for name, value in vars(PLAIN).items():
        if not needed.get(name) and getattr(history.settings, name) != value:
            yield name


def _simpler(event: Event) -> Iterator[Event]:
    match event:
        case Write(messages=messages) if len(messages) > 1:
            yield from (replace(event, messages=messages[:n] + messages[n + 1 :]) for n in range(len(messages)))
        case Write(messages=(message,)) if len(message.rows) > 1:
            for n in range(len(message.rows)):
                rows = message.rows[:n] + message.rows[n + 1 :]
                yield replace(event, messages=(replace(message, rows=rows),))
        case Write(transaction=int()):
            yield replace(event, transaction=None)
        case Run(steps=steps) if steps > 1:
            yield Run(1)
        case Kill(power=True):
            yield replace(event, power=False)
        case Stop(steps=steps) if steps > 1:
            yield replace(event, steps=1)
        case Full(times=times) if times > 1:
            yield replace(event, times=1)
        case _:
            return

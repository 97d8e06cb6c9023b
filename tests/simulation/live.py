"""Histories in free pace: a stream that lives, with partitions that fall silent and a broker that goes away.

Event times are the producers' clock, which is the world's. What comes out depends on when partitions were idle, so it
is not foreseen row by row: `promises.py` says what has to hold.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.simulation.history import (
    ADS,
    EVENTS,
    TASKS,
    At,
    Away,
    Event,
    Full,
    Kill,
    Message,
    Row,
    Settings,
    Stall,
    Stop,
    Unsure,
    Write,
)

BASE_MS = 1_000_000_000_000
"""The wall clock when a world begins, as its event times have it."""
SLOWER = 100
"""Windows are so much longer than in lockstep: clocks and polls count in hundredths of seconds."""
REMEMBERED_MS = 10_000_000
OUTAGE_MS = 4_000
STALLED_FETCHES = 40
"""They last longer than a partition takes to become idle."""


def live_settings(random: Random, settings: Settings) -> Settings:
    tasks = tuple((name, window * SLOWER, given) for name, window, given in random.choice(TASKS))
    return replace(
        settings,
        pace="free",
        tasks=tasks,
        horizon=REMEMBERED_MS,
        message_bytes=1 << 20,
        lateness=random.choice([0, 0, 200]),
        skew=random.choice([None, 5000]),
        idle_s=random.choice([0.3, 0.6, 1.0]),
        interval_s=random.choice([0.2, 1.0, 5.0]),
    )


def live_events(random: Random, settings: Settings) -> list[Event]:
    faults = random.choice([0.0, 0.1, 0.3])
    longest = max(window for _, window, _ in settings.tasks)
    windows = {name: window for name, window, _ in settings.tasks}
    at_ms, shown, events = 0, [], []
    quiet = random.random() < 0.5  # feedback has partitions of which some are nearly silent
    for _ in range(random.choice([8, 14, 24])):
        at_ms += random.choice([0, 10, 50, 100, 300, 700, longest // 2, longest + 100])
        events.append(At(at_ms / 1000))
        if not shown or random.random() < 0.5:
            again = bool(shown) and random.random() < 0.1
            row = (
                random.choice(shown) if again else Row(len(shown), BASE_MS + at_ms, random.choice(["feed", "shop"]), 5)
            )
            shown.append(row)
            topic, partition = ADS, random.randrange(settings.partitions)
        else:
            about, task = random.choice(shown[-4:]), random.choice(list(windows))
            sent = max(about.time, BASE_MS + at_ms - random.choice([0, 0, 10, 100]))
            row = Row(about.id, sent, task)
            topic, partition = EVENTS, 0 if quiet and random.random() < 0.8 else random.randrange(settings.partitions)
        if random.random() < 0.04:
            row = replace(row, fault="bad_event_time")
        events.append(Write(topic, partition, (Message((row,), BASE_MS + at_ms),)))
        if random.random() < 0.2:
            at_ms, burst = _brink(random, settings, shown, at_ms)
            events += burst
        if random.random() < faults:
            events.append(_fault(random, settings))
    return [*events, At((at_ms + random.choice([0, 500, 3000])) / 1000)]


def _brink(random: Random, settings: Settings, shown: list[Row], at_ms: int) -> tuple[int, list[Event]]:
    """Feedback at the very end of its window, and rows that close the window right behind it (two: the last of a
    partition waits), all still unread, or held back by producers that find no broker, or the feedback alone by a
    partition that gives nothing."""
    about = random.choice(shown[-2:])
    name, window, _ = random.choice(settings.tasks)
    end_ms = about.time - BASE_MS + window
    if end_ms < at_ms:
        return at_ms, []
    last = Row(about.id, BASE_MS + end_ms, name)
    at_ms = end_ms + settings.lateness + random.choice([1, 20, 60])
    closing = [Row(len(shown) + more, BASE_MS + at_ms + more, "feed", 5) for more in range(2)]
    shown += closing
    clicks, ads = (random.randrange(settings.partitions) for _ in range(2))
    held = random.random()
    outage = [At((end_ms - OUTAGE_MS // 8) / 1000), Away(OUTAGE_MS / 1000)] if held < 0.4 else []
    stall = [Stall(EVENTS, clicks, STALLED_FETCHES)] if held > 0.7 else []
    return at_ms + 1, [
        *outage,
        At(end_ms / 1000),
        *stall,
        Write(EVENTS, clicks, (Message((last,), BASE_MS + end_ms),)),
        Write(ADS, ads, tuple(Message((row,), row.time) for row in closing)),
    ]


def _fault(random: Random, settings: Settings) -> Event:
    after = random.choice([random.randint(1, 30), random.randint(1, 150)])
    topic, partition = random.choice([ADS, EVENTS]), random.randrange(settings.partitions)
    return random.choice(
        [
            Kill(after, power=random.random() < 0.3),
            Stop(after, random.choice([3, 10])),
            Away(random.choice([0.5, 4.0, 12.0])),
            Away(random.choice([4.0, 6.0]), after),
            Stall(topic, partition, random.choice([2, 10, 30])),
            Full(after, 1),
            Unsure(),
        ]
    )

"""A stream is played at full speed, at so many rows a second, or so many times as fast as it happened."""

from __future__ import annotations

import pytest

from streaming.errors import BadInput
from streaming.sources.pacer import Pacer


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_at_full_speed_nothing_waits() -> None:
    pacer = Pacer("full", Clock())
    assert pacer.wait_s(10**9, 10**15) == 0
    assert pacer.seconds_of(10**9) == 0


def test_rows_per_second_count_from_where_the_sender_stands() -> None:
    clock = Clock()
    pacer = Pacer("100", clock)
    assert pacer.wait_s(5000, 0) == 0
    clock.now_s += 2
    assert pacer.wait_s(5300, 0) == pytest.approx(1.0)
    clock.now_s += 100
    assert pacer.wait_s(5300, 0) == 0
    assert pacer.seconds_of(25) == 0.25


def test_times_event_time_follows_what_happened() -> None:
    clock = Clock()
    pacer = Pacer("60x", clock)
    assert pacer.wait_s(0, 1_000_000) == 0
    assert pacer.wait_s(9, 1_000_000 + 600_000) == pytest.approx(10.0)
    clock.now_s += 4
    assert pacer.wait_s(9, 1_000_000 + 600_000) == pytest.approx(6.0)


@pytest.mark.parametrize("rate", ["fast", "0", "-5", "x", "1e3"])
def test_another_rate_is_refused_with_those_there_are(rate: str) -> None:
    with pytest.raises(BadInput, match=r'is unknown; use "full", rows per second \("5000"\)'):
        Pacer(rate)

"""Windows that a model is judged on: what a window's share of positives is compared with."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.live.training.judged_windows import WINDOWS_BEFORE, JudgedWindows


def test_a_champion_has_an_ne_where_it_scored_every_row_and_is_no_twin():
    labels, z = np.array([1, 0, 1, 0]), np.array([1.0, -1.0, 0.5, 0.0])
    windows = JudgedWindows(rows=4)
    windows.add({"student": z}, labels, np.ones(4))
    windows.add({"student": z, "champion": z}, labels, np.ones(4))
    both = windows.last()
    assert both.ne["champion"] == both.ne["student"]
    assert both.calibration["champion"] == both.calibration["student"]
    assert both.gain is None
    for half in (slice(0, 2), slice(2, 4)):  # a trial that ends within a window
        more = {"champion": z[half]} if half.start == 0 else {}
        windows.add({"student": z[half]} | more, labels[half], np.ones(2))
    part = windows.last()
    assert part.number == 3
    assert (part.ne["champion"], part.calibration["champion"]) == (None, None)
    assert part.ne["student"] == pytest.approx(both.ne["student"])


def test_the_share_before_is_of_a_bounded_number_of_windows():
    windows, rates = JudgedWindows(rows=4), []
    shares = [1.0] * 30 + [0.0] * 21 + [0.5]
    for share in shares:
        labels = np.repeat([1, 0], [round(4 * share), round(4 * (1 - share))])
        windows.add({"student": np.zeros(4)}, labels, np.ones(4))
        rates.append(windows.last().rate_before)
    assert rates[0] is None
    assert rates[1:31] == [1.0] * 30  # the window itself is not one before
    assert rates[31 : 31 + WINDOWS_BEFORE] == [n / WINDOWS_BEFORE for n in reversed(range(WINDOWS_BEFORE))]
    assert rates[-1] == 0.0

"""Windows that a model is judged on: what a window's share of positives is compared with."""

from __future__ import annotations

import numpy as np

from pipelines.live.training.judged_windows import WINDOWS_BEFORE, JudgedWindows


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

"""Promotion as a table: what was seen of a candidate, and what becomes of it."""

from __future__ import annotations

import math

import pytest

from exfm.metrics.sequential import Evidence
from pipelines.live.rules.promoting import Keep, Promote, Refuse, Standards, TaskSeen, promotion

STANDARDS = Standards(level=0.05, calibration=(0.8, 1.25), min_positives=100, trial_rows=10_000, trial_days=3.0)


def seen(better=1.0, worse=1.0, *, positives=500, calibration=1.0, raw=0.01, not_finite=0) -> TaskSeen:
    found = (0.01, 0.005, 0.015) if better >= worse else (-0.01, -0.015, -0.005)
    evidence = Evidence(math.log(better), math.log(worse), *found, raw, 5000, 70, 0.1, 3, 0.0, 0)
    return TaskSeen(evidence, positives, calibration, not_finite)


@pytest.mark.parametrize(
    ("tasks", "expected", "words"),
    [
        ({"ctr": seen(better=20.1)}, Promote, "better on ctr: log-loss lower by 0.01 [0.005, 0.015]"),
        ({"ctr": seen(better=19.9)}, Keep, "e-value 19.9 of 20"),
        ({"ctr": seen(worse=20.1)}, Refuse, "worse on ctr: log-loss higher by 0.01 [0.005, 0.015] per row"),
        ({"ctr": seen(better=30), "cvr": seen()}, Keep, "e-value 15.5 of 20"),  # the mean over tasks
        ({"ctr": seen(better=40), "cvr": seen()}, Promote, "better on ctr"),
        ({"ctr": seen(better=1e9), "cvr": seen(worse=39)}, Promote, "better on ctr"),
        ({"ctr": seen(better=1e9), "cvr": seen(worse=41)}, Refuse, "worse on cvr"),
        ({"ctr": seen(better=50, calibration=1.26)}, Keep, "calibration on ctr is 1.260, outside 0.8 to 1.25"),
        ({"ctr": seen(better=50, calibration=0.79)}, Keep, "outside"),
        ({"ctr": seen(better=50, calibration=None)}, Keep, "unknown"),
        ({"ctr": seen(better=50, positives=99)}, Keep, "99 positives of ctr, 100 are asked for"),
        ({"ctr": seen(better=90), "cvr": seen(positives=9, calibration=7.0)}, Promote, "better on ctr"),
        ({"ctr": seen(better=90), "cvr": seen(calibration=7.0)}, Keep, "calibration on cvr is 7.000"),
        ({"ctr": seen(better=50, raw=-0.001)}, Keep, "not without clipping: 3 blocks"),
        ({"ctr": seen(better=50, not_finite=1)}, Refuse, "1 rows of ctr got a logit that is not finite"),
    ],
)
def test_what_was_seen_decides(tasks, expected, words):
    decision = promotion(tasks, STANDARDS, rows=5000, days=1.0)
    assert type(decision) is expected
    assert words in decision.reason


@pytest.mark.parametrize(("rows", "days", "expected"), [(9_999, 2.9, Keep), (10_000, 1.0, Refuse), (10, 3.0, Refuse)])
def test_patience_ends_by_rows_or_by_days(rows, days, expected):
    decision = promotion({"ctr": seen(better=3)}, STANDARDS, rows=rows, days=days)
    assert type(decision) is expected
    assert "e-value 3 of 20" in decision.reason


def test_patience_ends_too_for_a_candidate_that_is_better_and_out_of_its_bounds():
    decision = promotion({"ctr": seen(better=99, calibration=2.0)}, STANDARDS, rows=10_000)
    assert type(decision) is Refuse
    assert "calibration" in decision.reason


def test_a_candidate_that_is_better_at_the_very_end_is_promoted():
    assert type(promotion({"ctr": seen(better=99)}, STANDARDS, rows=10_000, days=9.0)) is Promote


def test_evidence_beyond_every_number_is_no_overflow():
    huge = TaskSeen(Evidence(5e4, -3.0, 0.01, 0.005, 0.015, 0.01, 9, 9, 0.1, 0, 0.0, 0), 500, 1.0)
    assert "over a million" in promotion({"ctr": huge}, STANDARDS, rows=1).reason

"""Predictions of a retraining compared with those that a student logged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pipelines.lab.verify.bits import ComparedLog, LoggedPredictions
from pipelines.live.training.predictions import PredictionLog


def rows(first, last, champion=None, shift=0.0):
    seq = np.arange(first, last + 1)
    found = {"lake_seq": seq, "impression_id": seq, "student_ctr": seq.astype(np.float32) + np.float32(shift)}
    if champion is not None:
        found["champion_ctr"] = np.full(len(seq), champion, np.float32)
    return pa.record_batch(found)


@pytest.fixture
def logged(tmp_path):
    """Three parts; people made another version the champion before the last."""
    log = PredictionLog(tmp_path / "feed")
    log.open(-1)
    for part in (rows(0, 9), rows(10, 19, champion=1.0), rows(20, 29, champion=2.0)):
        log.write([part])
    return tmp_path / "feed"


@pytest.mark.parametrize(("before", "compared"), [(None, 30), (25, 25)])
def test_a_champion_of_people_is_no_difference(logged, before, compared):
    log = ComparedLog(LoggedPredictions(logged), before, batch_rows=4)
    for part in (rows(0, 9, champion=1.0), rows(10, 19), rows(20, 29, champion=3.0)):
        log.write([part])
    assert log.mismatch is None
    assert log.compared == compared


def test_another_prediction_is(logged):
    log = ComparedLog(LoggedPredictions(logged))
    for part in (rows(0, 9), rows(10, 19, champion=1.0, shift=1.0)):
        log.write([part])
    assert log.mismatch is not None
    assert (log.mismatch.lake_seq, log.mismatch.rows) == (10, 10)
    assert list(log.mismatch.columns) == ["student_ctr"]

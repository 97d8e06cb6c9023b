"""What a row counts reaches the live figures: of a student, and of the teacher, whose rows go through its ranks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.metrics.classification import metrics_of
from exfm.models.engine import STUDENT
from exfm.step import StepResult
from pipelines.live.feeds.teacher import Step, share_of
from pipelines.live.training.account import Account
from pipelines.live.training.live_metrics import TaskMetrics
from pipelines.live.workers.ranks import Ranks, Rendezvous
from pipelines.live.workers.teacher.block import BlockTally
from streaming.delivery.reader import Block

ROWS = 64


@pytest.fixture
def step():
    """A batch with weights, and what a model said of it."""
    rng = np.random.default_rng(0)
    rows = pa.table(
        {
            "lake_seq": np.arange(ROWS),
            "impression_id": np.arange(ROWS),
            "event_time_ms": np.arange(ROWS),
            "ad": np.arange(ROWS) % 9,
            "sample_weight": rng.integers(0, 3, ROWS).astype(np.float32),
            "label_ctr": pa.array(rng.integers(0, 2, ROWS), pa.int8(), mask=rng.random(ROWS) < 0.3),
        }
    )
    batch = BatchBuilder(FeatureSet(sparse=[SparseFeature(name="ad", rows=9)]), ["ctr"])(rows)
    return rows, batch, StepResult(rng.normal(size=(ROWS, 1)).astype(np.float32), 0.0, np.array([1]), True)


def expected(step) -> dict[str, float | None]:
    _, batch, result = step
    known = batch.label_mask[:, 0].numpy()
    columns = (result.logits[:, 0], batch.labels[:, 0].numpy(), batch.weights.numpy())
    figures = metrics_of(*(column[known] for column in columns))
    return {"ne_ctr": figures.ne, "auc_ctr": figures.auc, "calibration_ctr": figures.calibration}


def test_of_a_student(step):
    figures = TaskMetrics(["ctr"])
    figures.judge(step[1], {STUDENT: step[2]})
    assert figures.values() == pytest.approx(expected(step), abs=1e-4)


def test_of_the_teacher(step):
    rows, batch, result = step
    tally, account = BlockTally(["ctr"], Ranks(Rendezvous())), Account(["teacher"], ["ctr"], most_in_a_row=1)
    share = share_of(Block(0, 0, ROWS - 1, rows, {}), 1, range(1))
    tally.note(Step(share, 0, rows, batch), result, account, place=0, rows=ROWS)
    tally.finish(account)
    assert tally.figures.values() == pytest.approx(expected(step), abs=1e-4)
    assert (account.rows, account.learned.rows["ctr"]) == (ROWS, rows["label_ctr"].drop_null().length())

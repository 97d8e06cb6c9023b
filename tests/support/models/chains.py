"""A student that learns and publishes increments, step by step, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from exfm.distillation.arm import Arm
from exfm.features.batch import Batch, BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.representation import packed, written
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.changes import Touched, changes_of
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.snapshots.increments.chain import ChainWriter
from exfm.snapshots.increments.increment import probe_of, take_full

import numpy as np  # isort: skip

TASKS = ("ctr", "cvr")
FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="user", rows=40, transform="index"),
        SparseFeature(name="ad", rows=30_000),
        SparseFeature(name="user_x_ad", columns=["user", "ad"], rows=500),
    ],
    dense=[
        DenseFeature(name="bid"),
        DenseFeature(name="price", transform="log1p", statistics="online"),
        DenseFeature(name="depth", column="price", transform="quantiles", buckets=3),
    ],
    sequence=[SequenceFeature(name="seen", rows=60, length=4)],
    history=[
        HistoryFeature(name="user_ctr", by="user", of="label_ctr"),
        HistoryFeature(name="ad_cvr", by="ad", of="label_cvr", half_life_rows=50),
        HistoryFeature(name="ad_logit", by="ad", of="teacher_logit_ctr"),
        HistoryFeature(
            name="pair", by="user_x_ad", of="label_ctr", half_life_s=60, inputs=("positives", "average", "rows")
        ),
        HistoryFeature(name="lately", by="ad", of="teacher_embedding", width=4, pool="attention", last=3),
    ],
)


class Publishing:
    """The student, its chain and what is needed to go on."""

    def __init__(self, root: Path, seed: int = 5, **changes: Any) -> None:
        cfg = StudentConfig(trunk=TrunkConfig(mlp=(8,)), width=4, arm=Arm(kind="auxiliary_head"), **changes)
        self.student = Student(cfg, FEATURES, TASKS, seed)
        self.touched, self.chain = Touched(self.student.features), ChainWriter(root)
        self._build, self._rng = BatchBuilder(FEATURES, TASKS, embedding=True), np.random.default_rng(seed)
        self.batch: Batch | None = None
        self._now = 10**12

    def rows(self, count: int = 48) -> Batch:
        rng = self._rng
        columns: dict[str, Any] = {name: rng.integers(0, 40, count) for name in ("user", "ad")}
        columns["seen"] = [rng.integers(0, 99, rng.integers(0, 5)).tolist() for _ in range(count)]
        columns["bid"] = rng.random(count).astype(np.float32)
        columns["price"] = pa.array(rng.integers(0, 1000, count), mask=rng.random(count) < 0.1)
        self._now += count * 1000
        columns["event_time_ms"] = self._now + rng.integers(-9000, 9000, count)
        for task in TASKS:
            columns[f"label_{task}"] = rng.integers(0, 2, count).astype(np.int8)
            columns[f"teacher_logit_{task}"] = rng.normal(size=count).astype(np.float32)
        columns["teacher_embedding"] = written(packed(rng.normal(size=(count, 4))), rng.random(count) < 0.9)
        columns["teacher_space"] = np.zeros(count, np.int32)
        return self._build(pa.table(columns))

    def learn(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.batch = self.rows()
            self.student.train_step(self.batch)
            self.touched.note(self.batch.sparse)

    def begin(self) -> str:
        self.learn()
        assert self.batch is not None
        full = take_full(self.student, self.touched, probe_of(self.student, self.batch))
        return self.chain.begin("v00000100", {}, full)

    def publish(self, *, full: bool = False, steps: int = 2) -> str:
        self.learn(steps)
        assert self.batch is not None
        probe = probe_of(self.student, self.batch)
        delta = changes_of(self.student, self.touched)
        also = take_full(self.student, self.touched, probe) if full else None
        return self.chain.add("v00000100", {"stepped_s": [1.0, 2.0]}, delta, probe, also)

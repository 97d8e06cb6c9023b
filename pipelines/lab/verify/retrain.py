"""Retraining of a student: its own worker over the run's lake, with output in memory.

    lake ──► feed ──► engine ──► record ──► compared predictions
                                    ╵──► tensors and counts at the checkpoint's position

Engine, feed, cuts, sampling and bookkeeping are those of the worker; only what it writes is kept in memory. Where the
student's tables grew during the run, the retraining stops there, and continues with the larger ones as the run did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.snapshots.checkpoint import Checkpoint
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.staging import Storable
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import BesideRun, RunDir
from pipelines.lab.verify.bits import ComparedLog
from pipelines.live.workers.checkpointer import Checkpointer, Resumable
from pipelines.live.workers.ranks import Ranks
from pipelines.live.workers.student.export import Exports
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.worker import Orders
from streaming.messages.source import EndOfStream


class Stage(NamedTuple):
    """A part of a student's training with one set of features and one number of ranks, up to this `lake_seq`."""

    features: FeatureSet
    upto: int
    ranks: int = 1


class Retrained(NamedTuple):
    """The state at the end, as a checkpoint holds it."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


def retrained(
    config: Config,
    name: str,
    run_dir: BesideRun,
    stages: Sequence[Stage],
    predictions: ComparedLog,
    advance: Callable[[int], None],
    withdrawals: int = 0,
) -> Retrained:
    """Train the student on its rows, up to the end of the last stage. `advance` is called with positions in the lake.
    `withdrawals`: how many of the lake it knew when it began.

    Raises DataLost where rows were deleted, ModelError as training does."""
    stored: Checkpoint[Any] | None = None
    for stage in stages:
        of_stage = with_features(config, stage.features)
        settings = of_stage.student(name).model_copy(update={"ranks": stage.ranks})
        worker = _RetrainingWorker(of_stage, settings, run_dir, stored, predictions, withdrawals)
        try:
            worker.learn_upto(stage.upto, advance)
            kept = worker.memory.kept
        finally:
            worker.abandon()
        stored = Checkpoint(kept.tensors, kept.meta, "student-checkpoint", None)
    assert stored is not None
    return Retrained(stored.tensors, stored.meta)


def stages_of(meta: Mapping[str, Any]) -> list[Stage]:
    """The stages of a student up to a checkpoint, from the checkpoint's meta.

    >>> features = {"features": {"sparse": [{"name": "ad", "rows": 9}]}}
    >>> past = {"grown": [], "learned_by": [{"after": -1}, {"after": 40, "ranks": 2}, {"after": 60, "ranks": 2}]}
    >>> stages = stages_of({"past": past, "lake_seq": 99, "made_with": features})
    >>> [(stage.upto, stage.ranks) for stage in stages]
    [(40, 1), (99, 2)]
    """
    grown, end = meta["past"]["grown"], meta["lake_seq"]
    made_with = [(event["after"], event["was"]) for event in grown] + [(end, meta["made_with"])]
    ranks = [(entry["after"], entry.get("ranks", 1)) for entry in meta["past"]["learned_by"]]
    changed = [after for (after, now), (_, before) in pairwise(reversed(ranks)) if now != before and after < end]
    stages = []
    for upto in sorted({*(last for last, _ in made_with), *changed}):
        made = next(made for last, made in made_with if last >= upto)
        of_ranks = next((count for after, count in reversed(ranks) if after < upto), 1)
        stages.append(Stage(FeatureSet.model_validate(made["features"]), upto, of_ranks))
    return stages


def with_features(config: Config, features: FeatureSet) -> Config:
    """The config with its features replaced by their versions in `features`."""
    sizes = {}
    for kind in type(features).model_fields:
        here = {feature.name: feature for feature in getattr(features, kind)}
        sizes[kind] = tuple(here.get(feature.name, feature) for feature in getattr(config.features, kind))
    return config.model_copy(update={"features": config.features.model_copy(update=sizes)})


class _InMemoryCheckpointer(Checkpointer):
    """Keeps the last checkpoint in memory, and writes nothing."""

    stored: Checkpoint[Any] | None
    kept: Retrained

    def open(
        self, engine: Resumable, older: Callable[[], Collection[str]], ranks: Ranks | None = None
    ) -> Checkpoint[Any] | None:
        return self.stored

    def commit(
        self,
        name: str,
        tensors: Mapping[str, Storable | ChangedRows],
        meta: Mapping[str, Any],
        *,
        kind: str,
        parent: str | None = None,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        before()
        self.kept = Retrained(dict(tensors), dict(meta))  # type: ignore[arg-type]  # whole tensors: one process
        after()

    def put(self, write: Callable[[], None], *, alone: bool = False) -> None:
        write()

    def check(self) -> None:
        pass

    def write_quarantine(self, state: Mapping[str, Any]) -> None:
        pass


class _NoExports(Exports):
    def __init__(self) -> None:
        self.alarm = None

    def of(self, batch: Batch, name: str, tensors: Mapping[str, Tensor]) -> Callable[[], None]:
        return lambda: None


class _RetrainingWorker(StudentWorker):
    def __init__(
        self,
        config: Config,
        settings: StudentSettings,
        run_dir: RunDir,
        stored: Checkpoint[Any] | None,
        predictions: ComparedLog,
        withdrawals: int,
    ) -> None:
        super().__init__(config, settings, run_dir, withdrawals=withdrawals)
        self.checkpointer = self.memory = _InMemoryCheckpointer(self.name, run_dir, self.watch, queue=1)
        self.memory.stored = stored
        self._compared = predictions

    def resume(self) -> None:
        super().resume()
        self.state.record.predictions, self._exports = self._compared, _NoExports()

    def _new_spans(self) -> None:
        """Make none: these blocks have theirs."""

    def learn_upto(self, position: int, advance: Callable[[int], None]) -> None:
        """Learn every row up to there; the last batch of a stream that ends there may be short."""
        self.orders = Orders(end_seq=position)
        self.open()
        assert self.feed is not None
        while True:
            try:
                batch = self.feed.read()
            except EndOfStream:
                break
            if batch is not None:
                self.learn(batch)
                advance(self.state.position)
        self._move_to(position)
        self.checkpoint()

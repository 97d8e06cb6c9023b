"""Scorers: a replica of the teacher in this process, or ranks that hold its tables together and score together.

    rank 0, augmentation                       the other ranks, scoring
    load   names the snapshot       ────────►  each reads its own windows of it from the disk
                                    ◄────────  and reports success or the error
    score  cuts the rows in shares  ──Arrow──► each builds a batch from its share
           looks up                 ◄───────►  all together: the one collective
           gathers                  ◄─logits─
    leave  at a round's end         ────────►  the round ends here too

Every rank gets a share of the rows, and with it of the hashing, the look-ups and the dense part; with all rows on rank
0 the others would only wait. Between messages no rank waits in a collective: augmentation may wait for Kafka, the
teacher or the disk as long as it must, and no time-out runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from exfm.errors import ModelError, OtherFormat
from exfm.features.batch import BatchBuilder
from exfm.models.growth.refit import MadeWith, stored_teacher, teacher_changes
from exfm.models.scorer import TeacherAnswer, TeacherScorer
from exfm.parallel.group import RankGroup
from exfm.snapshots.checkpoint import Checkpoint, open_checkpoint
from exfm.snapshots.windows import TensorSource
from pipelines.core.config.evolve import made_with_teacher
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.one_teacher import Lent, borrow, lend
from pipelines.live.workers.lines import Lines
from pipelines.live.workers.ranks import Ranks, Rendezvous
from pipelines.live.workers.rounds import FurtherRank, Lead
from streaming.store.working_copy import brought_up


class Scorer(Protocol):
    """Interface of scorers for augmentation and its snapshots. `rows` counts those that were scored in this process."""

    @property
    def rows(self) -> int: ...

    def load(self, snapshot: Path) -> Mapping[str, Any]:
        """Load a saved snapshot; returns its meta. Raises ModelError where it cannot be read: then nothing can be
        scored until another is loaded."""

    def score(self, rows: pa.RecordBatch, part_rows: int | None = None) -> TeacherAnswer | None:
        """Logits and representation of the rows, at most `part_rows` at once; None where the ranks that have the rows
        keep them."""

    def leave(self) -> None:
        """End the round, so that other ranks may report."""


class _Loaded:
    """The snapshot that a scorer has; another is loaded by the rows in which it differs, where that can be told."""

    def __init__(self) -> None:
        self._stored: Checkpoint[TensorSource] | None = None

    def become(self, snapshot: Path, scorer: TeacherScorer, now: MadeWith) -> Mapping[str, Any]:
        """Load a saved snapshot; returns its meta. Raises ModelError where it cannot be read: then nothing is
        loaded."""
        loaded, self._stored = self._stored, None
        stored = open_checkpoint(snapshot)
        changes = None if loaded is None else teacher_changes(loaded, stored, now)
        scorer.load(stored_teacher(stored, now), changes)
        self._stored = stored
        return stored.meta


class ReplicaScorer:
    """The whole teacher in this process."""

    def __init__(self, config: Config) -> None:
        self._build = BatchBuilder(config.teacher_features, config.tasks)
        self._made_with = made_with_teacher(config)
        self._scorer = TeacherScorer(config.teacher.model, config.teacher_features, config.tasks)
        self._loaded = _Loaded()
        self.borrowed = False
        """Another rank loads snapshots into the memory that this one scores with."""
        self.rows = 0

    def lend(self) -> Lent | None:
        """Let other ranks of this machine have the weights; None where its kinds of tables cannot be shared."""
        return None if (weights := self._scorer.weights()) is None else lend(weights)

    def borrow(self, lent: Lent) -> None:
        """Use the weights of a rank that lends them, if it is on this machine."""
        self.borrowed = borrow(self._scorer.weights() or [], lent)

    def load(self, snapshot: Path) -> Mapping[str, Any]:
        return self._loaded.become(snapshot, self._scorer, self._made_with)

    def score(self, rows: pa.RecordBatch, part_rows: int | None = None) -> TeacherAnswer:
        self.rows += rows.num_rows
        parts = [self._scorer.answer(self._build(part)) for part in in_parts(rows, part_rows)]
        return TeacherAnswer.together(parts)

    def leave(self) -> None:
        pass


class _Shards:
    """Work of every rank of the group: hold its shards, read them, score its share."""

    def __init__(self, config: Config, group: RankGroup) -> None:
        self.group = group
        self.build = BatchBuilder(config.teacher_features, config.tasks)
        self._made_with = made_with_teacher(config)
        sharding = config.augmentation.sharding
        self._scorer = TeacherScorer(
            config.teacher.model,
            config.teacher_features,
            config.tasks,
            group=group,
            sharding=sharding,
            batch_rows=config.augmentation.score_rows,
        )
        self._loaded = _Loaded()

    def load(self, snapshot: Path) -> Mapping[str, Any]:
        return self._loaded.become(snapshot, self._scorer, self._made_with)

    @property
    def held(self) -> list[Tensor]:
        """The parts of tables that are in this process."""
        return self._scorer.held

    def score(self, share: pa.RecordBatch) -> TeacherAnswer:
        """The answer for all shares, in the order of the ranks, on rank 0. A collective."""
        logits, r = self._scorer.answer(self.build(share))
        own = torch.from_numpy(logits if r is None else np.hstack([logits, r]))
        whole, T = torch.cat([*self.group.gather(own)] or [own]).numpy(), logits.shape[1]
        return TeacherAnswer(whole[:, :T], None if r is None else whole[:, T:])


class LeadingScorer:
    """The scorer of rank 0, which the other ranks follow."""

    def __init__(self, config: Config, group: RankGroup, lines: Lines) -> None:
        self.shards = _Shards(config, group)
        self._lines = lines
        self._columns = list(config.teacher_features.needs_columns())
        self._lead, self.rows = Lead(lines), 0

    def load(self, snapshot: Path) -> Mapping[str, Any]:
        self._lead.order({"do": "load", "snapshot": snapshot.name})
        meta: Mapping[str, Any] = {}
        said: list[tuple[str, Any]] = []
        try:
            meta = self.shards.load(snapshot)
        except ModelError as error:
            said.append(error_record(error))
        for rank in range(1, self._lines.ranks):
            (told,) = self._lines.receive(rank)
            said.append(json.loads(bytes(told)))
        raise_first(said)
        return meta

    def score(self, rows: pa.RecordBatch, part_rows: int | None = None) -> TeacherAnswer:
        return TeacherAnswer.together([self._score(part) for part in in_parts(rows, part_rows)])

    def _score(self, rows: pa.RecordBatch) -> TeacherAnswer:
        first, *others = shares(rows.select(self._columns), self._lines.ranks)
        self._lead.order({"do": "score"})
        for rank, share in enumerate(others, start=1):
            self._lines.send(rank, encoded(share))
        self.rows += first.num_rows
        logits, r = self.shards.score(first)
        return TeacherAnswer(logits[: rows.num_rows], None if r is None else r[: rows.num_rows])

    def leave(self) -> None:
        self._lead.leave()


def scorer_of(config: Config, ranks: Ranks) -> Scorer:
    """The scorer of rank 0, or of the only process. A collective where there are more."""
    if ranks.group is None or ranks.lines is None:
        return ReplicaScorer(config)
    return LeadingScorer(config, ranks.group, ranks.lines)


class ScoringWorker(FurtherRank):
    """A rank that scores along with augmentation."""

    kind = "scoring"

    def __init__(self, config: Config, run_dir: RunDir, at: Rendezvous) -> None:
        super().__init__("augmentation", config, run_dir, at)

    def open(self) -> None:
        super().open()
        assert self._ranks.group is not None
        self.shards = _Shards(self._config, self._ranks.group)

    def _obey(self, order: Any, parts: Sequence[memoryview]) -> None:
        if order["do"] == "load":
            with self.watch("load"):
                self._load(order["snapshot"])
        else:
            with self.watch("score"):
                (message,) = self._lines.receive(0)
                share = decoded(message)
                self.shards.score(share)
            self.rows += share.num_rows

    def _load(self, name: str) -> None:
        said = ("", "")
        try:
            self.shards.load(brought_up(self._run_dir.snapshots / name))
        except ModelError as error:
            said = error_record(error)
        self._lines.send(0, json.dumps(said).encode())


def error_record(error: ModelError) -> tuple[str, str]:
    """An error as one rank tells another."""
    return type(error).__name__, str(error)


def raise_first(said: Sequence[tuple[str, Any]]) -> None:
    """Raise the first error that ranks have told, one about a format before others; the kind is empty where a rank had
    none."""
    errors = [(OtherFormat if kind == OtherFormat.__name__ else ModelError)(words) for kind, words in said if kind]
    if errors:
        raise next((error for error in errors if isinstance(error, OtherFormat)), errors[0])


def in_parts(rows: pa.RecordBatch, part_rows: int | None) -> list[pa.RecordBatch]:
    """The rows, at most `part_rows` in each part; None: one part."""
    size = part_rows or max(1, rows.num_rows)
    return [rows.slice(start, size) for start in range(0, rows.num_rows, size)] or [rows]


def shares(rows: pa.RecordBatch, ranks: int) -> list[pa.RecordBatch]:
    """Split the rows in order into `ranks` shares of one size, the last ones padded with copies of the last row.

    One size lets the logits come back in a single gather.

    >>> [share["x"].to_pylist() for share in shares(pa.record_batch({"x": [1, 2, 3, 4]}), 3)]
    [[1, 2], [3, 4], [4, 4]]
    """
    size = -(-rows.num_rows // ranks)
    places = np.minimum(np.arange(ranks * size), rows.num_rows - 1).reshape(ranks, size)
    return [rows.slice(p[0], size) if p[-1] - p[0] + 1 == size else rows.take(pa.array(p)) for p in places]


def encoded(rows: pa.RecordBatch) -> bytes:
    """Rows as one Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def decoded(message: bytes | memoryview) -> pa.RecordBatch:
    """The rows of `encoded`."""
    with pa.ipc.open_stream(message) as reader:
        return reader.read_next_batch()

"""What stands where the product looks for deltalake, for what scores rows, for housekeeping, and for a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

import pipelines.live.workers.augmentation.commit as commit_module
import pipelines.live.workers.augmentation.shards as shards_module
import pipelines.live.workers.augmentation.stream as stream_module
import pipelines.live.workers.augmentation.worker as worker_module
import streaming.kafka.reader as lag_module
import streaming.kafka.reader as reader_module
import streaming.kafka.topics as topics_module
import streaming.kafka.writer as writer_module
import streaming.lake.delta.handle as handle_module
import streaming.lake.delta.remote as remote_module
import streaming.lake.delta.table as table_module
import streaming.lake.writer as lake_writer_module
from exfm.models.scorer import TeacherAnswer
from streaming.settlement import id_index, pending
from streaming.store import deltas, files, numbered
from tests.simulation.broker import Broker
from tests.simulation.history import LARGE
from tests.simulation.tables import Tables

NEWEST = 1000
T = TypeVar("T")


class FakeSnapshots:
    """Every version is there at once; a logit says which version and row it is of."""

    def __init__(self, folder: Path, scorer: Any, **_: Any) -> None:
        self.version: int | None = None
        self.lake_seq, self.inferences, self.age_s, self.space = -1, 0, 0.0, 0
        self.scorer = scorer

    def load(self, version: int) -> bool:
        self.version = version
        return True

    def load_newest(self) -> int | None:
        self.version = NEWEST
        return NEWEST

    def score(self, rows: pa.RecordBatch, part_rows: int) -> TeacherAnswer | None:
        self.inferences += rows.num_rows
        answer: TeacherAnswer | None = self.scorer.score(rows, part_rows)
        return answer


class FakeScorer:
    """Stands for `ReplicaScorer`."""

    rows = 0

    def score(self, rows: pa.RecordBatch, part_rows: int) -> TeacherAnswer:
        tasks = sum(name.startswith("label_") for name in rows.schema.names)
        logits = np.outer(rows["event_time_ms"].to_numpy() % 1000, np.arange(1, tasks + 1)).astype(np.float32)
        return TeacherAnswer(logits, None)

    def leave(self) -> None:
        pass


class OneProcess(shards_module.ShardGroup):
    """The ranks of a partitioned stream, one after the other in one process, in any order; what they say goes through
    JSON."""

    def __init__(self, hosts: list[shards_module.ShardHost], random: Random) -> None:
        super().__init__(hosts[0], None)
        self._hosts, self._random = hosts, random

    @property
    def ranks(self) -> int:
        return len(self._hosts)

    def ask(self, name: str, *values: Any, rows: Sequence[pa.RecordBatch] = ()) -> list[shards_module.RankAnswer]:
        order, text = self._random.sample(range(self.ranks), self.ranks), json.dumps(values)
        said = {n: getattr(self._hosts[n], name)(*json.loads(text), *rows) for n in order}
        return [said[n]._replace(value=json.loads(json.dumps(said[n].value))) for n in range(self.ranks)]


class InOneThread:
    """An executor's `map`, all of whose work is done whatever fails, as it is by threads: a process that is stopped
    stands still as a whole."""

    def map(self, work: Callable[[T], None], values: Iterable[T]) -> list[None]:
        failures: list[BaseException] = []
        for value in values:
            try:
                work(value)
            except BaseException as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return []


class Handles:
    """`DeltaTable`, the class: called to load a table, and its `create`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.create = tables.create

    def __call__(self, path: str | Path, **_: Any) -> Any:
        return self._tables.handle(path)


class Identifiers:
    """`TableFiles`, as far as it is asked for an identifier."""

    def __init__(self, tables: Tables, path: Path) -> None:
        self._handle = tables.handle(path)
        self.identifier = self._handle.transaction_version


@contextmanager
def stand_ins(
    broker: Broker,
    tables: Tables,
    rows: int,
    take_in: Callable[..., Any],
    further: Sequence[tuple[Any, str, Any]],
) -> Iterator[None]:
    """Puts them where the product looks for the real ones; `rows`: of a segment of the settlement's state;
    `take_in`: in place of `with_partitions`; `further`: more of them."""
    scheduler = tables.scheduler
    nothing = SimpleNamespace(maybe=lambda: None, close=lambda: None, trouble=None)
    fakes: list[tuple[Any, str, Any]] = [
        *further,
        *((module, "connect", broker.connect) for module in (reader_module, writer_module, topics_module, lag_module)),
        *((module, "DeltaTable", Handles(tables)) for module in (handle_module, remote_module, table_module)),
        (table_module, "append_rows", tables.write),
        (table_module, "flush", tables.flush),
        (table_module, "in_flight_lock", tables.no_lock),
        (table_module, "vacuum_table", lambda path, older_than_s: None),
        (lake_writer_module, "TableFiles", tables.files),
        (commit_module, "LakeReader", tables.lake_reader),
        (commit_module, "TableFiles", lambda path: Identifiers(tables, path)),
        (worker_module, "Snapshots", FakeSnapshots),
        (worker_module, "scorer_of", lambda config, ranks: FakeScorer()),
        (worker_module, "Ranks", lambda at, collectives: SimpleNamespace(lines=None, close=lambda: None)),
        (
            worker_module,
            "ShardGroup",
            lambda local, lines: OneProcess([local, *scheduler.process.further_ranks()], scheduler.random),
        ),
        (shards_module, "ReplicaScorer", lambda config: FakeScorer()),
        (worker_module, "set_threads", lambda threads: None),
        (stream_module, "Housekeeper", lambda *args, **kwargs: nothing),
        (stream_module, "repair", lambda *args: []),
        (stream_module, "with_partitions", take_in),
        (files, "_flushing", lambda process: InOneThread()),
        (pending, "SEGMENT_ROWS", rows),
        (numbered, "CHUNK_ROWS", min(rows, 4096)),
        (id_index, "RUN_ROWS", rows),
        (id_index, "FILTERED_ROWS", rows),
        (deltas, "FEW", 4096 if rows == LARGE else 1),
    ]
    with ExitStack() as stack:
        for owner, name, fake in fakes:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, fake)
        yield

"""Processes that share a partitioned stream: rank 0 leads, and commits; the others read, settle and score their part.

    rank 0, the worker                            the other ranks
    asks       one call, by name and arguments ──────►  the same call, of their partitions
               its own partitions meanwhile
    gathers    ◄── a JSON value and Arrow rows ─────────

They speak over lines of their own (pipelines/live/workers/lines.py), and meet in no collective. Those of rank 0's
machine score with its teacher (`one_teacher`).

The rows of a block stay with the ranks that settled them: each scores its own, writes their files to the lake, and,
when rank 0 has committed the files of all, their messages to the examples topic (`shared_block`).

All of them hold state between commits only: the ranks are one unit of failure, and begin again at the last commit
together. So no cut has to be stored: what a commit holds depends neither on cuts nor on the number of ranks
(streaming/settlement/shard.py), and what is not committed never was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.errors import ModelError
from exfm.models.scorer import TeacherAnswer
from pipelines.core.config.kept_columns import with_kept_columns
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.block import augment
from pipelines.live.workers.augmentation.commit import folder_of_state, states_folder
from pipelines.live.workers.augmentation.feed import FeedStatus, SteadyClock, intake_of
from pipelines.live.workers.augmentation.one_teacher import Lent
from pipelines.live.workers.augmentation.scoring import (
    ReplicaScorer,
    decoded,
    encoded,
    error_record,
    raise_first,
)
from pipelines.live.workers.lines import Lines
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.rounds import FurtherRank, Lead
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.asof.forgotten import ForgottenId
from streaming.delivery.header import Header
from streaming.delivery.publisher import ExamplesWriter
from streaming.intake.merge import Front
from streaming.lake.delta.table import write_rows
from streaming.messages.undeclared import NewColumns
from streaming.schema import Column
from streaming.settlement.admission import Verticals
from streaming.settlement.emission import DueRows
from streaming.settlement.shard import NewVertical, Shard, position_of
from streaming.store.working_copy import brought_up

FACTS = ["event_time_ms", "vertical", "settled_by"]
"""What rank 0 gets of a block's rows; `settled_by`: the partition. Rows may have come from one of another number, where
the run was moved since."""

DUE = pa.schema([("number", pa.int64()), ("deadline", pa.int64()), ("size", pa.int64())])


class RankAnswer(NamedTuple):
    """Answer of one rank: a JSON value, and Arrow rows."""

    value: Any = None
    rows: Sequence[pa.RecordBatch] = ()


class ShardHost:
    """The partitions of one rank, and the scorer of their rows. Every public method but `lend` and `close` is a call
    that rank 0 makes on all ranks at once."""

    def __init__(
        self,
        config: Config,
        run_dir: RunDir,
        at: Rendezvous,
        watch: Stopwatch,
        *,
        until_end: bool,
        steady: SteadyClock,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.partitions = config.kafka.impressions.partitions
        self.numbers = numbers_of(self.partitions, at.rank, at.ranks)
        self.rows, self._rank = 0, at.rank
        self.steady = steady
        self._given, self._run_dir, self.watch = config, run_dir, watch
        self._until_end, self._clock = until_end, clock
        self._scorer = ReplicaScorer(config)
        self._shard: Shard | None = None
        self._examples: ExamplesWriter | None = None
        self._taken: dict[int, pa.RecordBatch] = {}
        self._answers: dict[int, TeacherAnswer] = {}
        self._messages: list[list[bytes]] = []

    @property
    def shard(self) -> Shard:
        assert self._shard is not None
        return self._shard

    @property
    def examples(self) -> ExamplesWriter:
        assert self._examples is not None
        return self._examples

    # --- opening -------------------------------------------------------------------------------------------------

    def open(self, epoch: int, row_bytes: int) -> RankAnswer:
        """Begin anew, for the writer of this epoch, with the columns that the run has by now."""
        self.close()
        brought_up(self._run_dir.kept_columns)  # rank 0 has just written them
        config = self._config = with_kept_columns(self._given, self._run_dir)
        self._states = states_folder(self._run_dir, epoch)
        examples = config.kafka.examples
        self._examples = ExamplesWriter(config.kafka, examples.topic, examples.partitions, config.rows)
        intake = intake_of(
            config,
            self._run_dir,
            until_end=self._until_end,
            watch=self.watch,
            now_ms=self.steady,
            clock=self._clock,
            row_bytes=row_bytes,
            only=self.numbers,
        )
        self._shard = Shard(
            config.rows,
            config.settlement,
            intake,
            self.numbers,
            config.kafka.impressions.partitions,
            states=self._states,
            verticals=Verticals(config.declared_verticals, config.lake.max_verticals),
        )
        return RankAnswer()

    def load(self, state: int) -> RankAnswer:
        """Continue from the state of this number."""
        self.shard.load(brought_up(folder_of_state(self._run_dir, state)), str(state))
        return RankAnswer()

    def begin(self, position: Mapping[str, Any] | None, clock_ms: int | None) -> RankAnswer:
        """Read on from `position`, or from the beginning."""
        if clock_ms is not None:
            self.steady.restore(clock_ms)
        self.shard.intake.open(None if position is None else position_of(position, self.numbers))
        return RankAnswer()

    # --- a cycle -------------------------------------------------------------------------------------------------

    def read(self, max_wait_s: float, slowest: int) -> RankAnswer:
        return RankAnswer(self.shard.read(max_wait_s, slowest))

    def front(self, rows_came: bool) -> RankAnswer:
        """Place that the partitions have reached (`Front`), and whether all has been read."""
        with self.watch("merge"):
            front = self.shard.front(rows_came=rows_came)
            return RankAnswer({"front": list(front), "finished": self.shard.intake.finished})

    def pop(self, cut: int, verticals: Sequence[str]) -> RankAnswer:
        self.shard.verticals.declare(verticals)
        with self.watch("settle"):
            return RankAnswer(self.shard.pop(cut))

    def join(self, known: Sequence[str]) -> RankAnswer:
        """The events of each partition, for as-of features: how many are of impressions, and all of them."""
        with self.watch("settle"):
            events = self.shard.join(known)
            return RankAnswer([each.shown for each in events], [each.events.as_batch() for each in events])

    def rates(self, cut: int, shown: Sequence[Sequence[int]], *events: pa.RecordBatch) -> RankAnswer:
        """Values that other ranks need of the rows that were joined; `events` and `shown` are those of all ranks."""
        each = iter(events)
        with self.watch("settle"):
            ranks = [[self.shard.events_of(next(each), count) for count in counts] for counts in shown]
            others = [new for rank, of in enumerate(ranks) if rank != self._rank for new in of]
            weights = self.shard.rates(others, cut)
        return RankAnswer(None, [columns_of(weights)])

    def absorb(self, *weights: pa.RecordBatch) -> RankAnswer:
        """`weights`: `rates` of all ranks; none without as-of features."""
        others = [batch for rank, batch in enumerate(weights) if rank != self._rank and batch.num_columns]
        columns = [np.stack([column.to_numpy() for column in batch.columns], axis=1) for batch in others]
        with self.watch("settle"):
            settled = self.shard.absorb(np.concatenate(columns) if columns else np.empty((0, 0)))
        return RankAnswer({"due": self.shard.count_due, "rows": self.shard.rows_popped}, (settled.late, settled.dead))

    def end(self) -> RankAnswer:
        with self.watch("settle"):
            settled = self.shard.end()
        return RankAnswer({"due": self.shard.count_due}, (settled.late, settled.dead))

    def due(self, max_rows: int) -> RankAnswer:
        with self.watch("settle"):
            due = self.shard.due(max_rows)
        numbers = np.repeat(np.array(list(due), np.int64), [len(each.deadlines) for each in due.values()])
        columns = [numbers, *(np.concatenate(each) for each in zip(*due.values(), strict=True))]
        return RankAnswer(None, [pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=DUE)])

    def take(self, counts: Mapping[str, int]) -> RankAnswer:
        with self.watch("settle"):
            taken = self.shard.take({int(number): count for number, count in counts.items()})
        self._taken, self._answers = {number: each.batch for number, each in taken.items()}, {}
        facts = [_facts(each.batch, number) for number, each in taken.items()]
        late, dead = ([getattr(each, part) for each in taken.values()] for part in ("late", "dead"))
        parts = tuple(pa.concat_batches(each) for each in (facts, late, dead))
        return RankAnswer({"due": self.shard.count_due}, parts)

    # --- ids that are forgotten ----------------------------------------------------------------------------------

    def expect(self, id: Sequence[Any]) -> RankAnswer:
        self.shard.expect(ForgottenId(*id))
        return RankAnswer()

    def found(self, id: Sequence[Any]) -> RankAnswer:
        """The keys that have the id in these partitions."""
        return RankAnswer(None, [columns_of(self.shard.keys_with(ForgottenId(*id)))])

    def forget(self, id: Sequence[Any], *keys: pa.RecordBatch) -> RankAnswer:
        """Forget the id; `keys`: of all ranks."""
        whole = pa.Table.from_batches(keys)
        keys_NK = np.stack([column.to_numpy() for column in whole.columns], axis=1)
        return RankAnswer(self.shard.forget(ForgottenId(*id), keys_NK))

    # --- a block: scored, written, published ---------------------------------------------------------------------

    def lend(self) -> Lent | None:
        """`ReplicaScorer.lend`, of rank 0."""
        return self._scorer.lend()

    def borrow(self, lent: Sequence[Any]) -> RankAnswer:
        """Score with the teacher that rank 0 has, if it is on this machine."""
        if self._rank:
            self._scorer.borrow(Lent(*lent))
        return RankAnswer()

    def load_snapshot(self, name: str) -> RankAnswer:
        if self._scorer.borrowed:  # rank 0 loads it, and no rank scores before all have answered
            return RankAnswer(("", {}))
        with self.watch("load"):
            try:
                return RankAnswer(("", dict(self._scorer.load(brought_up(self._run_dir.snapshots / name)))))
            except ModelError as error:
                return RankAnswer(error_record(error))

    def score(self, part_rows: int) -> RankAnswer:
        """Score the rows taken last; scoring batches end where a partition's rows do."""
        with self.watch("score"):
            self._answers = {n: self._scorer.score(rows, part_rows) for n, rows in self._taken.items() if rows.num_rows}
        self.rows += sum(rows.num_rows for rows in self._taken.values())
        return RankAnswer()

    def write(
        self, how: Mapping[str, Any], first_seqs: Mapping[str, int], by: Sequence[str], statistics: Sequence[str]
    ) -> RankAnswer:
        """Write the rows taken last to flushed files of the lake, which are in no commit yet; gives the files, and how
        many messages the rows make in each partition of the examples topic. `how`: for `augment`; `first_seqs`: the
        first `lake_seq` of each partition's rows."""
        schema = self._config.rows
        with self.watch("write"):
            rows = pa.Table.from_batches(
                (
                    augment(taken, self._answers.get(n), schema, **{**how, "first_seq": first_seqs[str(n)]})
                    for n, taken in self._taken.items()
                    if taken.num_rows
                ),
                schema.augmented,
            )
            files = write_rows(self._run_dir.lake, rows, by, statistics)
        with self.watch("publish"):
            whole = rows.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
            self._messages = [values for _, values in self.examples.encoded(whole[0], range(self.examples.partitions))]
        return RankAnswer({"files": files, "messages": list(map(len, self._messages))})

    def publish(self, headers: Sequence[Sequence[Mapping[str, Any]]]) -> RankAnswer:
        """Write the messages of the rows that were written last. `headers`: of each rank's first in each partition."""
        with self.watch("publish"):
            for partition, values in enumerate(self._messages):
                self.examples.write(partition, values, Header(**headers[self._rank][partition]))
            self.examples.flush()
        self._taken, self._answers, self._messages = {}, {}, []
        return RankAnswer()

    # --- commits and reports -------------------------------------------------------------------------------------

    def save(self, number: int, keep: int) -> RankAnswer:
        with self.watch("save state"):
            self.shard.save(self._states, str(number), [str(keep)])
        return RankAnswer()

    def position(self) -> RankAnswer:
        with self.watch("save state"):
            self.shard.check_accounts()
            return RankAnswer(self.shard.intake.position())

    def lag(self) -> RankAnswer:
        return RankAnswer(self.shard.intake.known_lag_rows)

    def status(self) -> RankAnswer:
        shard = self.shard
        with self.watch("status"):
            status = FeedStatus.of(
                shard.intake,
                self.steady,
                counters=shard.counters(),
                examples=shard.examples,
                bytes=shard.bytes_held,
                first_wait_s=shard.first_wait_s,
            )
            return RankAnswer(status._asdict())

    def show_lag(self) -> RankAnswer:
        self.shard.intake.show_lag()
        return RankAnswer()

    def await_all(self) -> RankAnswer:
        self.shard.intake.await_all()
        return RankAnswer()

    def close(self) -> None:
        if self._shard is not None:
            self._shard.intake.close()
        if self._examples is not None:
            self._examples.abandon()  # what a commit left to be published is published from the lake


CALLS = frozenset(name for name in vars(ShardHost) if not name.startswith("_")) - {"shard", "examples", "lend", "close"}


class ShardGroup:
    """Rank 0's view of all ranks: a call goes to each of them, its own part is done meanwhile."""

    def __init__(self, local: ShardHost, lines: Lines | None) -> None:
        self.local, self._lines, self._lead = local, lines, Lead(lines)
        if lines is not None and (lent := local.lend()) is not None:
            self.ask("borrow", lent)

    def ask(self, name: str, *values: Any, rows: Sequence[pa.RecordBatch] = ()) -> list[RankAnswer]:
        """The answers of all ranks, in their order; `rows` follow the values. Raises NewColumns if one finds some."""
        if self._lines is not None:
            with self.local.watch("order"):
                self._lead.order([name, values], *map(encoded, rows))
        own, new = _tried(self.local, name, [*values, *rows])
        answers, found = [own], list(new)
        for rank in range(1, self.ranks):
            assert self._lines is not None
            with self.local.watch("wait for ranks"):
                value, *batches = self._lines.receive(rank)
                said = json.loads(bytes(value))
                rows = list(map(decoded, batches))
            answers.append(RankAnswer(said["value"], rows))
            found += [Column.model_validate(column) for column in said["columns"]]
        if found:
            raise NewColumns(tuple({column.name: column for column in found}.values()))
        return answers

    @property
    def ranks(self) -> int:
        return 1 if self._lines is None else self._lines.ranks

    @property
    def partitions(self) -> int:
        """Number of all ranks' partitions."""
        return self.local.partitions

    def numbers(self, rank: int) -> range:
        """The partitions of one rank."""
        return numbers_of(self.partitions, rank, self.ranks)

    def leave(self) -> None:
        """End the round, so that other ranks may report."""
        self._lead.leave()


class PartitionedScorer:
    """The scorer of a partitioned stream: every rank scores the rows of its own partitions with its own replica."""

    def __init__(self, group: ShardGroup) -> None:
        self._group = group

    @property
    def rows(self) -> int:
        return self._group.local.rows

    def load(self, snapshot: Path) -> Mapping[str, Any]:
        answers = [answer.value for answer in self._group.ask("load_snapshot", snapshot.name)]
        raise_first(answers)
        meta: Mapping[str, Any] = answers[0][1]
        return meta

    def score(self, rows: pa.RecordBatch, part_rows: int | None = None) -> None:
        """Score the rows that were taken last, which are `rows`; each rank keeps its answer."""
        self._group.ask("score", part_rows or rows.num_rows)

    def leave(self) -> None:
        self._group.leave()


class ShardWorker(FurtherRank):
    """A rank beyond the first of a partitioned stream: it answers rank 0's calls."""

    kind = "augmentation"
    collectives = False

    def __init__(self, config: Config, run_dir: RunDir, at: Rendezvous, *, until_end: bool) -> None:
        super().__init__("augmentation", config, run_dir, at)
        self._until_end = until_end

    def open(self) -> None:
        super().open()
        steady = SteadyClock(lambda: time.time_ns() // 1_000_000, time.monotonic)
        self.host = ShardHost(
            self._config, self._run_dir, self._at, self.watch, until_end=self._until_end, steady=steady
        )
        self._held.callback(self.host.close)
        self._follow_round()  # rank 0 opens the stream in all ranks

    def _obey(self, order: Any, parts: Sequence[memoryview]) -> None:
        name, values = order
        answer, columns = _tried(self.host, name, [*values, *map(decoded, parts)])
        with self.watch("answer"):
            said = {"value": answer.value, "columns": [column.model_dump(mode="json") for column in columns]}
            self._lines.send(0, json.dumps(said).encode(), *map(encoded, answer.rows))
        self.rows = self.host.rows


def _tried(host: ShardHost, name: str, values: Sequence[Any]) -> tuple[RankAnswer, Sequence[Column]]:
    """The answer to a call, and columns that it came upon, which end what it did."""
    if name not in CALLS:
        raise ValueError(f"no rank answers to `{name}`")
    try:
        answer: RankAnswer = getattr(host, name)(*values)
    except NewColumns as new:
        return RankAnswer(), new.columns
    return answer, ()


def _facts(rows: pa.RecordBatch, number: int) -> pa.RecordBatch:
    settled_by = pa.array(np.full(rows.num_rows, number))
    return pa.RecordBatch.from_arrays([rows["event_time_ms"], rows["vertical"], settled_by], FACTS)


def numbers_of(partitions: int, rank: int, ranks: int) -> range:
    """The partitions of one rank."""
    return range(rank * partitions // ranks, (rank + 1) * partitions // ranks)


def columns_of(values_NK: np.ndarray) -> pa.RecordBatch:
    """N rows of K values, as Arrow rows."""
    names = list(map(str, range(values_NK.shape[1])))
    return pa.RecordBatch.from_arrays(list(map(pa.array, values_NK.T.copy())), names)


def fronts(answers: Sequence[RankAnswer]) -> Front:
    """Place that all ranks have reached together."""
    bounds, newest, oldest, full = zip(*(answer.value["front"] for answer in answers), strict=True)
    return Front(min(bounds), max(newest), min(oldest), any(full))


def new_verticals(answers: Sequence[RankAnswer]) -> list[NewVertical]:
    return [NewVertical(*each) for answer in answers for each in answer.value]


def due_rows(answers: Sequence[RankAnswer]) -> dict[int, DueRows]:
    """Due rows by partition."""
    rows = pa.Table.from_batches([batch for answer in answers for batch in answer.rows], DUE)
    number, deadline, size = (column.to_numpy() for column in rows.columns)
    return {int(n): DueRows(deadline[number == n], size[number == n]) for n in np.unique(number)}


def rows_of(answers: Sequence[RankAnswer], place: int) -> pa.RecordBatch:
    """The rows at this place of all answers, in the order of the ranks."""
    return pa.concat_batches([answer.rows[place] for answer in answers])

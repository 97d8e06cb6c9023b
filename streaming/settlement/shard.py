"""Partitions of both topics that one process reads and settles, each by itself (`settlement.by: partition`).

Where both topics are keyed by `impression_id` and have as many partitions, whatever belongs to an impression lies in
partitions of one number. Each number has a `Settlement` of its own, so that processes share the numbers in any way:

    read    rows of the own partitions, as far as buffers allow
    front   how far they have come; the slowest of all processes decides the cut, an event time (`next_cut`)
    pop     the rows before the cut
    join    joins feedback to impressions; all processes learn of all events, for as-of features
    absorb  admits the impressions
    due     deadlines of the rows whose windows have closed
    take    as many of them, of each number, as the block gets

A block holds the next rows of all numbers in the order (deadline, partition, settlement group, admission), and inside
it one partition's rows after the other's. What it holds depends neither on cuts nor on processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.asof.features import AsOfState, Events, NewEvents
from streaming.asof.forgotten import ForgottenId, RemovedCounts
from streaming.intake.intake import Intake
from streaming.intake.merge import Front, MergedChunk, integers_of
from streaming.messages.dead_letters import Kind, refuse_rows
from streaming.partitioner import Partitioner
from streaming.schema import RowSchema
from streaming.settlement.admission import Verticals, placed
from streaming.settlement.config import SettlementConfig
from streaming.settlement.emission import DueRows
from streaming.settlement.settlement import SettledRows, Settlement, SharedAsOf
from streaming.settlement.state import SettlementState, held_together, partition_folder

Counts = dict[str, Any]


class NewVertical(NamedTuple):
    """A vertical that rows before a cut are the first of: the key time of the first, its partition, its name."""

    key_time: int
    partition: int
    name: str


class Shard:
    """The partitions `numbers` of both topics, of `partitions` in all. `intake` reads these and no others.

    `states`: the folder that holds one of states for each number; `verticals` serve all numbers.
    """

    def __init__(
        self,
        schema: RowSchema,
        config: SettlementConfig,
        intake: Intake,
        numbers: range,
        partitions: int,
        *,
        states: Path,
        verticals: Verticals,
    ) -> None:
        self.intake, self.numbers, self.verticals = intake, numbers, verticals
        self._horizon = config.horizon_ms(schema)
        self._owner = Partitioner(config.partitioner, partitions)
        self._asof, self._settlements = settlements_of(
            schema, config, numbers, partitions, states=states, verticals=verticals
        )
        self._came = False
        self._popped: dict[int, MergedChunk] = {}
        self.rows_popped = 0
        """Number of rows before the last cut that were not before the one before it."""

    def read(self, max_wait_s: float, slowest: int) -> bool:
        """`Intake.read`."""
        self._came = self.intake.read(max_wait_s, slowest)
        return self._came

    def front(self, *, rows_came: bool) -> Front:
        """Place that the partitions have reached. `rows_came`: some process has read rows."""
        if rows_came and not self._came:  # else `read` has looked
            self.intake.confirm_idle()
        return self.intake.front

    def pop(self, cut: int) -> list[NewVertical]:
        """Take the rows before `cut`, and tell which verticals are new with them."""
        whole = self.intake.pop_to(cut)
        self.rows_popped = len(whole)
        self._popped = {number: self._refused(self._of(whole, number), number) for number in self.numbers}
        return [new for number, chunk in self._popped.items() for new in self._new_verticals(chunk, number)]

    def join(self, known: Collection[str]) -> list[NewEvents]:
        """Join what was popped, where all processes know of `known` verticals by now; gives the events of each number,
        if as-of features are made of them."""
        self.verticals.declare(known)
        events = [self._settlements[number].join(chunk) for number, chunk in self._popped.items()]
        self._events = [each for each in events if each is not None]
        self._columns: list[list[pa.Array]] | None = [[] for _ in self.numbers]
        return self._events

    def events_of(self, batch: pa.RecordBatch, shown: int) -> NewEvents:
        """Events of another process, from `Events.as_batch`."""
        assert self._asof is not None
        return NewEvents(Events.of(batch, self._asof.no_events), shown)

    def rates(self, others: Sequence[NewEvents], cut: int) -> np.ndarray:
        """Begin the as-of features of the rows that were joined, among the events of `others`; gives what those need of
        these rows, (R, W)."""
        assert self._asof is not None
        self._columns, self._steps = None, self._asof.steps(self._events, others, cut - 1)
        try:
            return next(self._steps)
        except StopIteration as end:
            self._columns = end.value
            return np.empty((0, 0))

    def absorb(self, weights: np.ndarray) -> SettledRows:
        """Admit what was joined. No rows leave yet. `weights` (R, W), of the rows of others, in the order of theirs."""
        if self._columns is None:
            try:
                self._steps.send(weights)
            except StopIteration as end:
                self._columns = end.value
        settlements = zip(self._settlements.values(), self._columns or [], strict=True)
        return _together([settlement.absorb(each) for settlement, each in settlements])

    def end(self) -> SettledRows:
        """End event time: every window closes."""
        return _together([settlement.end() for settlement in self._settlements.values()])

    @property
    def count_due(self) -> int:
        """Number of rows that are due, those included that leave for no group."""
        return sum(settlement.count_due for settlement in self._settlements.values())

    def due(self, max_rows: int) -> dict[int, DueRows]:
        """The next rows that leave, at most `max_rows` of each number."""
        return {number: settlement.due(max_rows) for number, settlement in self._settlements.items()}

    def take(self, counts: Mapping[int, int]) -> dict[int, SettledRows]:
        """Release so many due rows of each number, in their order. `counts`: rows by number."""
        return {n: settlement.release_exactly(counts.get(n, 0)) for n, settlement in self._settlements.items()}

    def counters(self) -> Counts:
        """`Settlement.counters` of all numbers together."""
        return added(*(settlement.counters() for settlement in self._settlements.values()))

    @property
    def examples(self) -> dict[str, dict[str, Any]]:
        """The first dead letter of each kind and reason."""
        found: dict[str, dict[str, Any]] = {}
        for settlement in self._settlements.values():
            for kind, examples in settlement.letters.examples.items():
                found[kind] = dict(examples) | found.get(kind, {})
        return found

    @property
    def bytes_held(self) -> tuple[int, int]:
        """Bytes of memory of the state, and of the files of the last save."""
        each = self._settlements.values()
        asof = 0 if self._asof is None else self._asof.nbytes
        return asof + sum(s.state_bytes for s in each), sum(s.disk_bytes for s in each)

    @property
    def first_wait_s(self) -> tuple[float, float]:
        """`Settlement.first_wait_s` of the number that has waited longest."""
        return max((s.first_wait_s for s in self._settlements.values()), key=lambda wait: wait[1])

    @property
    def watermark_ms(self) -> int:
        return max(settlement.watermark_ms for settlement in self._settlements.values())

    def check_accounts(self) -> None:
        """Raise DataLost unless the offsets up to the position hold exactly the rows counted by settlement."""
        counters = self.counters()
        read: dict[Kind, int] = {"impression": counters["impressions_read"], "feedback": counters["feedback_read"]}
        self.intake.check_accounts(read)

    def expect(self, id: ForgottenId) -> None:
        """`Settlement.forget` of every number; `forget` is to follow where rows before `id.at_ms` have not all come."""
        for settlement in self._settlements.values():
            settlement.forget(id)

    def keys_with(self, id: ForgottenId, shown: Iterable[pa.RecordBatch] = ()) -> np.ndarray:
        """Keys (N, K) with the id, of impressions that may have labels and of `shown`, rows that have left."""
        assert self._asof is not None
        found = [self._asof.streams[number].found(id) for number in self.numbers]
        return np.concatenate([self._asof.keys_with(id, shown), *found])

    def forget(self, id: ForgottenId, keys: np.ndarray) -> RemovedCounts:
        """Forget an id of which all processes together have these keys: all rows before `id.at_ms` have been taken."""
        assert self._asof is not None
        for number in self.numbers:
            self._asof.streams[number].forget(id)
        return self._asof.forget_id(id, keys)

    def save(self, states: Path, name: str, keep: Collection[str]) -> None:
        """`Settlement.save` of every number, each in its own folder."""
        for number, settlement in self._settlements.items():
            settlement.save(states / partition_folder(number), name, keep)

    def load(self, states: Path, name: str) -> None:
        """`Settlement.load` of every number, whichever process saved it."""
        for number, settlement in self._settlements.items():
            settlement.load(states / partition_folder(number), name)
        if self._asof is not None and 0 not in self.numbers:
            state, _ = SettlementState.load(folder := states / partition_folder(0), name)
            with held_together(folder, name):
                if state.asof is None:
                    raise LookupError("no as-of features")
                self._asof.restore(state.asof)

    def _of(self, chunk: MergedChunk, number: int) -> MergedChunk:
        if len(self.numbers) == 1:
            return chunk
        parts = (
            rows.filter(pc.equal(rows["source_partition"], number))
            for rows in (chunk.impressions, chunk.feedback, chunk.dead)
        )
        impressions, feedback, dead = parts
        return MergedChunk(impressions, feedback, chunk.watermark_ms, dead)

    def _refused(self, chunk: MergedChunk, number: int) -> MergedChunk:
        """The chunk; its dead letters have the rows whose id belongs to another partition, which would miss others."""
        kinds: dict[Kind, pa.RecordBatch] = {"impression": chunk.impressions, "feedback": chunk.feedback}
        kept, dead = [], [chunk.dead]
        for kind, rows in kinds.items():
            owner = self._owner(rows["impression_id"])
            wrong = owner != number
            if wrong.any():
                dead.append(_wrong_partition(rows.filter(pa.array(wrong)), kind, owner[wrong], self._owner))
                rows = rows.filter(pa.array(~wrong))
            kept.append(rows)
        return MergedChunk(kept[0], kept[1], chunk.watermark_ms, pa.concat_batches(dead))

    def _new_verticals(self, chunk: MergedChunk, number: int) -> Iterable[NewVertical]:
        if self.verticals.most is None:
            return
        rows = chunk.impressions
        key = integers_of(rows, "key_time_ms")
        young = integers_of(rows, "event_time_ms") >= key - self._horizon
        names, key = rows["vertical"].filter(pa.array(young)), key[young]
        known = set(self.verticals.known)
        for name in names.unique().to_pylist():
            if name not in known:
                yield NewVertical(int(key[pc.index(names, name).as_py()]), number, name)


def settlements_of(
    schema: RowSchema,
    config: SettlementConfig,
    numbers: range,
    partitions: int,
    *,
    states: Path | None = None,
    verticals: Verticals | None = None,
) -> tuple[AsOfState | None, dict[int, Settlement]]:
    """Settlements of `numbers`, with the as-of features that those of all partitions share; None without any. All
    processes have the same features; they are stored with the state of partition 0."""
    asof = AsOfState(schema, streams=partitions) if schema.asof.features else None
    settlements = {
        number: Settlement(
            schema,
            config,
            spill=None if states is None else states / partition_folder(number),
            verticals=verticals,
            asof=None if asof is None else SharedAsOf(asof.streams[number], asof if number == 0 else None),
        )
        for number in numbers
    }
    return asof, settlements


def next_cut(front: Front, last: int, longest_ms: int | None) -> int | None:
    """Event time before which the next rows are taken, from the place that all processes have reached together; None:
    there are none. While a buffer is full, rows of the very time that all have reached leave too, in all processes
    alike. `last`: the cut before; `longest_ms`: from the oldest row that waits, at most.

    >>> next_cut(Front(50, 90, 40, full=False), 40, None), next_cut(Front(50, 90, 50, full=True), 50, None)
    (50, 51)
    >>> next_cut(Front(50, 90, 50, full=False), 50, None), next_cut(Front(50, 90, 10, full=True), 5, 30)
    (None, 40)
    """
    cut = min(front.bound, front.newest + 1)
    if front.full and cut == front.bound:
        cut += 1
    if longest_ms is not None:
        cut = min(cut, max(last, front.oldest) + longest_ms)
    return cut if cut > last or front.oldest < cut else None


def admitted(verticals: Verticals, new: Iterable[NewVertical]) -> list[str]:
    """Names that are let in of those that rows before one cut are the first of, in the order of their first rows.

    >>> admitted(Verticals(["feed"], most=2), [NewVertical(9, 0, "shop"), NewVertical(5, 1, "video")])
    ['video']
    """
    room = None if verticals.most is None else max(0, verticals.most - len(verticals.known))
    return list(dict.fromkeys(each.name for each in sorted(new)))[:room]


def next_block(due: Mapping[int, DueRows], max_rows: int, max_bytes: int) -> tuple[dict[int, int], bool]:
    """Rows of each number in the next block, in the order (deadline, number): at most `max_rows`, ending with the one
    that reaches `max_bytes`; and whether it is full.

    >>> due = {0: DueRows(np.array([5, 9]), np.array([8, 8])), 1: DueRows(np.array([5, 6]), np.array([8, 8]))}
    >>> next_block(due, 3, 1000), next_block(due, 5, 1000)[1], next_block(due, 5, 16)
    (({0: 1, 1: 2}, True), False, ({0: 1, 1: 1}, True))
    """
    numbers = np.repeat(np.array(list(due), np.int64), [len(each.deadlines) for each in due.values()])
    deadlines = np.concatenate([np.empty(0, np.int64), *(each.deadlines for each in due.values())])
    sizes = np.concatenate([np.empty(0, np.int64), *(each.sizes for each in due.values())])
    in_order = np.lexsort((numbers, deadlines))[:max_rows]
    reached = int(np.searchsorted(np.cumsum(sizes[in_order]), max_bytes)) + 1
    full = len(in_order) == max_rows or reached <= len(in_order)
    taken = Counter(numbers[in_order[:reached]].tolist())
    return {number: taken[number] for number in due}, full


def added(*counts: Mapping[str, Any]) -> Counts:
    """Counts added name by name, those inside dictionaries and lists too.

    >>> added({"read": 1, "dead": {"null": 2}, "unmet": [1, 2]}, {"read": 2, "dead": {"late": 1}, "unmet": [1, 0]})
    {'read': 3, 'dead': {'null': 2, 'late': 1}, 'unmet': [2, 2]}
    """
    total: Counts = {}
    for each in counts:
        for name, value in each.items():
            total[name] = _sum(total[name], value) if name in total else value
    return total


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, Mapping):
        return added(one, other)
    if isinstance(one, list):
        return [_sum(a, b) for a, b in zip(one, other, strict=True)]
    return one + other


def merged_position(positions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`Intake.position` of all partitions, from those of the processes that share them."""
    accounts = [position["accounts"] for position in positions]
    return {
        "watermark_ms": max(position["watermark_ms"] for position in positions),
        "next_order": max(position["next_order"] for position in positions),
        "partitions": sorted(row for position in positions for row in position["partitions"]),
        "accounts": {
            "rows_before": accounts[0]["rows_before"],
            "partitions": sorted(row for account in accounts for row in account["partitions"]),
            "trails": sorted(row for account in accounts for row in account["trails"]),
        },
        "epochs": sorted(row for position in positions for row in position["epochs"]),
    }


def position_of(position: Mapping[str, Any], numbers: range) -> dict[str, Any]:
    """The part of `Intake.position` that partitions `numbers` have; each row begins with topic and number."""

    def own(rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
        return [row for row in rows if row[1] in numbers]

    accounts = position["accounts"]
    return {
        **position,
        "partitions": own(position["partitions"]),
        "accounts": {**accounts, "partitions": own(accounts["partitions"]), "trails": own(accounts.get("trails", []))},
        "epochs": own(position["epochs"]),
    }


def _wrong_partition(rows: pa.RecordBatch, kind: Kind, owner: np.ndarray, by: Partitioner) -> pa.RecordBatch:
    *names, key, order = rows.schema.names
    details = [
        f"its id belongs to partition {number} of {by.partitions} ({by.words}), where the rows of its impression are "
        "looked for; write it there, or copy the topic to one partitioned by it (examples/repartition_topic.py)"
        for number in owner.tolist()
    ]
    letters = refuse_rows(rows.select(names), kind, "wrong_partition", details)
    return placed(letters, integers_of(rows, key), integers_of(rows, order))


def _together(settled: Sequence[SettledRows]) -> SettledRows:
    return SettledRows(
        pa.concat_batches([each.batch for each in settled]),
        pa.concat_batches([each.late for each in settled]),
        pa.concat_batches([each.dead for each in settled]),
        max(each.watermark_ms for each in settled),
        any(each.more for each in settled),
    )

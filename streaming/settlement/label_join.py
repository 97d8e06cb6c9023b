"""Label join: the impression of each feedback row, and whether the feedback is a label.

Matching takes one chunk of the merged stream at a time: D distinct ids, I impressions and F feedback rows. Arrays of
length D are indexed by an id's place in `Ids.distinct`.

Two bits per impression and task: a positive label, and that the label is unknown; conditions are applied when the bits
are read. For an impression with event time e and deadline d_t for task t of window w, feedback of t, or of `unknown:t`,
with event time f and key time kf sets its bit

    iff   e - early <= f <= e + w   and   kf <= d_t        (else it is late; after one that did, it is a repeat)

    label = 1 where the first bit is set, else unknown where the second is, else 0
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.asof.features import NO_LABELS, LabelEvents
from streaming.hashing import hash64
from streaming.intake.merge import END_OF_TIME
from streaming.schema import POSITION_FIELDS, RowSchema, SettlementGroup
from streaming.settlement.marks import Marks
from streaming.settlement.pending import empty_batch
from streaming.store.numbered import NumberedValues

NONE = -1
LATE_REASONS = ("after_settlement", "outside_window", "before_impression")


class Ids(NamedTuple):
    """The distinct ids of a chunk, and which of them each row carries."""

    distinct: pa.Array  # (D,)
    hashes: np.ndarray  # (D,) uint64
    of_impression: np.ndarray  # (I,) places in `distinct`
    of_feedback: np.ndarray  # (F,) places in `distinct`


class KnownImpressions(NamedTuple):
    """The latest impression admitted before the chunk under each id (D,): its number or NONE, and its key time."""

    number: np.ndarray
    key_time: np.ndarray


class AdmittedImpressions(NamedTuple):
    """The impression admitted in the chunk under each id (D,): its number or NONE, key time and merge order."""

    number: np.ndarray
    key_time: np.ndarray
    order: np.ndarray

    @property
    def ids(self) -> np.ndarray:
        """Places of the ids admitted in the chunk."""
        return np.flatnonzero(self.number != NONE)


class Matches(NamedTuple):
    """N feedback rows (`merged_schema`) and, for each, its impression.

    number    (N,) of the impression
    resolved  (N,) the merge order at which row and impression had both come; rows count in that order
    """

    rows: pa.RecordBatch
    number: np.ndarray
    resolved: np.ndarray

    def with_more(self, other: Matches) -> Matches:
        return Matches(
            pa.concat_batches([self.rows, other.rows]),
            np.concatenate([self.number, other.number]),
            np.concatenate([self.resolved, other.resolved]),
        )


def resolve_ids(impressions: pa.RecordBatch, feedback: pa.RecordBatch) -> Ids:
    """Index the distinct ids, each looked up and hashed once."""
    ids = pa.concat_arrays([impressions.column("impression_id"), feedback.column("impression_id")])
    encoded = cast(pa.DictionaryArray, ids.dictionary_encode())
    places = encoded.indices.to_numpy()
    count = impressions.num_rows
    return Ids(encoded.dictionary, hash64(encoded.dictionary), places[:count], places[count:])


def known_impressions(ids: Ids, place: np.ndarray, number: np.ndarray, key_time: np.ndarray) -> KnownImpressions:
    """Build from an index lookup: `number` and `key_time` of impressions of the ids at `place`, ascending for each id.

    An id has at most one admission within the horizon: the latest is the one known, if any is.
    """
    known = KnownImpressions(np.full(len(ids.distinct), NONE), np.full(len(ids.distinct), -END_OF_TIME))
    known.number[place] = number
    known.key_time[place] = key_time
    return known


def admitted_impressions(
    ids: Ids, place: np.ndarray, number: np.ndarray, key_time: np.ndarray, order: np.ndarray
) -> AdmittedImpressions:
    """Build from admitted impressions: the index of each one's id, which is unique, and its own values."""
    count = len(ids.distinct)
    admitted = AdmittedImpressions(np.full(count, NONE), np.zeros(count, np.int64), np.full(count, NONE))
    admitted.number[place], admitted.key_time[place], admitted.order[place] = number, key_time, order
    return admitted


def match(
    feedback: pa.RecordBatch, ids: Ids, known: KnownImpressions, admitted: AdmittedImpressions, horizon_ms: int
) -> tuple[Matches, np.ndarray]:
    """Feedback belongs to the impression known when it came, else to one admitted in the chunk, within the horizon.

    Returns the matches, and the indices of the feedback rows that have none.
    """
    of = ids.of_feedback
    key, order = (feedback.column(name).to_numpy() for name in ("key_time_ms", "order"))
    is_known = key - horizon_ms <= known.key_time[of]
    is_near = np.abs(key - admitted.key_time[of]) <= horizon_ms
    number = np.where(is_known, known.number[of], np.where(is_near, admitted.number[of], NONE))
    resolved = np.where(is_known, order, np.maximum(order, admitted.order[of]))
    found = np.flatnonzero(number != NONE)
    return Matches(feedback.take(pa.array(found)), number[found], resolved[found]), np.flatnonzero(number == NONE)


def late_schema(schema: RowSchema) -> pa.Schema:
    """Schema of late feedback: matched, but not a label, with the reason.

    `late_by_ms` is, `after_settlement`, how far its key time lies beyond the deadline; `outside_window`, how far its
    event time lies beyond the end of the window; `before_impression`, how far before the impression (negative).
    """
    return pa.schema(
        [
            *schema.feedback,
            *POSITION_FIELDS,
            pa.field("reason", pa.string(), nullable=False),
            pa.field("late_by_ms", pa.int64(), nullable=False),
            pa.field("impression_event_time_ms", pa.int64(), nullable=False),
            pa.field("deadline_ms", pa.int64(), nullable=False),
        ]
    )


class LabelsSet(NamedTuple):
    """Feedback rows that set a label, N in all: number of the impression, place in `RowSchema.feedback_tasks`, and key
    time of the impression."""

    number: np.ndarray
    task: np.ndarray
    shown: np.ndarray


class Joined(NamedTuple):
    """Outcome of feedback rows: labels, repeats of labels, or late rows (`late_schema`), `early` of which precede
    their impression."""

    labels: LabelsSet
    repeats: int
    early: int
    late: pa.RecordBatch


class Labels(NamedTuple):
    """Labels of N impressions for one task, (N,) bool each: applicable, positive, known; and unmet, for feedback
    whose condition did not come. What is positive applies and is known; what does not apply is not known.
    time: (N,) int64, the key time at which what is positive became so."""

    applicable: np.ndarray
    positive: np.ndarray
    known: np.ndarray
    unmet: np.ndarray
    time: np.ndarray


class LabelJoin:
    """Labels of numbered impressions.

    >>> join = LabelJoin(RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 1}]), lateness_ms=0)
    >>> join.append(event_time=np.array([100, 200]))
    >>> join.bits.mark(np.array([1]), 1)
    >>> join.labels(join.schema.groups[0], 0, 2)["ctr"].positive.tolist()
    [False, True]
    """

    def __init__(self, schema: RowSchema, lateness_ms: int, first: int = 0, early_ms: int = 0) -> None:
        self.schema, self._lateness, self._early = schema, lateness_ms, early_ms
        self._place = {task.name: i for i, task in enumerate(schema.tasks)}
        self._names = pa.array(schema.feedback_tasks, pa.string())
        self._windows = np.array([task.window_ms for task in schema.tasks] * 2)
        self._late_schema = late_schema(schema)
        self.nothing_late = empty_batch(self._late_schema)
        self.event_time = NumberedValues(np.int64, first)
        self.bits = Marks(np.min_scalar_type(2 ** len(self._names) - 1), first)
        self.times = {task.name: Marks(np.int64, first) for task in schema.tasks}
        self._conditions = {task.name: self._chain(task.name) for task in schema.tasks}

    def append(self, event_time: np.ndarray) -> None:
        """Admit impressions with these event times. None has a label yet."""
        self.event_time.append(event_time)
        for marks in self.marks:
            marks.append(np.zeros(len(event_time), marks.dtype))

    def join(self, matches: Matches, admitted_key: np.ndarray) -> Joined:
        """Take matched feedback, with the key time at which each row's impression was admitted, (N,)."""
        in_order = np.lexsort((matches.rows.column("order").to_numpy(), matches.resolved))
        feedback = matches.rows.take(pa.array(in_order))
        number, admitted_key = matches.number[in_order], admitted_key[in_order]
        task = pc.index_in(feedback.column("task"), value_set=self._names).to_numpy(zero_copy_only=False)
        window = self._windows[task]
        impression_time = self.event_time[number]
        deadline = admitted_key + window + self._lateness
        after = feedback.column("key_time_ms").to_numpy() - deadline
        delay = feedback.column("event_time_ms").to_numpy() - impression_time
        counts = (after <= 0) & (delay >= -self._early) & (delay <= window)

        # The first row that counts sets the bit of its (impression, task); whatever follows it is a repeat.
        _, pair = np.unique(number * len(self._names) + task, return_inverse=True)
        setter = np.full(len(number), len(number))
        setting = np.flatnonzero(counts)
        setter[pair[setting][::-1]] = setting[::-1]
        already = (self.bits[number].astype(np.uint64) >> task.astype(np.uint64)) & np.uint64(1) > 0
        repeat = already | (np.arange(len(number)) > setter[pair])
        sets = counts & ~repeat
        came = np.maximum(feedback.column("key_time_ms").to_numpy(), admitted_key)
        for place in np.unique(task[sets]).tolist():
            of = sets & (task == place)
            self.bits.mark(number[of], 1 << place)
            if place < len(self._place):
                self.times[self.schema.tasks[place].name].mark(number[of], came[of])

        late = np.flatnonzero(~counts & ~repeat)
        return Joined(
            labels=LabelsSet(number[sets], task[sets], admitted_key[sets]),
            repeats=int(repeat.sum()),
            early=int(((after <= 0) & (delay < -self._early) & ~repeat).sum()),
            late=self._late(feedback, late, after, delay, window, impression_time, deadline),
        )

    def _chain(self, task: str) -> list[str]:
        """A task with its condition, and the condition's."""
        given = self.schema.given.get(task)
        return [task, *([] if given is None else self._chain(given))]

    def became_positive(self, labels: LabelsSet) -> LabelEvents:
        """The labels that are positive, with those of their conditions, since `labels` were set."""
        events = [NO_LABELS]
        for name, chain in self._conditions.items():
            of_chain = np.flatnonzero(np.isin(labels.task, [self._place[each] for each in chain]))
            numbers, first = np.unique(labels.number[of_chain], return_index=True)
            shown = labels.shown[of_chain[first]]
            times = np.array([self.times[each][numbers] for each in chain]).reshape(len(chain), -1)
            bits = self.bits[numbers]
            positive = np.all([_bit(bits, self._place[each]) for each in chain], axis=0)
            here = np.flatnonzero(positive)
            place = np.full(len(here), self._place[name])
            events.append(LabelEvents(numbers[here], place, times[:, here].max(axis=0), shown[here]))
        return LabelEvents(*map(np.concatenate, zip(*events, strict=True)))

    def labels(self, group: SettlementGroup, start: int, stop: int) -> dict[str, Labels]:
        """Labels of the impressions [start, stop) for every task of `group`.

        Final once the group's deadline has passed: a condition's window is never longer than its task's.
        """
        return {task.name: self._labels(task.name, start, stop) for task in group.tasks}

    def drop(self, before: int) -> None:
        for values in (self.event_time, *self.marks):
            values.drop(before)

    @property
    def marks(self) -> list[Marks]:
        """Bits and times, which survive as base and deltas."""
        return [self.bits, *self.times.values()]

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in (self.event_time, *self.marks))

    def _labels(self, task: str, start: int, stop: int) -> Labels:
        place, bits = self._place[task], self.bits.view(start, stop)
        given = self.schema.tasks[place].given
        applicable, time = np.ones(len(bits), bool), self.times[task].view(start, stop)
        if given is not None:
            condition = self._labels(given, start, stop)
            applicable, time = condition.positive, np.maximum(time, condition.time)
        came = _bit(bits, place)
        positive = came & applicable
        known = positive | (applicable & ~_bit(bits, len(self._place) + place))
        return Labels(applicable, positive, known, came & ~applicable, time)

    def _late(self, feedback: pa.RecordBatch, late: np.ndarray, *measures: np.ndarray) -> pa.RecordBatch:
        if not len(late):
            return self.nothing_late
        after, delay, window, impression_time, deadline = (measure[late] for measure in measures)
        received = feedback.select(self._late_schema.names[:-4]).take(pa.array(late))
        reason = pa.array(LATE_REASONS).take(pa.array(np.where(after > 0, 0, np.where(delay < 0, 2, 1))))
        late_by = np.where(after > 0, after, np.where(delay < 0, delay, delay - window))
        columns = [*received.columns, reason, pa.array(late_by), pa.array(impression_time), pa.array(deadline)]
        return pa.RecordBatch.from_arrays(columns, schema=self._late_schema)


def _bit(bits: np.ndarray, place: int) -> np.ndarray:
    return ((bits >> bits.dtype.type(place)) & bits.dtype.type(1)).astype(bool)

"""Settlement: pending impressions, label join, windows, duplicates.

Time is key time, the merge's; W is the watermark, the largest key time seen. An impression with event time e admitted
at key k waits for group g until its deadline

    d_g = k + window_g + lateness

and is emitted for g once W > d_g, in the order (d_g, g, admission). A feedback row with key time kf and event time f is
the positive label of its task, with window w, or says that this label is unknown, iff

    e - early <= f <= e + w    and    kf <= d_g

Everything is decided by keys, nothing by where a chunk happens to end: chunks may be cut anywhere and the same rows
come out in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streaming.asof.features import NO_LABELS, AsOfState, ImpressionKeys, LabelEvents, NewEvents
from streaming.asof.forgotten import ForgottenId, RemovedCounts
from streaming.errors import BadInput, StreamingError
from streaming.evolution import schema_changes
from streaming.intake.merge import END_OF_TIME, NO_TIME, REFUSED_SCHEMA, MergedChunk, integers_of, merged_schema
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, LetterTally, counted_as, refuse_rows
from streaming.schema import POSITION_FIELDS, RowSchema
from streaming.settlement.admission import Verticals, placed, refuse_surplus, refuse_too_old
from streaming.settlement.config import SettlementConfig
from streaming.settlement.emission import DueRows, Emission
from streaming.settlement.id_index import without_repeats
from streaming.settlement.label_join import (
    AdmittedImpressions,
    Ids,
    KnownImpressions,
    LabelJoin,
    Matches,
    admitted_impressions,
    known_impressions,
    late_schema,
    match,
    resolve_ids,
)
from streaming.settlement.orphans import Orphans
from streaming.settlement.pending import SEGMENT_ROWS, RowLog, empty_batch
from streaming.settlement.state import SettlementState, held_together

__all__ = ["SettledRows", "Settlement", "SettlementConfig", "SettlementState", "late_schema"]

_NOTHING_REFUSED = empty_batch(REFUSED_SCHEMA)
_NO_LETTERS = empty_batch(DEAD_LETTER_SCHEMA)

OTHER_VERTICALS = "other verticals"


@dataclass(frozen=True)
class SettledRows:
    """Rows that one step settled.

    `batch` is in RowSchema.settled, `late` in `late_schema`, `dead` in DEAD_LETTER_SCHEMA. `more`: rows are due beyond
    `max_rows`. `whole`: the rows are a whole block, whose processes keep them; `batch` has some of their columns.
    """

    batch: pa.RecordBatch
    late: pa.RecordBatch
    dead: pa.RecordBatch
    watermark_ms: int
    more: bool
    whole: bool = False


class SharedAsOf(NamedTuple):
    """Part of one settlement in as-of features that several share: the keys of its own impressions, and, where they are
    stored with its state, the tables."""

    keys: ImpressionKeys
    tables: AsOfState | None


class _Joined(NamedTuple):
    """Impressions that are numbered and not admitted yet; labels that became positive, and what was left out."""

    rows: pa.RecordBatch
    key: np.ndarray
    hashes: np.ndarray
    labels: LabelEvents
    late: pa.RecordBatch
    refused: list[pa.RecordBatch]


class Settlement:
    """Joins feedback to impressions and emits each impression once per settlement group.

    >>> from streaming.settlement.pending import empty_batch
    >>> schema = RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 1}])
    >>> settlement = Settlement(schema)
    >>> row = dict(impression_id=7, event_time_ms=500, vertical="a", source_topic="ads", source_partition=0,
    ...            source_offset=0, source_row=0, key_time_ms=500, order=0)
    >>> chunk = MergedChunk(pa.RecordBatch.from_pylist([row], schema=merged_schema(schema, "impression")),
    ...                     empty_batch(merged_schema(schema, "feedback")), watermark_ms=500)
    >>> settlement.step(chunk).batch.num_rows, settlement.pending("ctr")
    (0, 1)
    >>> settlement.finish().batch["label_ctr"].to_pylist()
    [0]
    """

    def __init__(
        self,
        schema: RowSchema,
        config: SettlementConfig | None = None,
        *,
        spill: Path | None = None,
        verticals: Verticals | None = None,
        asof: SharedAsOf | None = None,
    ) -> None:
        """`spill` is the folder that `save` will use; segments that would fill the memory are stored there earlier.
        `verticals`: those that are let in; None: all. `asof`: as-of features that several settlements share; None: of
        its own.

        Raises BadInput when the horizon is too short, or there are more than 32 tasks.
        """
        self.schema, self.config = schema, config or SettlementConfig()
        self._horizon, self._lateness = self.config.horizon_ms(schema), self.config.lateness_ms
        if len(schema.tasks) > 32:
            raise BadInput(f"{len(schema.tasks)} tasks; one settlement joins up to 32, split the stream by tasks")
        self._row_schema = pa.schema([*schema.admitted, *POSITION_FIELDS])
        self._nothing_settled = empty_batch(schema.settled)

        self._spill = spill
        self._shares_asof = asof is not None
        self._asof: ImpressionKeys | None = None
        self._tables: AsOfState | None = None  # of as-of features, where they are stored with this state
        if asof is not None:
            self._asof, self._tables = asof
        elif schema.asof.features:
            self._tables = AsOfState(schema)
            (self._asof,) = self._tables.streams
        self._to_forget: list[tuple[ForgottenId, np.ndarray]] = []
        self.removed: dict[ForgottenId, RemovedCounts] = {}
        """Ids that were forgotten since this was opened."""
        self._disk_bytes = 0
        self._watermark = NO_TIME
        self._emission = Emission(schema, self._lateness)
        self._open_at(0, 0)
        self._counts: Counter[str] = Counter()
        self._verticals: Counter[str] = Counter()
        self.verticals = Verticals() if verticals is None else verticals
        self.letters = LetterTally()

    def _open_at(self, impression: int, feedback: int) -> None:
        self._pending = RowLog(self._row_schema, impression, readers=len(self.schema.groups))
        self._labels = LabelJoin(self.schema, self._lateness, impression, self.config.early_ms)
        self._orphans = Orphans(merged_schema(self.schema, "feedback"), self._horizon, feedback)
        self._pending.spill = self._orphans.rows.spill = self._spill
        if self._asof is not None:
            self._asof.start_at(impression)

    # What goes in

    def step(self, chunk: MergedChunk, max_rows: int | None = None, max_bytes: int | None = None) -> SettledRows:
        """Take the next chunk of the merged order; returns the rows it settles, as far as `Emission.emit` bounds them.

        Where `more` is true, `release` gives the rest (and so does the next step).
        """
        late, dead = self._take_in(chunk)
        return self._advance(late, dead, max_rows, max_bytes)

    def _take_in(self, chunk: MergedChunk) -> tuple[pa.RecordBatch, list[pa.RecordBatch]]:
        if self._watermark == END_OF_TIME:
            raise StreamingError(f"{len(chunk)} rows after the end of the stream; `finish` has closed every window")
        late, dead = [self._labels.nothing_late], [chunk.dead]
        for part in self._parts(chunk):
            for impressions, feedback in without_repeats(part, self._horizon):
                joined = self._join(impressions, feedback)
                columns = []
                if self._tables is not None:
                    columns = self._tables.advance(joined.rows, joined.key, joined.labels)
                self._append(joined, columns)
                late.append(joined.late)
                dead += joined.refused
        self._count(chunk)
        return pa.concat_batches(late), dead

    def _count(self, chunk: MergedChunk) -> None:
        before = Counter(chunk.dead["kind"].to_pylist())
        self._counts["impressions_read"] += chunk.impressions.num_rows + before["impression"]
        self._counts["feedback_read"] += chunk.feedback.num_rows + before["feedback"]
        self._watermark = max(self._watermark, chunk.watermark_ms)

    def _parts(self, chunk: MergedChunk) -> Iterator[MergedChunk]:
        """The chunk, cut where ids are forgotten, which is done between the parts."""
        rows, feedback = chunk.impressions, chunk.feedback
        while self._to_forget and self._to_forget[0][0].at_ms <= chunk.watermark_ms:
            at_ms = self._to_forget[0][0].at_ms
            i, j = (int(np.searchsorted(integers_of(part, "key_time_ms"), at_ms)) for part in (rows, feedback))
            yield replace(chunk, impressions=rows.slice(0, i), feedback=feedback.slice(0, j))
            rows, feedback = rows.slice(i), feedback.slice(j)
            self._forget_next()
        yield replace(chunk, impressions=rows, feedback=feedback)

    def _forget_next(self) -> None:
        assert self._tables is not None
        assert self._asof is not None
        id, keys = self._to_forget.pop(0)
        self.removed[id] = self._tables.forget_id(id, np.concatenate([keys, self._asof.found(id)]))
        self._asof.forget(id)

    def _forget_all(self) -> None:
        while self._to_forget:
            self._forget_next()

    def finish(self, max_rows: int | None = None, max_bytes: int | None = None) -> SettledRows:
        """End event time: every window closes, and unmatched feedback stays unmatched."""
        self._forget_all()
        self._watermark = END_OF_TIME
        return self._advance(self._labels.nothing_late, [], max_rows, max_bytes)

    def release(self, max_rows: int | None = None, max_bytes: int | None = None) -> SettledRows:
        """Emit due rows that `max_rows` or `max_bytes` held back."""
        return self._advance(self._labels.nothing_late, [], max_rows, max_bytes)

    def join(self, chunk: MergedChunk) -> NewEvents | None:
        """Join the next chunk's feedback and impressions; gives their events, if as-of features are made of them. An id
        may not recur in the chunk beyond the horizon then. `absorb` is next."""
        self._late, self._refused = [self._labels.nothing_late], [chunk.dead]
        events, self._joined = None, None
        for impressions, feedback in without_repeats(chunk, self._horizon):
            if self._joined is not None and self._asof is not None:
                raise StreamingError(
                    f"an id recurs beyond the horizon of {self._horizon} ms in one chunk; a bug in ExFM"
                )
            if self._joined is not None:
                self._append(self._joined, [])
            joined = self._joined = self._join(impressions, feedback)
            self._late.append(joined.late)
            self._refused += joined.refused
            if self._asof is not None:
                events = self._asof.take(joined.rows, joined.key, joined.labels)
        self._count(chunk)
        return events

    def absorb(self, asof: list[pa.Array]) -> SettledRows:
        """Admit what was joined, with its as-of features. No rows leave until they are asked for by number (`due`,
        `release_exactly`)."""
        assert self._joined is not None
        self._append(self._joined, asof)
        return self._left(self._nothing_settled, pa.concat_batches(self._late), self._refused, more=self.count_due > 0)

    def end(self) -> SettledRows:
        """End event time, like `finish`; no rows leave until they are asked for."""
        self._watermark = END_OF_TIME
        return self._left(self._nothing_settled, self._labels.nothing_late, [], more=self.count_due > 0)

    def due(self, max_rows: int) -> DueRows:
        """The next rows that leave, at most `max_rows`."""
        return self._emission.due(self._pending, self._labels, self._watermark, max_rows)

    @property
    def count_due(self) -> int:
        """Number of rows that are due, those included that leave for no group."""
        return self._emission.count_due(self._pending, self._watermark)

    def release_exactly(self, rows: int) -> SettledRows:
        """The next `rows` rows, of which `due` told."""
        batch = self._emission.release(self._pending, self._labels, self._watermark, rows)
        return self._left(batch, self._labels.nothing_late, [], more=self.count_due > 0)

    def _join(self, impressions: pa.RecordBatch, feedback: pa.RecordBatch) -> _Joined:
        """Number impressions and join feedback to them."""
        ids = resolve_ids(impressions, feedback)
        place, number = self._pending.find(ids.distinct, ids.hashes)
        known = known_impressions(ids, place, number, self._pending.key_time[number])
        chosen, admitted, refused = self._admit(impressions, ids, known)
        matches, unmatched = match(feedback, ids, known, admitted, self._horizon)
        matches = matches.with_more(self._claim(ids, admitted))
        key = integers_of(impressions, "key_time_ms")[chosen]
        is_new = matches.number >= self._pending.stop
        admitted_key = np.empty(len(is_new), np.int64)
        admitted_key[~is_new] = self._pending.key_time[matches.number[~is_new]]
        admitted_key[is_new] = key[matches.number[is_new] - self._pending.stop]
        joined = self._labels.join(matches, admitted_key)
        rows = impressions.take(pa.array(chosen)) if len(chosen) < impressions.num_rows else impressions
        positive = NO_LABELS if self._asof is None else self._labels.became_positive(joined.labels)
        self._orphans.add(feedback.take(pa.array(unmatched)), ids.hashes[ids.of_feedback[unmatched]])
        self._counts.update(matched_feedback=len(joined.labels.number), duplicate_feedback=joined.repeats)
        self._counts.update(late_feedback=joined.late.num_rows, early_feedback=joined.early)
        return _Joined(rows, key, ids.hashes[ids.of_impression[chosen]], positive, joined.late, refused)

    def _append(self, joined: _Joined, asof: list[pa.Array]) -> None:
        """Admit numbered impressions, with their as-of features."""
        rows = joined.rows
        columns = [*rows.select(self.schema.impression.names).columns, *asof]
        columns += rows.select([field.name for field in POSITION_FIELDS]).columns
        rows = pa.RecordBatch.from_arrays(columns, schema=self._row_schema)
        self._pending.append(rows, joined.key, joined.hashes)

    def _admit(
        self, impressions: pa.RecordBatch, ids: Ids, known: KnownImpressions
    ) -> tuple[np.ndarray, AdmittedImpressions, list[pa.RecordBatch]]:
        """Number the impressions that are not too old, of a vertical that is taken, and not known; returns their rows,
        them by id, and the refused ones. A vertical is known from its first impression on that is not too old, a
        duplicate or not."""
        key, event_time = integers_of(impressions, "key_time_ms"), integers_of(impressions, "event_time_ms")
        place = ids.of_impression
        too_old = event_time < key - self._horizon
        surplus = np.zeros(len(key), bool)
        surplus[~too_old] = self.verticals.refuse(impressions["vertical"].filter(pa.array(~too_old)))
        refused = too_old | surplus
        candidate = np.flatnonzero(~refused & (key - self._horizon > known.key_time[place]))
        first = np.empty(len(ids.distinct), np.int64)
        first[place[candidate][::-1]] = candidate[::-1]
        chosen = candidate[first[place[candidate]] == candidate]
        self._counts["duplicates_dropped"] += int(len(key) - refused.sum() - len(chosen))

        number = np.arange(self._pending.stop, self._pending.stop + len(chosen))
        self._labels.append(event_time[chosen])
        order = integers_of(impressions, "order")
        admitted = admitted_impressions(ids, place[chosen], number, key[chosen], order[chosen])
        old = refuse_too_old(impressions, too_old, self._horizon)
        return chosen, admitted, [*old, *refuse_surplus(impressions, surplus, self.verticals.most)]

    def _claim(self, ids: Ids, admitted: AdmittedImpressions) -> Matches:
        """The feedback that waited for the impressions admitted now."""
        new = admitted.ids
        query, rows = self._orphans.claim(ids.distinct.take(pa.array(new)), ids.hashes[new], admitted.key_time[new])
        return Matches(rows, admitted.number[new[query]], admitted.order[new[query]])

    # What comes out

    def _advance(self, late: pa.RecordBatch, dead: list[pa.RecordBatch], *most: int | None) -> SettledRows:
        batch, more = self._emission.emit(self._pending, self._labels, self._watermark, *most)
        return self._left(batch, late, dead, more=more)

    def _left(
        self, batch: pa.RecordBatch, late: pa.RecordBatch, dead: list[pa.RecordBatch], *, more: bool
    ) -> SettledRows:
        """Count what has left, and let go of it."""
        letters = self._letters(pa.concat_batches([_NOTHING_REFUSED, *dead]), self._expire_orphans())
        self.letters.add(letters)
        for counted in batch["vertical"].value_counts().to_pylist():
            self._verticals[counted_as(counted["values"], self._verticals, OTHER_VERTICALS)] += counted["counts"]
        self._forget()
        return SettledRows(batch, late, letters, self._watermark, more)

    def _letters(self, refused: pa.RecordBatch, expired: pa.RecordBatch) -> pa.RecordBatch:
        """Dead letters in the order (key time, refused before expired, merge order)."""
        if not refused.num_rows + expired.num_rows:
            return _NO_LETTERS
        both = pa.concat_batches([refused, expired])
        stage = np.repeat([0, 1], [refused.num_rows, expired.num_rows])
        in_order = np.lexsort((integers_of(both, "order"), stage, integers_of(both, "key_time_ms")))
        return both.select(DEAD_LETTER_SCHEMA.names).take(pa.array(in_order))

    def _expire_orphans(self) -> pa.RecordBatch:
        """Feedback that waited for its impression longer than the horizon, refused at the end of that wait."""
        rows = self._orphans.expire(self._watermark)
        if not rows.num_rows:
            return _NOTHING_REFUSED
        self._counts["unmatched_feedback"] += rows.num_rows
        names = [*self.schema.feedback.names, *(f.name for f in POSITION_FIELDS)]
        detail = f"no impression of this id within {self._horizon} ms of event time"
        letters = refuse_rows(rows.select(names), "feedback", "unknown_impression", [detail] * rows.num_rows)
        return placed(letters, integers_of(rows, "key_time_ms") + self._horizon, integers_of(rows, "order"))

    def _forget(self) -> None:
        """Let go of features that were emitted for every group, and of ids beyond the horizon."""
        emitted = min(self._emission.cursors)
        self._pending.slim(emitted)
        beyond = min(emitted, self._pending.key_time.search(self._watermark - self._horizon))
        self._pending.drop(beyond)
        self._labels.drop(beyond)
        if self._asof is not None:
            self._asof.drop(beyond)

    def forget(self, id: ForgottenId, shown: Iterable[pa.RecordBatch] = ()) -> None:
        """Let as-of features forget an id before the first row from `id.at_ms` on. `shown`: rows with the id that have
        left, from which its crosses are known.

        Of a time that has passed, the tables hold nothing any more: labels that come of rows before it are left out. A
        stream that has ended forgets at once, at the end of time."""
        if self._asof is None or id.column not in self._asof.reads:
            return
        numbers = self._waiting_numbers(self._pending.key_time.search(id.at_ms))
        self._asof.expect(id, ((self._pending.take(each, self._asof.reads), each) for each in numbers))
        if id.at_ms <= self._watermark and id.at_ms < END_OF_TIME:
            self._asof.forget(id)
        elif self._tables is not None and not self._shares_asof:
            self._to_forget.append((id, self._tables.keys_with(id, shown)))
            self._to_forget.sort(key=lambda each: (each[0].at_ms, each[0].number))
            if self._watermark == END_OF_TIME:
                self._forget_all()

    def _waiting_numbers(self, stop: int) -> Iterator[np.ndarray]:
        """Numbers below `stop` of impressions that have not left for every group, a segment's at a time."""
        waits = max(min(self._emission.cursors), self._pending.first)
        return (np.arange(at, min(at + SEGMENT_ROWS, stop)) for at in range(waits, stop, SEGMENT_ROWS))

    def set_back(self, to_ms: int) -> pa.RecordBatch:
        """Move event time back to `to_ms`, after rows from the future had moved it ahead. Whatever waits came with
        them: it is returned as dead letters; a row that has settled for one group is not applicable for the others.

        Raises BadInput where `to_ms` is within the horizon: rows that were rightly admitted may wait then.
        """
        if to_ms >= self._watermark - self._horizon:
            raise BadInput(f"{to_ms} is not more than the horizon of {self._horizon} ms before {self._watermark}")
        emission, stop = self._emission, self._pending.stop
        numbers = np.arange(settled := max(emission.cursors), stop)
        waiting, keys = self._pending.take(numbers), self._pending.key_time[numbers]
        details = ["it waited when event time was set back"] * waiting.num_rows
        refused = placed(refuse_rows(waiting, "impression", "in_the_future", details), keys, numbers)
        for group, cursor in enumerate(emission.cursors):
            emission.not_applicable[group] += settled - cursor
        emission.cursors = [stop] * len(emission.cursors)
        self._watermark = END_OF_TIME
        letters = self._letters(refused, self._expire_orphans())
        self._watermark = to_ms
        self.letters.add(letters)
        self._open_at(stop, self._orphans.rows.stop)
        if self._tables is not None:
            self._tables.set_back(to_ms)
        return letters

    # How it stands

    def pending(self, group: str) -> int:
        """Number of impressions that wait to settle for `group`."""
        return self._pending.stop - self._emission.cursors[[g.name for g in self.schema.groups].index(group)]

    @property
    def watermark_ms(self) -> int:
        return self._watermark

    @property
    def first_wait_s(self) -> tuple[float, float]:
        """Wait of the first impression of a stream of which nothing has settled: its total and its elapsed part, in
        seconds of event time."""
        wait_ms = self.schema.groups[0].window_ms + self._lateness
        key_time, passed_ms = self._pending.key_time, 0
        if key_time.stop > key_time.first:
            passed_ms = self._watermark - int(key_time.view(key_time.first, key_time.first + 1)[0])
        return wait_ms / 1000, min(wait_ms, max(0, passed_ms)) / 1000

    @property
    def waiting_feedback(self) -> int:
        """Feedback rows whose impression has not come yet."""
        return len(self._orphans)

    @property
    def state_bytes(self) -> int:
        """Bytes of memory for pending impressions, the id index, waiting feedback, and as-of features of its own."""
        held = 0 if self._tables is None or self._shares_asof else self._tables.nbytes
        return held + sum(part.nbytes for part in (self._pending, self._labels, self._orphans))

    @property
    def disk_bytes(self) -> int:
        """Bytes of the files that the last save needs, including those of retained states."""
        return self._disk_bytes

    def counters(self) -> dict[str, Any]:
        """Counts of every row's outcome. For every group g, and for feedback:

        impressions_read = settled[g] + not_applicable[g] + pending[g] + duplicates_dropped + dead_letters.impression
        feedback_read = matched + duplicate + late + waiting_feedback + dead_letters.feedback (unmatched among them)

        By task, `unknown_labels` and `unmet_conditions` (Emission.by_task). `verticals`: settled rows by vertical, from
        the run's start. `early_feedback`: late rows from before their impression, if any.
        """
        names = [group.name for group in self.schema.groups]
        counts = ("impressions_read", "duplicates_dropped", "feedback_read", "matched_feedback")
        late = ("duplicate_feedback", "late_feedback", "unmatched_feedback")
        early = ("early_feedback",) if self._counts["early_feedback"] else ()
        return {
            "settled": dict(zip(names, self._emission.settled, strict=True)),
            "not_applicable": dict(zip(names, self._emission.not_applicable, strict=True)),
            "pending": {name: self.pending(name) for name in names},
            **self._emission.by_task,
            **{name: self._counts[name] for name in (*counts, *late, *early)},
            "waiting_feedback": self.waiting_feedback,
            "verticals": dict(self._verticals),
            "dead_letters": {kind: dict(reasons) for kind, reasons in self.letters.reasons.items()},
        }

    # What survives

    def state(self) -> SettlementState:
        """Complete state, restored exactly. What is stored already is read from there, for as long as it is kept."""
        return SettlementState(
            pending=self._pending.state(),
            labels=[marks.state() for marks in self._labels.marks],
            asof=None if self._tables is None else self._tables.state(),
            orphans=self._orphans.rows.state(),
            claimed=self._orphans.claimed.state(),
            meta={
                "schema": self.schema.model_dump(mode="json"),
                "config": self.config.model_dump(mode="json"),
                "watermark_ms": self._watermark,
                "cursors": list(self._emission.cursors),
                "settled": list(self._emission.settled),
                "not_applicable": list(self._emission.not_applicable),
                **self._emission.by_task,
                "counts": dict(self._counts),
                "dead_letters": {kind: dict(reasons) for kind, reasons in self.letters.reasons.items()},
                "examples": {kind: dict(examples) for kind, examples in self.letters.examples.items()},
                "verticals": dict(self._verticals),
                "known_verticals": self.verticals.known,
            },
        )

    def restore(self, state: SettlementState) -> None:
        """Continue from `state` on a new Settlement; columns added since are null. Raises BadInput for another
        config, or a schema that no rule allows (streaming/evolution.py)."""
        meta, mine = state.meta, self.config
        schema_changes(RowSchema.model_validate(meta["schema"]), self.schema)
        if SettlementConfig.model_validate(meta["config"]) != mine:
            raise BadInput(
                f"the settlement state was written under config {meta['config']}, this run has {mine.model_dump()}; "
                "resume with the config it was written under, or start a new run"
            )
        self._open_at(state.pending.first, state.orphans.first)
        self._watermark = meta["watermark_ms"]
        self._emission.restore(meta["cursors"], meta["settled"], meta["not_applicable"], meta)
        self._counts = Counter(meta["counts"])
        self._verticals = Counter(meta["verticals"])
        self.letters.restore(meta["dead_letters"], meta["examples"])
        self._labels.event_time = self._pending.restore(state.pending)
        for marks, segments in zip(self._labels.marks, state.labels, strict=True):
            marks.restore(segments, self._pending.stop)
        waits = max(min(self._emission.cursors), self._pending.first)
        if self._tables is not None and state.asof is not None:
            self._tables.restore(state.asof)
        if self._asof is not None:
            waiting = (self._pending.take(each, self._asof.reads) for each in self._waiting_numbers(self._pending.stop))
            self._asof.restore(self._pending.first, waits, waiting)
        self._pending.slim(min(self._emission.cursors))
        self._orphans.restore(state.orphans, state.claimed)
        self.verticals.restore(meta["known_verticals"])

    def save(self, directory: Path, name: str, keep: Collection[str] = (), extra: Any = None) -> None:
        """Store the state as `name` in `directory`, with `extra` (JSON); only `name` and `keep` can be loaded
        afterwards.

        What is stored already is not written again, and linked from where it was loaded. A save that fails or is killed
        leaves earlier states as they were. Raises DiskFull, and StreamingError when a segment has gone.
        """
        state = self.state()
        self._disk_bytes = state.save(directory, name, keep, extra)
        self._pending.stored(state.pending, directory)
        for marks, segments in zip(self._labels.marks, state.labels, strict=True):
            marks.stored(segments, directory)
        if self._tables is not None and state.asof is not None:
            self._tables.stored(state.asof, directory)
        self._orphans.stored(state.orphans, state.claimed, directory)

    def load(self, directory: Path, name: str) -> Any:
        """Continue on a new Settlement from the state saved as `name`; returns its `extra`."""
        state, extra = SettlementState.load(directory, name)
        with held_together(directory, name):
            self.restore(state)
        return extra

"""The profile of a recorded file: times, labels and verticals of every row, and every column of rows from its begin,
middle and end.

Rows are read by the code that plays the file, so that what is found here is what its worker would find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.config.sections import Recorded
from pipelines.data.findings import Finding, Rules
from pipelines.data.profile.profile import LabelProfile, Profile, Times, count_refused, count_verticals, match_feedback
from streaming.errors import BadInput
from streaming.messages.limits import Limits
from streaming.messages.times import is_written_time
from streaming.messages.validation import RowRules, conform, without_rows
from streaming.schema import RowSchema
from streaming.sources.recorded import RecordedStream
from streaming.sources.tables.copies import Copies
from streaming.sources.timed_parquet import TimedParquet

RULES = Rules("""
stop  source.unreadable  source
    {problem}
note  source.prepared  source.path
    {said}
stop  source.time  source.event_time: {column}
    {problem}
stop  source.column  rows.columns.{column}
    row {row:,}: {problem} ({unfit:,} of {rows:,} rows)
stop  source.label  source.labels.{task}
    {problem}
stop  source.feedback  source.feedback
    {problem}
""")

MOST_ROWS = 30_000_000
"""Rows of the longest file that is looked at whole: of a longer one, times, labels and verticals are those of the rows
that are looked at."""
CHUNK_ROWS = 131_072
ANY_ORDER_S = 1e12


def profile_recorded(
    source: Recorded, schema: RowSchema, wanted: int, copies: Copies, limits: Limits = Limits()
) -> tuple[Profile | None, list[Finding]]:
    """The profile of a source, at most `wanted` rows of it in every column, and what kept the file from being read as
    the source says. `limits`: what rows may hold besides. `copies`: of files that cannot be played as they lie."""
    try:
        opened = source.opened(schema, copies)
    except BadInput as error:
        return None, [RULES("source.unreadable", problem=problem) for problem in str(error).splitlines()]
    reader = _Reader(opened, source, schema, limits)
    reader.findings += [RULES("source.prepared", said=text) for text in opened.said]
    reader.look_at_rows(wanted)
    if reader.stream.rows <= MOST_ROWS:
        reader.look_along()
    reader.look_at_feedback()
    return reader.profile, reader.findings


class _Reader:
    """Fills one profile. What is wrong goes into `findings`, each problem once."""

    def __init__(self, stream: RecordedStream, source: Recorded, schema: RowSchema, limits: Limits) -> None:
        self.stream, self._source, self._schema, self._limits = stream, source, schema, limits
        self._types = pq.ParquetFile(stream.path).schema_arrow
        self.findings: list[Finding] = []
        self._unfit = Counter[str]()
        origin = source.written_path or source.path
        self.profile = Profile(origin, stream.rows, 0, False, schema.impression.empty_table())

    def _problem(self, id_: str, **values: Any) -> None:
        finding = RULES(id_, **values)
        if finding.where not in {earlier.where for earlier in self.findings}:
            self.findings.append(finding)

    # --- rows from begin, middle and end ---------------------------------------------------------------------------

    def look_at_rows(self, wanted: int) -> None:
        profile, rules = self.profile, RowRules("impression", self._schema, limits=self._limits)
        good: list[pa.RecordBatch] = []
        named: list[pa.Table] = []
        labels = {task: LabelProfile(task) for task in self._source.labels}
        times: list[np.ndarray] = []
        for first_row, table, time_N in self._pieces(wanted):
            seen = self.stream.named(table, time_N, first_row)
            named.append(seen)
            times.append(time_N)
            profile.looked_at += table.num_rows
            if (batch := self._conform(seen, first_row)) is not None:
                refusals = rules.check(batch)
                count_refused(profile.refused, refusals.values())
                good.append(without_rows(batch, refusals))
            self._look_at_labels(labels, table, time_N, first_row)
            count_verticals(profile.verticals, seen["vertical"])
        if named:
            whole = pa.concat_tables(named)
            profile.look_at_columns(whole, self._unfit)
            profile.time = self._times(np.concatenate(times))
        profile.labels = labels
        profile.batch = pa.Table.from_batches(good, self._schema.impression)
        profile.whole = profile.looked_at == profile.rows

    def _pieces(self, wanted: int) -> Iterator[tuple[int, pa.Table, np.ndarray]]:
        """A third of the rows each from begin, middle and end; all of a file that has no more."""
        rows = self.stream.rows
        each = wanted // 3
        places = [(0, rows)] if rows <= wanted else [(at, each) for at in (0, (rows - each) // 2, rows - each)]
        for first_row, count in places:
            read = self.stream.read(min(CHUNK_ROWS, count), first_row)
            try:
                while count > 0 and (piece := next(read, None)) is not None:
                    table = piece[0].slice(0, count)
                    yield first_row, table, piece[1][:count]
                    first_row, count = first_row + table.num_rows, count - table.num_rows
            except BadInput as error:
                self._problem("source.time", column=self._source.event_time, problem=error)

    def _conform(self, seen: pa.Table, first_row: int) -> pa.RecordBatch | None:
        """In the schema's types, column by column, so that each that cannot be is found."""
        columns = []
        for place, field in enumerate(self._schema.impression):
            alone = pa.table([seen.column(place)], names=[field.name])
            batch, refusals = conform(alone, pa.schema([field]))
            columns.append(batch.column(0))
            self._unfit[field.name] += len(refusals)
            if refusals:
                row = min(refusals)
                values = {"row": first_row + row, "problem": refusals[row].detail}
                self._problem("source.column", column=field.name, unfit=len(refusals), rows=len(alone), **values)
        if any(finding.id == "source.column" for finding in self.findings):
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema.impression)

    # --- every row, of few columns -----------------------------------------------------------------------------------

    def look_along(self) -> None:
        """Times and their order, labels and verticals of the whole file."""
        source, profile, of = self._source, self.profile, self.stream.found
        columns = [of.event_time]
        vertical = source.vertical if source.vertical_value is None else None
        columns += [vertical] if vertical is not None else []
        for label in source.labels.values():
            columns += [n for n in (label.column, label.delay_column, label.time_column) if n is not None]
        for tolerance_s in (source.out_of_order_s, ANY_ORDER_S):
            file = TimedParquet(of.path, columns, of.event_time, of.unit, tolerance_s, source.event_time_zone)
            labels = {task: LabelProfile(task) for task in source.labels}
            verticals = Counter[str]()
            lowest, highest, first_row = [], [], 0
            try:
                for table, time_N in file.read(CHUNK_ROWS):
                    lowest.append(time_N.min())
                    highest.append(time_N.max())
                    if vertical is not None:
                        count_verticals(verticals, table[vertical])
                    self._look_at_labels(labels, table, time_N, first_row)
                    first_row += table.num_rows
            except BadInput as error:
                self._problem("source.time", column=source.event_time, problem=error)
                continue
            if vertical is None:
                verticals[str(source.vertical_value)] = first_row
            profile.time = self._times(np.array([min(lowest), max(highest)]))
            profile.labels, profile.verticals, profile.whole = labels, verticals, True
            return

    def _look_at_labels(
        self, labels: dict[str, LabelProfile], table: pa.Table, time_N: np.ndarray, first_row: int
    ) -> None:
        for task, seen in labels.items():
            try:
                rows, event_ms = self.stream.positives(task, table, time_N, first_row)
            except BadInput as error:
                self._problem("source.label", task=task, problem=error)
                continue
            if (given := self._schema.given.get(task)) in labels:
                with suppress(BadInput):  # said of that task
                    met, _ = self.stream.positives(str(given), table, time_N, first_row)
                    seen.unmet += len(np.setdiff1d(rows, met))
            seen.rows += table.num_rows
            seen.positives += len(rows)
            label = self._source.labels[task]
            seen.rule = label.rule
            seen.between += label.between(table[label.column].combine_chunks())
            seen.unknown += len(self.stream.unknown(task, table))
            seen.note_delays(event_ms - time_N[rows])

    def _times(self, time_N: np.ndarray) -> Times:
        kind = self._types.field(self.stream.found.event_time).type
        unit = None if is_written_time(kind) else self.stream.found.unit
        return Times(int(time_N.min()), int(time_N.max()), unit)

    # --- feedback in a file of its own ------------------------------------------------------------------------------

    def look_at_feedback(self) -> None:
        names, of = self._source.feedback, self.stream.found_feedback
        if names is None or of is None:
            return
        columns = [names.impression_id, names.event_time, names.task]
        tolerance_s, zone = self._source.out_of_order_s, self._source.event_time_zone
        file = TimedParquet(of.path, columns, of.event_time, of.unit, tolerance_s, zone)
        self.profile.labels = match_feedback(self.profile, self._schema, self._feedback(file, columns))

    def _feedback(self, file: TimedParquet, columns: list[str]) -> Iterator[pa.RecordBatch]:
        rules, schema = RowRules("feedback", self._schema), self._schema.feedback
        wanted: Any = [columns[0], None, columns[2]]
        try:
            for table, time_N in file.read(CHUNK_ROWS):
                arrays = [pa.array(time_N) if name is None else table[name] for name in wanted]
                batch, wrong = conform(pa.table(arrays, names=schema.names), schema)
                if wrong:
                    self._problem("source.feedback", problem=f"{file.path}: {wrong[min(wrong)].detail}")
                    return
                refusals = rules.check(batch)
                self.profile.feedback_looked_at += batch.num_rows
                count_refused(self.profile.feedback_refused, refusals.values())
                yield without_rows(batch, refusals)
        except BadInput as error:
            self._problem("source.feedback", problem=error)

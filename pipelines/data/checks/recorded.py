"""A recorded file as a sample: times, labels and verticals of every row, and every column of rows from its begin,
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
from pipelines.data.checks.sample import (
    LabelSeen,
    Sample,
    TimeSeen,
    count_refused,
    count_verticals,
    match_feedback,
)
from pipelines.data.profile.column_seen import ColumnSeen
from pipelines.data.profile.finding import Finding, note, stop
from streaming.errors import BadInput
from streaming.messages.limits import Limits
from streaming.messages.times import is_written_time
from streaming.messages.validation import RowRules, conform, without_rows
from streaming.schema import RowSchema
from streaming.sources.recorded import RecordedStream
from streaming.sources.tables.copies import Copies
from streaming.sources.timed_parquet import TimedParquet

MOST_ROWS = 30_000_000
"""Of a longer file, times, labels and verticals are those of the rows that are looked at."""
CHUNK_ROWS = 131_072
ANY_ORDER_S = 1e12


def sample_file(
    source: Recorded, schema: RowSchema, wanted: int, copies: Copies, limits: Limits = Limits()
) -> tuple[Sample | None, list[Finding]]:
    """A sample of at most `wanted` rows, and what kept the file from being read as the source says. `limits`: what rows
    may hold besides. `copies`: of files that cannot be played as they lie."""
    try:
        found = source.opened(schema, copies)
    except BadInput as error:
        return None, [stop("source", problem) for problem in str(error).splitlines()]
    reader = _Reader(found, source, schema, limits)
    reader.findings += [note("source.path", text) for text in found.said]
    reader.look_at_rows(wanted)
    if reader.stream.rows <= MOST_ROWS:
        reader.look_along()
    reader.look_at_feedback()
    return reader.sample, reader.findings


class _Reader:
    """Fills one sample. What is wrong goes into `findings`, each problem once."""

    def __init__(self, found: RecordedStream, source: Recorded, schema: RowSchema, limits: Limits) -> None:
        self._source, self._schema, self._limits = source, schema, limits
        self.stream, self._found, self._feedback_found = found, found.found, found.found_feedback
        self._types = pq.ParquetFile(found.path).schema_arrow
        self.findings: list[Finding] = []
        self._unfit = Counter[str]()
        self.sample = Sample(
            source.written_path or source.path, self.stream.rows, 0, False, schema.impression.empty_table()
        )

    def _problem(self, where: str, error: BadInput) -> None:
        if where not in {finding.where for finding in self.findings}:
            self.findings.append(stop(where, str(error)))

    # --- rows from begin, middle and end ---------------------------------------------------------------------------

    def look_at_rows(self, wanted: int) -> None:
        sample, rules = self.sample, RowRules("impression", self._schema, limits=self._limits)
        good: list[pa.RecordBatch] = []
        named: list[pa.Table] = []
        labels = {task: LabelSeen(task) for task in self._source.labels}
        times: list[np.ndarray] = []
        for first_row, table, time_N in self._pieces(wanted):
            seen = self.stream.named(table, time_N, first_row)
            named.append(seen)
            times.append(time_N)
            sample.looked_at += table.num_rows
            if (batch := self._conform(seen, first_row)) is not None:
                refusals = rules.check(batch)
                count_refused(sample.refused, refusals.values())
                good.append(without_rows(batch, refusals))
            self._look_at_labels(labels, table, time_N, first_row)
            count_verticals(sample.verticals, seen["vertical"])
        if named:
            whole = pa.concat_tables(named)
            sample.columns = [ColumnSeen.of(name, whole[name]) for name in whole.column_names]
            sample.time = self._time_seen(np.concatenate(times))
        sample.count_refused_values()
        for column in sample.columns:
            column.refused += self._unfit[column.name]
        sample.labels = labels
        sample.batch = pa.Table.from_batches(good, self._schema.impression)
        sample.whole = sample.looked_at == sample.rows

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
                self._problem(f"source.event_time: {self._source.event_time}", error)

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
                self._problem(
                    f"rows.columns.{field.name}",
                    BadInput(
                        f"row {first_row + row:,}: {refusals[row].detail} ({len(refusals):,} of {len(alone):,} rows)"
                    ),
                )
        if any(finding.where.startswith("rows.columns") for finding in self.findings):
            return None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema.impression)

    # --- every row, of few columns -----------------------------------------------------------------------------------

    def look_along(self) -> None:
        """Times and their order, labels and verticals of the whole file."""
        source, sample = self._source, self.sample
        found = self._found
        columns = [found.event_time]
        vertical = source.vertical if source.vertical_value is None else None
        columns += [vertical] if vertical is not None else []
        for label in source.labels.values():
            columns += [n for n in (label.column, label.delay_column, label.time_column) if n is not None]
        for tolerance_s in (source.out_of_order_s, ANY_ORDER_S):
            file = TimedParquet(found.path, columns, found.event_time, found.unit, tolerance_s, source.event_time_zone)
            labels = {task: LabelSeen(task) for task in source.labels}
            verticals = type(sample.verticals)()
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
                self._problem(f"source.event_time: {source.event_time}", error)
                continue
            if vertical is None:
                verticals[str(source.vertical_value)] = first_row
            sample.time = self._time_seen(np.array([min(lowest), max(highest)]))
            sample.labels, sample.verticals, sample.whole = labels, verticals, True
            return

    def _look_at_labels(
        self, labels: dict[str, LabelSeen], table: pa.Table, time_N: np.ndarray, first_row: int
    ) -> None:
        for task, seen in labels.items():
            try:
                rows, event_ms = self.stream.positives(task, table, time_N, first_row)
            except BadInput as error:
                self._problem(f"source.labels.{task}", error)
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

    def _time_seen(self, time_N: np.ndarray) -> TimeSeen:
        kind = self._types.field(self._found.event_time).type
        unit = None if is_written_time(kind) else self._found.unit
        return TimeSeen(int(time_N.min()), int(time_N.max()), unit)

    # --- feedback in a file of its own ------------------------------------------------------------------------------

    def look_at_feedback(self) -> None:
        names = self._source.feedback
        found = self._feedback_found
        if names is None or found is None:
            return
        columns = [names.impression_id, names.event_time, names.task]
        tolerance_s, zone = self._source.out_of_order_s, self._source.event_time_zone
        file = TimedParquet(found.path, columns, found.event_time, found.unit, tolerance_s, zone)
        self.sample.labels = match_feedback(self.sample, self._schema, self._feedback(file, columns))

    def _feedback(self, file: TimedParquet, columns: list[str]) -> Iterator[pa.RecordBatch]:
        rules, schema = RowRules("feedback", self._schema), self._schema.feedback
        wanted: Any = [columns[0], None, columns[2]]
        try:
            for table, time_N in file.read(CHUNK_ROWS):
                arrays = [pa.array(time_N) if name is None else table[name] for name in wanted]
                batch, wrong = conform(pa.table(arrays, names=schema.names), schema)
                if wrong:
                    detail = f"{file.path}: {wrong[min(wrong)].detail}"
                    self._problem("source.feedback", BadInput(detail))
                    return
                refusals = rules.check(batch)
                self.sample.feedback_looked_at += batch.num_rows
                count_refused(self.sample.feedback_refused, refusals.values())
                yield without_rows(batch, refusals)
        except BadInput as error:
            self._problem("source.feedback", error)

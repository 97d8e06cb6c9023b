"""A recorded file, played as impressions and feedback, so that history takes the same path as live data.

Labels may be columns of the impressions' file (feedback follows after its delay, zero where none is recorded), or
feedback has a file of its own. Files are read a piece at a time, in order of event time: a Parquet file in that order
as it lies, any other one as a copy that is made once (streaming/sources/tables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, model_validator

from streaming.errors import BadInput
from streaming.messages.times import Unit, needs_zone
from streaming.messages.validation import conform, convertible, declarable
from streaming.schema import UNKNOWN, RowSchema, Zone
from streaming.sources.chunk import Chunk, HeldRows, PlayedStream
from streaming.sources.label_column import FeedbackFile, LabelColumn
from streaming.sources.tables.copies import LOCAL_TIME, Copies, PreparedFile, Reading
from streaming.sources.timed_parquet import TimedParquet


class RecordedConfig(BaseModel):
    """Meaning of the columns of a recorded file.

    An integer vertical is named by its digits (category 8 is vertical `8`). Units apply to integer and float columns;
    timestamps, dates and ISO 8601 texts need none, and are of `event_time_zone` where they have no offset. In files of
    text, columns that are declared as text, and the vertical, are read as they are written: id 007 stays 007.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    impression_id: str | None = Field(
        default=None, description="the column that holds the ids; null: the rows are numbered"
    )
    event_time: str | None = Field(
        default="event_time_ms",
        description="the column that holds the time; null: there is none, rows are a second apart in their order",
    )
    event_time_unit: Unit = Field(default="ms", description="its unit, where it is a number")
    event_time_zone: Zone | None = Field(
        default=None,
        description="the IANA zone, such as Europe/Berlin, of times that are texts, timestamps or dates without an "
        "offset, those of labels and of a feedback file, too; null: UTC",
    )
    event_time_form: str | None = Field(
        default=None,
        description="how times are written that are no ISO 8601, as strptime has it: %y%m%d%H of 14102100, "
        "%d/%m/%Y %H:%M; null: they are numbers, timestamps, dates or ISO 8601",
    )
    header: bool | None = Field(
        default=None,
        description="of CSV and TSV: whether the first line names the columns; null: found out. Without names they are "
        "column0, column1 …, with zeros in front where there are more than ten",
    )
    encoding: str | None = Field(
        default=None,
        description="of CSV and TSV: how characters are written, `latin-1` or `utf-16`; null: UTF-8",
    )
    vertical: str | None = Field(default="vertical", description="the column that holds the vertical")
    vertical_value: str | None = Field(default=None, description="one vertical for all rows, instead of a column")
    columns: dict[str, str] = Field(
        default_factory=dict, description="the file's name of each schema column that is named otherwise there"
    )
    labels: dict[str, LabelColumn] = Field(
        default_factory=dict, description="by task, where its label is; empty where there is a feedback file"
    )
    feedback: FeedbackFile | None = Field(default=None, description="a file of feedback, instead of labels in columns")
    out_of_order_s: float = Field(
        default=0.0, ge=0, description="how far a row's time may lie behind the latest one before it"
    )

    @model_validator(mode="after")
    def _one_source_of_labels(self) -> RecordedConfig:
        if bool(self.labels) == (self.feedback is not None):
            raise ValueError("give either `labels` (columns of the file) or `feedback` (a file of its own)")
        if self.feedback is not None and self.impression_id is None:
            raise ValueError("a feedback file refers to impressions: name their `impression_id` column")
        if self.event_time_form is not None and self.event_time is None:
            raise ValueError("event_time_form says how the column event_time is written: name that, too")
        if self.vertical is None and self.vertical_value is None:
            raise ValueError("give `vertical` (a column) or `vertical_value` (one for all rows)")
        return self


def reading_of(config: RecordedConfig, schema: RowSchema) -> Reading:
    """Reading settings of the source's file, from its config."""
    declared: dict[str, str] = {config.columns.get(c.name, c.name): c.type for c in schema.columns}
    if config.impression_id is not None:
        declared[config.impression_id] = schema.impression_id
    if config.vertical is not None and config.vertical_value is None:
        declared[config.vertical] = "string"
    if config.event_time is not None:  # a feature or not, it is read as the time that it is
        declared.pop(config.event_time, None)
    if config.event_time_zone is not None:
        times = [config.event_time, *(label.time_column for label in config.labels.values())]
        declared |= {name: LOCAL_TIME for name in times if name is not None}
    return Reading(
        config.event_time,
        config.event_time_unit,
        config.event_time_form,
        round(config.out_of_order_s * 1000),
        config.header,
        tuple(sorted((name, kind) for name, kind in declared.items() if not kind.startswith("list"))),
        config.encoding,
        config.event_time_zone,
    )


def reading_of_feedback(config: RecordedConfig, schema: RowSchema) -> Reading:
    """Reading settings of the file of feedback, from the source's config."""
    feedback = config.feedback
    assert feedback is not None
    declared = [(feedback.impression_id, str(schema.impression_id)), (feedback.task, "string")]
    if config.event_time_zone is not None:
        declared.append((feedback.event_time, LOCAL_TIME))
    return Reading(
        feedback.event_time,
        feedback.event_time_unit,
        tolerance_ms=round(config.out_of_order_s * 1000),
        declared=tuple(declared),
        encoding=config.encoding,
        zone=config.event_time_zone,
    )


class RecordedStream(PlayedStream):
    """The file at `path`, played in the shape of `schema`. Any form of file is taken with `copies`, where what is no
    Parquet file in order of time is kept as one; without them only such a file.

    Raises BadInput, at once, for a file that is absent, empty or cannot be read, a missing column or one of the wrong
    type, a label without a task; and while playing for rows out of order. Values are not judged here: a row that breaks
    the schema's rules is passed on and becomes a dead letter.
    """

    def __init__(
        self, path: str | Path, config: RecordedConfig, schema: RowSchema, copies: Copies | None = None
    ) -> None:
        self.config, self.schema, self._origin = config, schema, path
        tasks = [task.name for task in schema.tasks]
        if strange := [task for task in config.labels if task not in tasks]:
            raise BadInput(f"labels name task {', '.join(strange)}; the schema has {', '.join(tasks)}")
        names = {column.name: config.columns.get(column.name, column.name) for column in schema.columns}
        if strange := sorted(set(config.columns) - set(names)):
            raise BadInput(f"columns name {', '.join(strange)}; the schema has {', '.join(names)}")
        self._names = names
        self.found = _found(path, reading_of(config, schema), copies)
        needed = [*names.values(), self.found.event_time]
        needed += [name for name in (config.impression_id, self._vertical_column) if name is not None]
        for label in config.labels.values():
            needed += [name for name in (label.column, label.delay_column, label.time_column) if name is not None]
        self._file = self._timed(self.found, needed)
        self.found_feedback: PreparedFile | None = None
        self._feedback_file: TimedParquet | None = None
        if (feedback := config.feedback) is not None:
            prepared = self.found_feedback = _found(feedback.path, reading_of_feedback(config, schema), copies)
            needed = [feedback.impression_id, feedback.event_time, feedback.task]
            self._feedback_file = self._timed(prepared, needed)
        self._check_types()

    def _timed(self, prepared: PreparedFile, columns: list[str]) -> TimedParquet:
        tolerance_s, zone = self.config.out_of_order_s, self.config.event_time_zone
        return TimedParquet(prepared.path, columns, prepared.event_time, prepared.unit, tolerance_s, zone)

    def _check_types(self) -> None:
        """Raises BadInput for what follows from the files' schemas alone, a line per problem."""
        file, config, schema = self._file, self.config, self.schema
        fits = [(name, schema.impression.field(column)) for column, name in self._names.items()]
        if config.impression_id is not None:
            fits.append((config.impression_id, schema.impression.field("impression_id")))
        if (vertical := self._vertical_column) is not None and not pa.types.is_integer(
            file.schema.field(vertical).type
        ):
            fits.append((vertical, schema.impression.field("vertical")))
        checks: list[Callable[[], object]] = [partial(_require, file, name, field) for name, field in fits]
        for label in config.labels.values():
            empty = pa.array([], file.schema.field(label.column).type)
            checks.append(partial(self._positive_rows, empty, label))
            times = [name for name in (label.delay_column, label.time_column) if name is not None]
            checks += [partial(file.require_times, name) for name in times]
        if self._feedback_file is not None and (feedback := config.feedback) is not None:
            for name, field in ((feedback.impression_id, "impression_id"), (feedback.task, "task")):
                checks.append(partial(_require, self._feedback_file, name, schema.feedback.field(field)))
        problems = []
        for check in checks:
            try:
                check()
            except BadInput as error:
                problems.append(str(error))
        if problems:
            raise BadInput("\n".join(problems))

    @property
    def said(self) -> list[str]:
        """Describe the conversions of the files, made by this call or an earlier one."""
        return [text for _, text in self._said()]

    @property
    def made_now(self) -> list[str]:
        """Describe the conversions made by this call."""
        return [text for prepared, text in self._said() if prepared.now]

    def _said(self) -> Iterator[tuple[PreparedFile, str]]:
        feedback = None if self.config.feedback is None else self.config.feedback.path
        for path, prepared in ((self._origin, self.found), (feedback, self.found_feedback)):
            if path is not None and prepared is not None and prepared.said:
                where = "" if prepared.path == Path(path) else f", in {prepared.path}"
                yield prepared, f"{Path(path).name}: {'; '.join(prepared.said)}{where}"
        if self.config.event_time_zone is not None and not any(map(needs_zone, kinds := self._kinds_of_times())):
            reason = f"`{self.found.event_time}` is {kinds[0]}: that needs none"
            yield self.found, f"{Path(self._origin).name}: event_time_zone changes nothing, {reason}"

    def _kinds_of_times(self) -> list[pa.DataType]:
        columns = [(self._file, self.found.event_time)]
        columns += [(self._file, label.time_column) for label in self.config.labels.values() if label.time_column]
        if self._feedback_file is not None and self.found_feedback is not None:
            columns.append((self._feedback_file, self.found_feedback.event_time))
        return [file.schema.field(name).type for file, name in columns]

    @property
    def rows(self) -> int:
        return self._file.rows

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def _vertical_column(self) -> str | None:
        return self.config.vertical if self.config.vertical_value is None else None

    def chunks(self, chunk_rows: int = 8192) -> Iterator[Chunk]:
        """The whole file, from its start; then chunks of up to `chunk_rows` records of feedback still to come."""
        held, first_row, now_ms = HeldRows(self.schema.feedback), 0, 0
        recorded = self._recorded_feedback(chunk_rows)
        recorded_until_ms = -1
        tolerance_ms = round(self.config.out_of_order_s * 1000)
        for table, time_N in self._file.read(chunk_rows):
            impressions = _conform(self.named(table, time_N, first_row), self.schema.impression, self.path, first_row)
            for task in self.config.labels:
                self._hold(held, task, impressions.column(0), *self.positives(task, table, time_N, first_row))
                unknown = self.unknown(task, table)
                self._hold(held, UNKNOWN + task, impressions.column(0), unknown, time_N[unknown])
            first_row += table.num_rows
            now_ms = max(now_ms, int(time_N.max()))
            while recorded_until_ms <= now_ms and (more := next(recorded, None)) is not None:
                held.push(*more)
                recorded_until_ms = max(recorded_until_ms, int(more[1].max()) - tolerance_ms)
            feedback, _ = held.pop_until(now_ms)
            yield Chunk(impressions, feedback, [], now_ms - tolerance_ms, None)
        nothing = pa.RecordBatch.from_pylist([], self.schema.impression)
        while (more := next(recorded, None)) is not None or len(held):
            if more is not None:
                held.push(*more)
                now_ms = max(now_ms, int(more[1].max()) - tolerance_ms)
            else:
                now_ms = max(now_ms, held.due_after(chunk_rows))
            feedback, _ = held.pop_until(now_ms)
            if feedback.num_rows:
                yield Chunk(nothing, feedback, [], now_ms - tolerance_ms, None)

    def read(self, chunk_rows: int, first_row: int = 0) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Chunks of the file with the event times of their rows, like `TimedParquet.read`."""
        return self._file.read(chunk_rows, first_row)

    def named(self, table: pa.Table, time_N: np.ndarray, first_row: int) -> pa.Table:
        """Impressions under the names of the schema, in the types of the file."""
        config = self.config
        if config.impression_id is None:
            identity = pa.array(np.arange(first_row, first_row + table.num_rows))
            identity = identity.cast(self.schema.id_type)
        else:
            identity = table[config.impression_id]
        vertical = self._vertical_column
        arrays: list[Any] = [
            identity,
            pa.array(time_N),
            pa.repeat(config.vertical_value or "", table.num_rows) if vertical is None else _named(table[vertical]),
            *(table[name] for name in self._names.values()),
        ]
        return pa.table(arrays, names=self.schema.impression.names)

    def positives(
        self, task: str, table: pa.Table, time_N: np.ndarray, first_row: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of `table` with a positive label, and its time, int64 ms. Single ones may have happened before their
        impression, and settlement counts them; where half of the first rows' did, a unit is wrong.

        Raises BadInput then.
        """
        label = self.config.labels[task]
        rows = self._positive_rows(table[label.column].combine_chunks(), label)
        event_ms = time_N[rows]
        if label.delay_column is not None:
            event_ms = event_ms + self._file.milliseconds(table, label.delay_column, label.delay_unit, rows, first_row)
        elif label.time_column is not None:
            unit = self.config.event_time_unit
            event_ms = self._file.milliseconds(table, label.time_column, unit, rows, first_row)
        early = np.flatnonzero(event_ms < time_N[rows])
        if first_row == 0 and 2 * early.size >= max(1, rows.size):
            raise BadInput(
                f"{self._file.path}: row {first_row + rows[early[0]]:,} has its {task} at {event_ms[early[0]]} ms, "
                f"before its impression at {time_N[rows][early[0]]} ms; check the unit of "
                f"`{label.delay_column or label.time_column}`"
            )
        return rows, event_ms

    def unknown(self, task: str, table: pa.Table) -> np.ndarray:
        """Rows of `table` with an unknown label, known to be so at once. Where the task's condition is a label too,
        and is not positive, there is nothing to know."""
        label = self.config.labels[task]
        if label.nulls == "negative":
            return np.empty(0, np.int64)
        missing = table[label.column].combine_chunks().is_null(nan_is_null=True)
        rows = np.flatnonzero(missing.to_numpy(zero_copy_only=False))
        condition = next(each.given for each in self.schema.tasks if each.name == task)
        if len(rows) and condition in self.config.labels:
            other = self.config.labels[condition]
            rows = np.intersect1d(rows, self._positive_rows(table[other.column].combine_chunks(), other))
        return rows

    def _hold(self, held: HeldRows, task: str, identity: pa.Array, rows: np.ndarray, event_ms: np.ndarray) -> None:
        events = [identity.take(pa.array(rows)), pa.array(event_ms), pa.repeat(task, len(rows))]
        held.push(pa.RecordBatch.from_arrays(events, schema=self.schema.feedback), event_ms)

    def _positive_rows(self, column: pa.Array, label: LabelColumn) -> np.ndarray:
        try:
            return np.flatnonzero(label.positive(column).to_numpy(zero_copy_only=False))
        except ValueError as error:
            raise BadInput(f"{self._file.path}: {error}") from None

    def _recorded_feedback(self, chunk_rows: int) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        if self._feedback_file is None or self.config.feedback is None:
            return
        names, first_row = self.config.feedback, 0
        for table, time_N in self._feedback_file.read(chunk_rows):
            arrays = [table[names.impression_id], pa.array(time_N), table[names.task]]
            named = pa.table(arrays, names=self.schema.feedback.names)
            yield _conform(named, self.schema.feedback, self._feedback_file.path, first_row), time_N
            first_row += table.num_rows


def _found(path: str | Path, reading: Reading, copies: Copies | None) -> PreparedFile:
    if copies is not None:
        return copies.of(Path(path), reading)
    if reading.event_time is None or reading.form is not None:
        raise BadInput(f"{path}: its times are made in a copy, and none is wanted; give a folder for copies")
    return PreparedFile(Path(path), reading.event_time, reading.unit)


def _named(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A vertical has a name, and a file may have numbered it."""
    return column.cast(pa.string()) if pa.types.is_integer(column.type) else column


def _require(file: TimedParquet, name: str, field: pa.Field) -> None:
    """Raises BadInput unless the file's column can be what is declared."""
    if convertible(kind := file.schema.field(name).type, field):
        return
    possible = declarable(kind)
    if field.name == "impression_id":
        way = f"set rows.impression_id: {possible}" if possible in ("int64", "string") else "ids are int64 or string"
    elif field.name in ("vertical", "task"):
        way = "it is a name, which has to be text"
    elif possible is not None:
        way = f"declare it `type: {possible}`"
    else:
        way = "columns are int64, float32, string, list<int64> or list<string>: convert it once"
    what = "it" if name == field.name else f"`{field.name}`"
    raise BadInput(
        f"{file.path}: `{name}` is {kind}, and {what} is declared {field.type}; {way}, or name another column"
    )


def _conform(table: pa.Table, schema: pa.Schema, path: Path, first_row: int) -> pa.RecordBatch:
    """In the schema's types. A cell that has another type is the file's fault, not the row's."""
    batch, refusals = conform(table, schema)
    if refusals:
        row = min(refusals)
        raise BadInput(
            f"{path}, row {first_row + row:,}: {refusals[row].detail}; declare the column as the file has it (int64, "
            "float32, string, list<int64> or list<string>), or map another one with `columns`"
        )
    return batch

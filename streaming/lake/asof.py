"""As-of features of a lake's rows, computed from the lake: equal in every bit to what a run that had them from its
start would have written.

The lake has all that they depend on. Of each impression: its merge key, the time at which it was shown, and, of each
label that was set, the time at which it came. An impression is there once for each settlement group, and in each
group's rows merge keys ascend. So the groups are read side by side

    rows of g1   … k=70  k=90  k=95 | …            taken together: the rows of all groups whose merge time lies before
    rows of g2   … k=70  k=80 | …                  the last that was read of any group that goes on

and go through the same state as where topics are merged (streaming/asof): an impression once, in order of its merge
key; a label in the chunk that reaches its time.

Rows whose group has settled while another still waits have no values yet: labels of that other group may count. All
rows with a merge time before

    merge time of the last row + window of its group - longest window

have settled for every group, since rows enter the lake in order of merge time + window.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from streaming.asof.features import NO_LABELS, AsOfState, LabelEvents
from streaming.errors import BadInput, DataLost, StreamingError
from streaming.lake.asof_table import ASOF_FEATURES, PARTITION_BY, AsOfRange, AsOfTable, asof_schema
from streaming.lake.delta.files import NoTable
from streaming.lake.delta.identifiers import NUMBER
from streaming.lake.delta.table import CheckedTable, TableCommit
from streaming.lake.reader import LakeReader
from streaming.schema import FEEDBACK_TIME, MERGE_TIME, POSITION_FIELDS, AsOf, RowSchema
from streaming.store.files import remove_folder, replacing_folder
from streaming.store.lock import file_lock

KEY = (MERGE_TIME, *(field.name for field in POSITION_FIELDS))
"""Columns of the merge key, in whose order impressions were admitted."""

FOREVER = np.iinfo(np.int64).max
NO_ROW = np.iinfo(np.int64).min


def with_asof(schema: RowSchema, asof: AsOf) -> RowSchema:
    """The schema with these as-of features instead of its own. Raises BadInput where they are not valid, or fill a
    column that the schema has already.

    >>> schema = RowSchema(columns=[{"name": "user"}], tasks=[{"name": "ctr", "window_s": 60}])
    >>> with_asof(schema, AsOf(features=[{"name": "seen", "by": "user", "count": "shown"}])).asof.columns[0].name
    'seen'
    """
    if not asof.features:
        raise BadInput("no as-of feature is named; write at least one")
    try:
        both = schema.asof.model_copy(update={"features": (*schema.asof.features, *asof.features)})
        RowSchema.model_validate(schema.model_dump() | {"asof": both.model_dump()})
        return RowSchema.model_validate(schema.model_dump() | {"asof": asof.model_dump()})
    except ValidationError as error:
        raise BadInput("; ".join(str(each["msg"]).removeprefix("Value error, ") for each in error.errors())) from None


def write_asof(lake: LakeReader, asof: AsOf, advance: Callable[[int], None] = lambda rows: None) -> AsOfRange:
    """Compute as-of features for the rows of a lake, and put their table beside it, over any that is there; one that
    holds these already is left as it is. Killed at any moment, it leaves no part of a table. `advance` is called with
    the number of rows done.

    Raises BadInput where the features do not fit the lake's rows, or there are none; StreamingError where another one
    writes the table.
    """
    rows, place = AsOfRows(lake, asof), lake.path.parent / ASOF_FEATURES
    with file_lock(place.with_suffix(".lock")) as alone:
        if not alone:
            raise StreamingError(f"another `exfm lake asof` writes {place}; let it end first")
        for left in place.parent.glob(f".{ASOF_FEATURES}.*"):  # by one that was killed
            shutil.rmtree(left)
        if (there := _range_of(place, asof)) is not None and there == rows.range._replace(unknown=there.unknown):
            return there
        with replacing_folder(place) as part:
            table = CheckedTable(
                part, asof_schema(asof), partition_by=PARTITION_BY, statistics=["lake_seq"], identifiers={NUMBER: -1}
            )
            for values in rows:
                _append(table, values, rows.rows, {})
                advance(rows.rows)
            metadata = {"asof": asof.model_dump(mode="json"), "range": rows.range._asdict()}
            _append(table, asof_schema(asof).empty_table(), rows.rows + 1, metadata)
            if place.exists():
                remove_folder(place)
    return rows.range


def _range_of(place: Path, asof: AsOf) -> AsOfRange | None:
    """Rows in the table at `place`; None where it holds other features, or cannot be read."""
    try:
        table = AsOfTable(place.parent)
    except (NoTable, DataLost):
        return None
    return table.range if table.asof == asof else None


def _append(table: CheckedTable, rows: pa.Table, number: int, metadata: dict[str, Any]) -> None:
    table.commit(lambda: TableCommit(rows, {NUMBER: number}, metadata))


class AsOfRows:
    """Values of as-of features of a lake's rows, as tables of `asof_schema`, chunk by chunk.

    rows     rows done
    """

    def __init__(self, lake: LakeReader, asof: AsOf) -> None:
        """Raises BadInput where the features do not fit the lake's rows, or there are none."""
        self._schema = with_asof(lake.schema, asof)
        if not lake.rows:
            raise BadInput(f"the lake {lake.path} has no rows yet; as-of features are computed of rows that settled")
        self._lake, self._last, self._first = lake, lake.last_lake_seq, lake.first_lake_seq
        self._counts: dict[str, Any] = (lake.metadata() or {}).get("counts") or {}
        self._settled_ms = self._settled_before()
        self._state = AsOfState(self._schema)
        self._labels = NO_LABELS
        self._impressions = self.rows = 0

    def _settled_before(self) -> int | None:
        """Merge time before which rows have settled for every group; None where no row waits."""
        pending = self._counts.get("pending")
        if pending is not None and not any(pending.values()):
            return None
        windows = {group.name: group.window_ms for group in self._schema.groups}
        after = max(self._first, self._last + 1 - self._lake.chunk_rows) - 1  # the last row may be erased
        last = self._lake.read(after, columns=[MERGE_TIME, "settlement"]).table.to_pylist()[-1]
        return int(last[MERGE_TIME] + windows[last["settlement"]] - max(windows.values()))

    @property
    def range(self) -> AsOfRange:
        """The rows that have values; `unknown` is counted once all were made."""
        return AsOfRange(self._lake.id, self._first, self._last, self._settled_ms, self._unknown)

    @property
    def _unknown(self) -> int:
        """Impressions that settled for no group."""
        left_out: dict[str, int] = self._counts.get("not_applicable") or {}
        if not left_out or self._settled_ms is not None or self._first > 0:
            return min(left_out.values(), default=0)
        group, count = next(iter(left_out.items()))
        return max(0, int(self._counts["settled"][group]) + count - self._impressions)

    def __iter__(self) -> Iterator[pa.Table]:
        end = FOREVER if self._settled_ms is None else self._settled_ms
        groups = [_GroupRows(self._lake, group.name, self._columns, self._last) for group in self._schema.groups]
        while True:
            open_groups = [group for group in groups if group.more and group.last < end]
            before = min([end, *(group.last for group in open_groups)])
            rows = pa.concat_tables([group.take(before) for group in groups])
            if rows.num_rows:
                yield self._valued(rows if len(groups) == 1 else rows.sort_by([(name, "ascending") for name in KEY]))
            if not open_groups:
                return
            min(open_groups, key=lambda group: group.last).read()

    @property
    def _columns(self) -> list[str]:
        tasks = [name for task in self._schema.tasks for name in (f"label_{task.name}", f"{FEEDBACK_TIME}{task.name}")]
        raw = {column.name for column in self._schema.columns}
        listed = [item for feature in self._schema.asof.features for item in feature.of if item in raw]
        by = [name for feature in self._schema.asof.features for name in feature.by]
        return list(dict.fromkeys(["lake_seq", "block", "settlement", *KEY, *tasks, *by, *listed]))

    def _valued(self, rows: pa.Table) -> pa.Table:
        """Values of rows, which are all that the lake has of their impressions, in order of their merge keys."""
        rows = rows.combine_chunks()
        is_first = np.ones(rows.num_rows, bool)
        key = [_codes(rows[name]) for name in KEY]
        is_first[1:] = np.any([np.diff(values) != 0 for values in key], axis=0)
        impression = np.cumsum(is_first) - 1
        shown_ms = rows[MERGE_TIME].to_numpy()
        self._take_labels(rows, self._impressions + impression, shown_ms)
        came = self._labels.time <= shown_ms[-1]
        shown = rows.filter(pa.array(is_first)).combine_chunks().to_batches()[0]
        values = self._state.advance(shown, shown_ms[is_first], _at(self._labels, came))
        self._labels = _at(self._labels, ~came)
        self._impressions += shown.num_rows
        self.rows += rows.num_rows
        self._state.drop(int(self._labels.number.min(initial=self._impressions)))
        of = pa.array(impression)
        names = [column.name for column in self._schema.asof.columns]
        columns = {name: column.take(of) for name, column in zip(names, values, strict=True)}
        table = pa.table({"lake_seq": rows["lake_seq"], "settlement": rows["settlement"], **columns})
        return table.cast(asof_schema(self._schema.asof))

    def _take_labels(self, rows: pa.Table, number: np.ndarray, shown_ms: np.ndarray) -> None:
        """Add the labels of rows to those whose time has not come."""
        events = [self._labels]
        for place, task in enumerate(self._schema.tasks):
            at = np.flatnonzero(pc.fill_null(pc.equal(rows[f"label_{task.name}"], 1), False).to_numpy())
            time = rows[f"{FEEDBACK_TIME}{task.name}"].take(pa.array(at)).to_numpy()
            events.append(LabelEvents(number[at], np.full(len(at), place), time, shown_ms[at]))
        self._labels = LabelEvents(*map(np.concatenate, zip(*events, strict=True)))


class _GroupRows:
    """Rows of a settlement group that were read and wait for those of the others, in the order they were shown.

    last  merge time of the last one that was read
    """

    def __init__(self, lake: LakeReader, group: str, columns: list[str], upto: int) -> None:
        self._lake, self._upto = lake, upto
        self._cursor = lake.cursor(columns, filter=pc.field("settlement") == group)
        self._cursor.position = lake.first_lake_seq - 1
        self._rows = pa.schema([lake.schema.augmented.field(name) for name in columns]).empty_table()
        self._block = self._rows  # rows of the last block that was read, which may have more
        self.last = NO_ROW

    @property
    def more(self) -> bool:
        """True if not all of its rows were read."""
        return self._cursor.position < self._upto

    def read(self) -> None:
        """Read more rows, whose order inside a block may be by partition. Raises BadInput where merge times do not
        ascend."""
        read = self._lake.read_from(self._cursor, upto=self._upto, limit_rows=self._lake.chunk_rows).table
        rows = pa.concat_tables([self._block, read])
        whole = rows.num_rows
        if self.more:
            whole = int(np.searchsorted(rows["block"].to_numpy(), rows["block"][-1].as_py())) if rows.num_rows else 0
        else:
            self._lake.close_cursor(self._cursor)
        self._block = rows.slice(whole)
        rows = rows.slice(0, whole).sort_by([(name, "ascending") for name in ("block", *KEY)])
        if not rows.num_rows:
            return
        times = np.append(self.last, rows[MERGE_TIME].to_numpy())
        if (times[1:] < times[:-1]).any():
            at = rows["lake_seq"][int(np.argmax(times[1:] < times[:-1]))].as_py()
            raise BadInput(
                f"event time was set back before row lake_seq {at:,} (`exfm mend watermark`): what was known of a key "
                "then cannot be computed from the lake. Features that a run has from its start are right there, too"
            )
        self.last = int(times[-1])
        self._rows = pa.concat_tables([self._rows, rows])

    def take(self, before_ms: int) -> pa.Table:
        """Take the rows with a merge time before this one; all where it is FOREVER."""
        times = self._rows[MERGE_TIME].to_numpy()
        count = len(times) if before_ms == FOREVER else int(np.searchsorted(times, before_ms))
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    """Integers that are equal where values are."""
    values = column.combine_chunks()
    return values.dictionary_encode().indices.to_numpy() if pa.types.is_string(column.type) else values.to_numpy()


def _at(labels: LabelEvents, mask: np.ndarray) -> LabelEvents:
    return LabelEvents(*(values[mask] for values in labels))

"""Reading the lake by position: rows after a `lake_seq`, in order, at a cost that does not grow with the lake.

Which files hold a range of `lake_seq` is known from the minima and maxima in the Delta log; no file is opened for it.
Files overlap (a commit writes one per partition) and may be out of order inside (compaction), so rows are read
by *chunk*, a range of `lake_seq`: everything inside it is read, then sorted. A `lake_seq` names one row at most (none
where it was erased, streaming/lake/erasure), so a chunk w wide holds at most w rows: that bounds the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs

from streaming.errors import BadInput, DataLost, StreamingError
from streaming.lake.asof_table import side_columns
from streaming.lake.delta.files import NoTable, TableFiles
from streaming.lake.delta.identifiers import FIRST_SEQ, LAKE_SEQ, STATE
from streaming.lake.delta.torn import torn_files
from streaming.lake.scan import CombinedQuery, Cursor, Query, Scan, ScannedChunk
from streaming.position import NOTHING_YET
from streaming.schema import RowSchema
from streaming.store.working_copy import fetched

CHUNK_ROWS = 131_072

_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class LakeRead(NamedTuple):
    """Rows in order of `lake_seq`, and how far they reach.

    `complete_upto`: every matching row from `after` (exclusive) to here (inclusive) is in `table`; the next read starts
    after it, also when nothing matched.
    """

    table: pa.Table
    complete_upto: int


class LakeReader:
    """Reads the rows committed as of the last `refresh`.

    `chunk_rows` bounds the memory of limited reads. Several may read with it, each with a `cursor` of its own; up to
    `shared_bytes` of chunks that one of them read are kept for the others. As-of columns of `schema` that the lake
    lacks are read from the table beside it (`exfm lake asof`). Raises BadInput when there is no lake at `path`, or no
    table has such a column.
    """

    def __init__(
        self, path: str | Path, schema: RowSchema, *, chunk_rows: int = CHUNK_ROWS, shared_bytes: int = 0
    ) -> None:
        import pyarrow.dataset as ds  # imports pandas

        self.path = Path(path)
        self.schema = schema
        self.chunk_rows = chunk_rows
        self.scan = Scan(self._chunk_after, chunk_rows, shared_bytes)
        self._lock = threading.RLock()
        self._last: Cursor | None = None  # of `read`: the next one with the same query goes on in its chunk
        as_they_lie = ds.ParquetFragmentScanOptions(
            pre_buffer=False
        )  # read in few pieces only a distant store is faster
        self._data_set = ds.FileSystemDataset
        self._format = ds.ParquetFileFormat(default_fragment_scan_options=as_they_lie)
        self._disk = pyarrow.fs.LocalFileSystem()
        try:
            lake_names = TableFiles(self.path).names if schema.asof.features else ()
            self._beside, self._beside_names = side_columns(self.path, schema, lake_names)
            stored = [field for field in schema.augmented if field.name not in self._beside_names]
            self._stored = pa.schema(stored)
            self._table = TableFiles(self.path, self._stored)
        except NoTable:
            raise BadInput(
                f"no lake at {self.path}; a run makes one (exfm stream), and --run-dir says where an existing run is"
            ) from None
        if self._beside is not None and self._beside.range.lake != self.id:
            raise BadInput(f"{self._beside.path} is of another lake than {self.path}; run `exfm lake asof` again")
        self._look()

    def _look(self) -> None:
        number = self._table.identifier(LAKE_SEQ)
        if number is None:
            raise BadInput(f"the table at {self.path} has no `exfm/lake_seq`: it is not a lake of exfm")
        self.last_lake_seq: int = number
        self.first_lake_seq: int = self._table.identifier(FIRST_SEQ) or 0
        self._files = _Files.of(self._table.actions)
        self._looked_at = self._table.version

    @property
    def state(self) -> int:
        """Number of the settlement state of the last row, as of the last refresh; -1 before the first."""
        number = self._table.identifier(STATE)
        return NOTHING_YET if number is None else number

    @property
    def id(self) -> str:
        """The lake's unique id."""
        return self._table.id

    @property
    def content_id(self) -> str:
        """The same for the same rows: the lake's id, and that of the table beside it, if columns are read from it."""
        return f"lake {self.id}" + ("" if self._beside is None else f" with {self._beside.id}")

    @property
    def rows(self) -> int:
        return self._files.rows

    @property
    def files(self) -> int:
        return len(self._files.paths)

    @property
    def bytes(self) -> int:
        return int(self._files.sizes.sum())

    @property
    def verticals(self) -> set[str]:
        """Verticals with a file in the lake."""
        return {str(vertical) for vertical in self._files.verticals}

    def size(self, after: int = NOTHING_YET, verticals: set[str] | None = None) -> int:
        """Bytes of the files with rows after `after`, of these verticals."""
        return int(self._files.sizes[self._files.holding(after, self.last_lake_seq, verticals)].sum())

    def metadata(self) -> dict[str, Any] | None:
        """Metadata of the writer's last commit, as of the last refresh; None if the log no longer has it."""
        return self._table.metadata()

    def refresh(self) -> bool:
        """Read new commits; True if there were any."""
        with self._lock:
            self._table.refresh()
            if self._table.version == self._looked_at:
                return False
            self._look()
            return True

    def cursor(
        self,
        columns: Sequence[str] | None = None,
        verticals: set[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> Cursor:
        """A cursor to read with (`read_from`), which shares chunks with the other cursors until `close_cursor`. The
        parameters are those of `read`. Raises BadInput for an unknown column."""
        with self._lock:
            return self.scan.open(self._query(columns, verticals, filter))

    def close_cursor(self, cursor: Cursor) -> None:
        """Let go of a cursor, and of what was read for it alone. A second time does nothing."""
        with self._lock:
            self.scan.close(cursor)

    def _query(self, columns: Sequence[str] | None, verticals: set[str] | None, filter: pc.Expression | None) -> Query:
        names = list(self.schema.augmented.names if columns is None else columns)
        unknown = [name for name in names if name not in self.schema.augmented.names]
        if unknown:
            raise BadInput(f"the lake has no column {unknown}; it has {self.schema.augmented.names}")
        return Query(names, verticals, filter)

    def read(
        self,
        after: int | None = None,
        *,
        upto: int | None = None,
        limit_rows: int | None = None,
        columns: Sequence[str] | None = None,
        verticals: set[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> LakeRead:
        """The rows with `after < lake_seq <= upto` that match, in order of `lake_seq`, as of the last `refresh`.

        after       a position; default: from the first row that there is
        upto        default: the last row known
        limit_rows  at most this many matching rows; memory is then bounded by it and by one chunk, which is
                    kept for the next read; without it, all are read at once
        columns     names, in the order wanted; default all of `schema.augmented`
        verticals   only these; files of others are not opened
        filter      an expression over any columns, also ones not asked for; a null counts as no match

        Raises BadInput for an unknown column, StreamingError when a file of the lake is gone, DataLost when rows right
        after the position have been deleted (retention).
        """
        query = self._query(columns, verticals, filter)
        with self._lock:
            if self._last is None or not self._last.query.same(query):
                self._last = Cursor(query)
            return self._read_newest(self._last, after, upto, limit_rows)

    def read_from(self, cursor: Cursor, *, upto: int | None = None, limit_rows: int | None = None) -> LakeRead:
        """`read` for a cursor's query, from its position on; it may return fewer rows than exist. Several threads may
        read, each with a cursor of its own."""
        with self._lock:
            return self._read_newest(cursor, cursor.position, upto, limit_rows)

    def _read_newest(self, cursor: Cursor, after: int | None, upto: int | None, limit_rows: int | None) -> LakeRead:
        """Read, and look again where a file has gone: compaction and vacuum replace files while they are read."""
        if limit_rows is not None and limit_rows < 1:
            raise BadInput(f"limit_rows is {limit_rows}; ask for at least 1 row")
        end = self.last_lake_seq if upto is None else min(upto, self.last_lake_seq)
        tried: set[str] = set()
        while True:
            start = self._start(after)
            try:
                return self._rows(cursor, start, end, limit_rows)
            except FileNotFoundError as error:
                if str(error) in tried:  # the newest version names it too
                    raise StreamingError(
                        f"a file of the lake is gone: {error}. Files must be removed through Delta (vacuum) only"
                    ) from error
                tried.add(str(error))
                self._table.reload()  # compacted and vacuumed since the last look: the rows are in newer files
                self._look()

    def _start(self, after: int | None) -> int:
        """The position to read from. Raises DataLost where rows after `after` are gone."""
        if after is None:
            return self.first_lake_seq - 1
        if after + 1 < self.first_lake_seq:
            raise DataLost(
                f"rows lake_seq {after + 1:,} to {self.first_lake_seq - 1:,} of the lake {self.path} are deleted "
                f"(lake.retention_days); it begins at {self.first_lake_seq:,}, and this reader stands at {after:,}. "
                "A reader that is registered with the lake holds its rows until it expires; this one starts "
                f"anew, from {self.first_lake_seq - 1:,}, or not at all"
            )
        return after

    def blocks(self, after: int | None = None, upto: int | None = None) -> Iterator[pa.Table]:
        """Whole blocks with all columns, in order, from the first that begins after `after`, chunk by chunk.

        Raises StreamingError as `read` does."""
        end = self.last_lake_seq if upto is None else min(upto, self.last_lake_seq)
        after = self._start(after)
        rows = self.schema.augmented.empty_table()  # of the block that a chunk ended in
        while after < end:
            read = self.read(after, upto=end, limit_rows=self.chunk_rows)
            after = read.complete_upto
            rows = pa.concat_tables([rows, read.table]).combine_chunks()
            # A block begins where the number changes; the last one of the chunk may go on in the next.
            starts = np.flatnonzero(np.diff(rows["block"].to_numpy(), prepend=-1)).tolist()
            stops = [*starts[1:], rows.num_rows] if after >= end else starts[1:]
            for start, stop in zip(starts, stops, strict=False):
                yield rows.slice(start, stop - start)
            rows = rows.slice(stops[-1] if stops else 0)

    def _rows(self, cursor: Cursor, after: int, upto: int, limit_rows: int | None) -> LakeRead:
        query, cursor.position = cursor.query, after
        if limit_rows is None:
            cursor.position = upto
            return LakeRead(self._load(CombinedQuery([query]), after, upto).rows.select(query.columns), upto)
        tables = self.scan.read(cursor, upto, limit_rows)
        rows = pa.concat_tables(tables) if tables else self._nothing(query.columns)
        return LakeRead(rows, cursor.position)

    def _chunk_after(self, query: CombinedQuery, position: int) -> ScannedChunk:
        """The chunk that follows `position`; what has no file of the verticals is stepped over."""
        first = max(position, self._files.next_start(position, query.verticals) - 1)
        return self._load(query, position, min(first + self.chunk_rows, self.last_lake_seq))

    def _nothing(self, columns: Sequence[str]) -> pa.Table:
        return pa.schema([self.schema.augmented.field(name) for name in columns]).empty_table()

    def _load(self, query: CombinedQuery, low: int, high: int) -> ScannedChunk:
        chosen = self._files.holding(low, high, query.verticals)
        if not len(chosen):
            return ScannedChunk(query, low, high, query.empty(self.schema.augmented), np.empty(0, np.int64))
        fragments = [
            self._format.make_fragment(
                str(fetched(self.path / self._files.paths[i])),
                self._disk,
                self._files.common(i),
            )
            for i in chosen
        ]
        inside = (pc.field("lake_seq") > low) & (pc.field("lake_seq") <= high)
        data = self._data_set(fragments, self._stored, self._format, self._disk)
        beside = [name for name in query.columns if name in self._beside_names]
        stored = {name: column for name, column in query.projection.items() if name not in beside}
        try:
            rows = data.to_table(columns=stored, filter=inside if query.filter is None else inside & query.filter)
        except FileNotFoundError:
            raise
        except (pa.ArrowInvalid, OSError) as error:
            raise self._torn(error) from error
        seq = rows["lake_seq"].to_numpy()
        if (np.diff(seq) < 0).any():  # files overlap, or compaction left one out of order
            order = np.argsort(seq, kind="stable")
            rows, seq = rows.take(pa.array(order)), seq[order]
        if beside:
            assert self._beside is not None
            values = self._beside.rows(seq, beside)
            for name in beside:
                rows = rows.append_column(values.schema.field(name), values[name])
        return ScannedChunk(query, low, high, rows, seq)

    def _torn(self, error: Exception) -> StreamingError:
        """Error that names the files that cannot be read, and what they held."""
        torn = torn_files(TableFiles(self.path), decoded_bytes=self.bytes)
        names = "; ".join(map(str, torn)) or " ".join(str(error).split())
        return StreamingError(
            f"the lake {self.path} cannot be read: {names}. Its writer makes such files again from the examples topic "
            "when the run is started, or says what is lost"
        )


class _Files(NamedTuple):
    """The table's files: paths, partition values (`dates`: None where it is partitioned by vertical alone), and the
    range of `lake_seq` in each (unbounded where not known)."""

    paths: list[str]
    verticals: np.ndarray
    dates: np.ndarray | None
    first: np.ndarray
    last: np.ndarray
    sizes: np.ndarray
    rows: int

    @classmethod
    def of(cls, actions: pa.Table) -> _Files:
        """From the rows of deltalake's `get_add_actions(flatten=True)`."""

        def strings(name: str) -> np.ndarray:
            return np.asarray(actions[name].to_pylist(), object)  # not `str`, which forgets a NUL at the end

        def bounds(name: str, unknown: int) -> np.ndarray:
            if name not in actions.column_names:
                return np.full(actions.num_rows, unknown)
            return actions[name].fill_null(unknown).to_numpy()

        return cls(
            [unquote(path) for path in actions["path"].to_pylist()],
            strings("partition.vertical"),
            strings("partition.event_date") if "partition.event_date" in actions.column_names else None,
            bounds("min.lake_seq", _LOWEST),
            bounds("max.lake_seq", _HIGHEST),
            actions["size_bytes"].to_numpy(),
            pc.sum(actions["num_records"]).as_py() or 0,
        )

    def common(self, index: int) -> pc.Expression:
        """Values that all rows of a file have in common: partition columns are not in the file, and rows that all lie
        inside a chunk are not filtered, which would copy them."""
        seq = pc.field("lake_seq")
        common = (pc.field("vertical") == str(self.verticals[index])) & (seq >= self.first[index].item())
        common &= seq <= self.last[index].item()
        return common if self.dates is None else common & (pc.field("event_date") == str(self.dates[index]))

    def _of(self, verticals: set[str] | None) -> np.ndarray:
        if verticals is None:
            return np.ones(len(self.paths), bool)
        return np.isin(self.verticals, np.asarray(sorted(verticals), object))

    def holding(self, low: int, high: int, verticals: set[str] | None) -> np.ndarray:
        """Indices of the files with rows in (low, high], by their first row."""
        holding = np.flatnonzero((self.first <= high) & (self.last > low) & self._of(verticals))
        return holding[np.argsort(self.first[holding], kind="stable")]

    def next_start(self, low: int, verticals: set[str] | None) -> int:
        """The lowest `lake_seq` beyond `low` that a file of these verticals can hold."""
        ahead = (self.last > low) & self._of(verticals)
        return max(int(self.first[ahead].min()), low + 1) if ahead.any() else _HIGHEST

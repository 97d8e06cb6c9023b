"""A Parquet file in order of time, read a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streaming.errors import BadInput, DataLost
from streaming.messages import EndOfStream, Source

Unit = Literal["s", "ms"]
MS_PER: dict[Unit, int] = {"s": 1000, "ms": 1}


class TimedParquet(Source[int, tuple[pa.Table, np.ndarray]]):
    """The named columns of the Parquet file at `path`, whose rows are in order of `event_time`.

    unit: of times that are plain numbers. out_of_order_s: how far behind the latest row before it a row may be.
    Raises BadInput for a file that is absent or not Parquet and for a missing column; `read` for rows out of order.

    As a source its position is the number of rows before it, and its batches are what `read` gives, `chunk_rows` each.
    Row groups before a position are not read.
    """

    chunk_rows = 8192

    def __init__(
        self, path: str | Path, columns: list[str], event_time: str, unit: Unit, out_of_order_s: float
    ) -> None:
        self.path = Path(path)
        try:
            self._file = pq.ParquetFile(self.path)
        except FileNotFoundError:
            raise BadInput(f"{self.path}: no such file; give the path of a Parquet file") from None
        except (pa.ArrowException, OSError) as error:
            raise BadInput(f"{self.path} cannot be read as Parquet: {error}") from error
        present = self._file.schema_arrow.names
        if missing := sorted({name for name in columns if name not in present}):
            raise BadInput(f"{self.path} has no column {', '.join(missing)}; it has {', '.join(present)}")
        self._columns = list(dict.fromkeys(columns))
        self._event_time, self._unit = event_time, unit
        self._tolerance_ms = round(out_of_order_s * 1000)

    @property
    def rows(self) -> int:
        return self._file.metadata.num_rows

    def open(self, position: int | None = None) -> None:
        """Raises DataLost where the file has fewer rows."""
        self.seek(position or 0)

    def seek(self, position: int) -> None:
        if position > self.rows:
            raise DataLost(
                f"{self.path} was read up to row {position:,} before, and has {self.rows:,}: it is another file; give "
                "the one that was begun, or start a new run"
            )
        self._pieces, self._row = self.read(self.chunk_rows, position), position

    def next_batch(self, max_wait_s: float = 0.0) -> tuple[pa.Table, np.ndarray]:
        piece = next(self._pieces, None)
        if piece is None:
            raise EndOfStream
        self._row += piece[0].num_rows
        return piece

    def position(self) -> int:
        return self._row

    def read(self, chunk_rows: int, first_row: int = 0) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Pieces of up to `chunk_rows` rows from `first_row` on, and the event times of their rows, (N,) int64 ms."""
        latest_ms, begins_at = 0, first_row
        for table in self._tables(chunk_rows, first_row):
            everything = np.arange(table.num_rows)
            time_N = self.milliseconds(table, self._event_time, self._unit, everything, first_row)
            if first_row == begins_at:
                latest_ms = int(time_N[0])
            before_N = np.maximum.accumulate(np.concatenate([[latest_ms], time_N[:-1]]))
            behind = np.flatnonzero(time_N < before_N - self._tolerance_ms)
            if behind.size:
                row = behind[0]
                raise BadInput(
                    f"{self.path} is not in order of `{self._event_time}`: row {first_row + row:,} is "
                    f"{(before_N[row] - time_N[row]) / 1000:,.3f} s behind an earlier one, out_of_order_s allows "
                    f"{self._tolerance_ms / 1000:g}; sort it once (pyarrow: "
                    f'`pq.write_table(pq.read_table(file).sort_by("{self._event_time}"), sorted_file)`) or raise '
                    "out_of_order_s"
                )
            latest_ms = max(int(before_N[-1]), int(time_N[-1]))
            first_row += table.num_rows
            yield table, time_N

    def _tables(self, chunk_rows: int, first_row: int) -> Iterator[pa.Table]:
        """What follows `first_row`, as tables with rows."""
        metadata = self._file.metadata
        stops = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
        groups = np.flatnonzero(stops > first_row).tolist()
        passed_over = first_row - (int(stops[groups[0] - 1]) if groups and groups[0] else 0)
        for batch in self._file.iter_batches(chunk_rows, groups, columns=self._columns, use_threads=False):
            table = pa.Table.from_batches([batch]).slice(passed_over)
            passed_over -= batch.num_rows - table.num_rows
            if table.num_rows:
                yield table

    def milliseconds(self, table: pa.Table, name: str, unit: Unit, rows: np.ndarray, first_row: int) -> np.ndarray:
        """Times or delays in the given rows: a timestamp or duration, or numbers in `unit`. (N,) -> (N,) int64."""
        column = table[name].combine_chunks()
        kind = column.type
        if pa.types.is_timestamp(kind):
            column, factor = column.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64()), 1
        elif pa.types.is_duration(kind):
            column, factor = column.cast(pa.duration("ms"), safe=False).cast(pa.int64()), 1
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            factor = MS_PER[unit]
        else:
            raise BadInput(f"{self.path}: `{name}` is {kind}; a time is an integer, a float or a timestamp")
        values = column.take(pa.array(rows))
        unknown = values.is_null(nan_is_null=True)
        if pc.any(unknown).as_py():
            row = first_row + rows[unknown.index(True).as_py()]
            raise BadInput(f"{self.path}: `{name}` of row {row:,} is null; a time is needed there")
        return np.rint(values.to_numpy(zero_copy_only=False) * factor).astype(np.int64)

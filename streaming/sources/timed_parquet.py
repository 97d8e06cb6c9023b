"""A Parquet file in order of time, read in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streaming.errors import BadInput
from streaming.messages.times import Unit, is_time, milliseconds, zone_hint

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl")


class TimedParquet:
    """The named columns of the Parquet file at `path`, whose rows are in order of `event_time`.

    unit: of times that are plain numbers. zone: of times without an offset; None: UTC. out_of_order_s: how far behind
    the latest row before it a row may be.
    Raises BadInput for a file that is absent, not Parquet or without rows, for a missing column and for one that holds
    no times; `read` for rows out of order.
    """

    def __init__(
        self,
        path: str | Path,
        columns: list[str],
        event_time: str,
        unit: Unit,
        out_of_order_s: float,
        zone: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._file = _opened(self.path)
        self.schema: pa.Schema = self._file.schema_arrow
        present = self.schema.names
        if missing := sorted({name for name in columns if name not in present}):
            raise BadInput(f"{self.path} has no column {', '.join(missing)}; it has {', '.join(present)}")
        if not self.rows:
            raise BadInput(f"{self.path} has no rows; give a file that has some")
        self._columns = list(dict.fromkeys(columns))
        self._event_time, self._unit, self._zone = event_time, unit, zone
        self._tolerance_ms = round(out_of_order_s * 1000)
        self.require_times(event_time)

    @property
    def rows(self) -> int:
        return self._file.metadata.num_rows

    def read(self, chunk_rows: int, first_row: int = 0) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Pieces of up to `chunk_rows` rows from `first_row` on, and the event times of their rows, (N,) int64 ms. Row
        groups before `first_row` are not read."""
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
                    f"{self._tolerance_ms / 1000:g}; sort it once (`exfm init` does, on disk; pyarrow: "
                    f'`pq.write_table(pq.read_table(file).sort_by("{self._event_time}"), sorted_file)`) or raise '
                    "out_of_order_s"
                )
            latest_ms = max(int(before_N[-1]), int(time_N[-1]))
            first_row += table.num_rows
            yield table, time_N

    def _tables(self, chunk_rows: int, first_row: int) -> Iterator[pa.Table]:
        """Tables with the rows that follow `first_row`."""
        metadata = self._file.metadata
        stops = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)])
        groups = np.flatnonzero(stops > first_row).tolist()
        passed_over = first_row - (int(stops[groups[0] - 1]) if groups and groups[0] else 0)
        for batch in self._file.iter_batches(chunk_rows, groups, columns=self._columns, use_threads=False):
            table = pa.Table.from_batches([batch]).slice(passed_over)
            passed_over -= batch.num_rows - table.num_rows
            if table.num_rows:
                yield table

    def require_times(self, name: str) -> None:
        """Raise BadInput if the column cannot hold times."""
        if not is_time(kind := self.schema.field(name).type):
            raise BadInput(
                f"{self.path}: `{name}` is {kind}, and is to hold times; they may be integers or floats in "
                "event_time_unit, timestamps, dates, or text such as 2026-11-22T18:00:00Z"
            )

    def milliseconds(self, table: pa.Table, name: str, unit: Unit, rows: np.ndarray, first_row: int) -> np.ndarray:
        """Times or delays in the given rows, plain numbers in `unit`. (N,) -> (N,) int64."""
        column = table[name].combine_chunks().take(pa.array(rows))
        try:
            time_N = milliseconds(column, unit, self._zone)
        except ValueError:
            start, stop = 0, len(column)
            while stop - start > 1:  # the first row that is no time
                middle = (start + stop) // 2
                try:
                    milliseconds(column.slice(start, middle - start), unit)
                    start = middle
                except ValueError:
                    stop = middle
            row, value = rows[start], column[start].as_py()
            raise BadInput(
                f"{self.path}: `{name}` of row {first_row + row:,} is {value!r:.60}, which is no time; text is taken "
                f"as ISO 8601, such as 2026-11-22T18:00:00Z, and a number has to be one{zone_hint(value)}"
            ) from None
        if time_N.null_count:
            row = first_row + rows[time_N.is_null().index(True).as_py()]
            raise BadInput(f"{self.path}: `{name}` of row {row:,} is null; a time is needed there")
        return np.asarray(time_N.to_numpy())


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file; give the path of a Parquet file") from None
    except (pa.ArrowException, OSError) as error:
        if path.is_dir():
            raise BadInput(
                f"{path} is a folder; give one Parquet file (`pq.write_table(pq.read_table(folder), file)` "
                "makes one of many, and so does `exfm init`)"
            ) from None
        if path.suffix.lower() in TEXT_SUFFIXES:
            kind = "json" if path.suffix.lower().startswith(".json") else "csv"
            parquet = path.with_suffix(".parquet").name
            raise BadInput(
                f'{path} is no Parquet file, and by its name it is text; convert it once: python -c "import '
                f"pyarrow.{kind} as t, pyarrow.parquet as pq; pq.write_table(t.read_{kind}('{path.name}'), "
                f"'{parquet}')\"; or let `exfm init` do it, which writes a config, too"
            ) from None
        raise BadInput(f"{path} cannot be read as Parquet: {error}") from error

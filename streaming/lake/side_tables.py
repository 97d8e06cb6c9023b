"""Tables next to the lake, for rows that do not enter it: dead letters and late feedback.

After each commit to the lake, its dead letters and late feedback are appended under the number of that commit's state.
The table keeps the last number as a Delta transaction identifier, atomically with the rows: appending a number again,
as every restart does, changes nothing. Nothing is lost or doubled, however the stream is cut the second time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from streaming.errors import DataLost
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.handle import in_schema, open_table
from streaming.lake.delta.identifiers import NUMBER
from streaming.lake.delta.table import CheckedTable, TableCommit
from streaming.lake.delta.torn import torn_files
from streaming.position import NOTHING_YET
from streaming.schema import POSITION_FIELDS

DEAD_LETTERS, LATE_FEEDBACK = "dead_letters", "late_feedback"


class SideTable:
    """The table `folder/name`; `schema` includes POSITION_FIELDS. Created where absent.

    Raises BadInput when the table there has other columns, or the folder cannot be written.

    >>> import tempfile
    >>> from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
    >>> table = SideTable(tempfile.mkdtemp(), DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    >>> letters = letters_to_batch([DeadLetter("impression", "null:age", "ads", 0, 17, row, "", b"") for row in (3, 5)])
    >>> table.append(letters, number=4), table.append(letters, number=4), table.append(letters, number=5)
    (2, 0, 2)
    """

    def __init__(self, folder: str | Path, name: str, schema: pa.Schema) -> None:
        self.path = Path(folder) / name
        self.schema = schema
        statistics = [field.name for field in POSITION_FIELDS]
        self._table = CheckedTable(self.path, schema, statistics=statistics, identifiers={NUMBER: -1})

    @property
    def id(self) -> str:
        """The table's unique id."""
        return self._table.id

    @property
    def position(self) -> int:
        """Number of the last append; -1 before the first."""
        number = self._table.identifier(NUMBER)
        return NOTHING_YET if number is None else number

    def append(self, rows: pa.RecordBatch | pa.Table, *, number: int) -> int:
        """Append `rows` under `number`, unless that number or a later one is stored; returns how many were appended.

        Numbers rise; one without rows makes no commit. Raises StreamingError when the disk refuses.
        """
        table = in_schema(pa.table(rows), self.schema)
        stored = 0

        def prepare() -> TableCommit | None:
            nonlocal stored
            before = self._table.identifier(NUMBER)
            stored = 0 if before is not None and number <= before else table.num_rows
            return TableCommit(table, {NUMBER: number}, {}) if stored else None

        if table.num_rows:
            self._table.commit(prepare)
        return stored


def side_rows(
    folder: str | Path,
    name: str,
    schema: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    limit_rows: int | None = None,
    filter: pc.Expression | None = None,
) -> pa.Table:
    """Matching rows of the table `folder/name`, these columns, at most `limit_rows`; empty if there is no table.
    Raises DataLost with the name of a file that is damaged."""
    path, names = Path(folder) / name, schema.names if columns is None else list(columns)
    wanted = pa.schema([schema.field(each) for each in names])
    handle = open_table(path, schema, to_read=True)
    if handle is None:
        return wanted.empty_table()
    try:
        scanner = handle.to_pyarrow_dataset().scanner(columns=names, filter=filter)
        rows: pa.Table = scanner.to_table() if limit_rows is None else scanner.head(limit_rows)
    except (pa.ArrowException, OSError) as error:
        torn = torn_files(TableFiles(path), decoded_bytes=sys.maxsize)
        what = "; ".join(f"{path / each.file.path} {each.fault}" for each in torn) or f"{path}: {error}"
        raise DataLost(
            f"rows beside the lake cannot be read: {what}. Put it back from a copy of the run directory"
        ) from error
    return rows.cast(wanted)

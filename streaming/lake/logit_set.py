"""Logit sets: another teacher's logits of a lake's rows, beside those that the rows were logged with.

    lake/logit_sets/NAME/set.json    which rows, by which teacher, whether it had learned them, whether all are there
    lake/logit_sets/NAME/rows        logits, and the representation where there is one, by `lake_seq`

A set is written once (`exfm rescore`), or grows with the lake (a run's further teacher); what is in it is never
changed. Who learns from it reads the lake's rows with the set's logits
in the place of their own; rows that it does not have stay as they were logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streaming.errors import BadInput, DataLost
from streaming.lake.delta.by_seq import rows_by_seq
from streaming.lake.delta.files import NoTable, TableFiles
from streaming.lake.delta.identifiers import NUMBER
from streaming.position import NOTHING_YET
from streaming.schema import EMBEDDING_FIELDS
from streaming.store.files import read_json

LOGIT_SETS = "logit_sets"
"""Folder of a lake's sets, in the folder around it."""

ROWS, DESCRIPTION = "rows", "set.json"

LEAKS = "LEAKAGE"
"""The mark of every figure that is made from a set whose teacher had learned its rows."""


class SetDescription(BaseModel):
    """Description of a set, stored with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    lake: str = Field(description="the lake's id")
    first: int = Field(description="its first row, by lake_seq")
    last: int = Field(description="its last row")
    tasks: tuple[str, ...]
    representation: bool = Field(description="whether its teacher has a representation of rows")
    teacher: str = Field(description="whose logits these are, in words")
    version: int | None = Field(description="the teacher's version in the run; null: a teacher of another lineage")
    snapshot: str = Field(description="name of the saved teacher that scores")
    space: int = Field(description="of the representation")
    known_rows: int | None = Field(
        description="rows whose labels the teacher had learned before it scored them; null: it is not known of any"
    )
    asked: dict[str, Any] = Field(description="the command's options")
    as_versioned: bool = Field(
        default=False, description="its teacher had learned as many blocks as the version of a row says: rows keep it"
    )
    complete: bool = False

    @property
    def rows(self) -> int:
        return self.last + 1 - self.first

    @property
    def leakage(self) -> str | None:
        """The mark of figures made from it, in words; None where no row was known."""
        if self.known_rows == 0:
            return None
        which = "which of its rows is not known" if self.known_rows is None else f"{self.known_rows:,} of its rows"
        return f"{LEAKS}: the teacher of logit set `{self.name}` had learned labels of rows before it scored: {which}"

    @property
    def schema(self) -> pa.Schema:
        """Columns of its table."""
        logits = (pa.field(f"teacher_logit_{task}", pa.float32()) for task in self.tasks)
        representation = EMBEDDING_FIELDS if self.representation else ()
        return pa.schema([pa.field("lake_seq", pa.int64(), nullable=False), *logits, *representation])


def set_folder(beside: Path, name: str) -> Path:
    """Folder of a set; `beside`: the folder around the lake."""
    return beside / LOGIT_SETS / name


def described(beside: Path, name: str) -> SetDescription | None:
    """The description of a set, complete or not; None where there is none. Raises DataLost where it is damaged."""
    path = set_folder(beside, name) / DESCRIPTION
    value = read_json(path)
    try:
        return None if value is None else SetDescription.model_validate(value)
    except ValidationError as error:
        raise DataLost(
            f"{path} is damaged ({str(error).splitlines()[0]}); write the set again, by another name"
        ) from None


def described_sets(beside: Path) -> list[SetDescription]:
    """Every set of a lake, complete or not, by name."""
    names = sorted(path.parent.name for path in (beside / LOGIT_SETS).glob(f"*/{DESCRIPTION}"))
    return [one for name in names if (one := described(beside, name)) is not None]


def set_bytes(beside: Path, name: str) -> int:
    """Bytes of a set on the disk."""
    return sum(path.stat().st_size for path in set_folder(beside, name).rglob("*") if path.is_file())


class LogitSet:
    """The complete set `name` of the lake in the folder `beside`; `upto`: its last row.

    Raises BadInput where there is none, or it is not complete; DataLost where it is damaged.
    """

    def __init__(self, beside: Path, name: str) -> None:
        one = described(beside, name)
        if one is None:
            there = ", ".join(f"`{each.name}`" for each in described_sets(beside)) or "none"
            raise BadInput(
                f"no logit set `{name}` beside the lake in {beside}; there are: {there}. `exfm rescore` writes one"
            )
        if not one.complete:
            raise BadInput(
                f"logit set `{name}` is not complete: what writes it has not ended, or was interrupted. A further "
                f"teacher ends with the stream; of a command, {set_folder(beside, name) / DESCRIPTION} has the options"
            )
        self.description, self.upto = one, one.last
        self._table = _table(beside, one)

    @property
    def id(self) -> str:
        """The set's unique id: no other has it, nor one of its name that was written later."""
        return self._table.id

    def applied(self, rows: pa.Table) -> pa.Table:
        """Rows of the lake, in order of `lake_seq`, with the set's values in the place of their own; of rows outside it
        none is changed."""
        one = self.description
        seq = rows["lake_seq"].to_numpy()
        begin, end = np.searchsorted(seq, [one.first, self.upto + 1]).tolist()
        if begin == end:
            return rows
        values = self._values(seq[begin:end], [name for name in one.schema.names if name in rows.column_names])
        count = end - begin
        if "teacher_version" in rows.column_names and not one.as_versioned:
            kind = rows.schema.field("teacher_version").type
            values["teacher_version"] = pa.array([one.version], kind).take(pa.array(np.zeros(count, np.int64)))
        for field in EMBEDDING_FIELDS if not one.representation else ():
            if field.name in rows.column_names:
                values[field.name] = pa.nulls(count, field.type)
        for name, inside in values.items():
            field, column = rows.schema.field(name), rows[name]
            pieces = [*column.slice(0, begin).chunks, *_chunks(inside.cast(field.type)), *column.slice(end).chunks]
            rows = rows.set_column(rows.column_names.index(name), field, pa.chunked_array(pieces, field.type))
        return rows

    def _values(self, seq: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        schema = pa.schema([self.description.schema.field(name) for name in names])
        again = "write the set again, by another name"
        found = rows_by_seq(self._table, schema, seq, again)
        if found.missing is not None:
            raise DataLost(f"logit set `{self.description.name}` lacks row lake_seq {found.missing:,}; {again}")
        return {name: found.rows[name] for name in names if name != "lake_seq"}


class GrowingLogitSet(LogitSet):
    """The set `name` that a further teacher of the run writes, from before its first row on. `look` says how far it is;
    `applied` is for rows up to there."""

    def __init__(self, beside: Path, name: str) -> None:
        self._beside, self._name = beside, name
        self._there = False
        self.upto = NOTHING_YET

    def look(self) -> int | None:
        """Look for new rows. Returns the last row that is there, -1 before the first; None once the set is
        complete."""
        if (one := described(self._beside, self._name)) is None:
            return self.upto
        if not self._there:
            self.description, self._there = one, True
            self._table = _table(self._beside, one)
        self._table.refresh()
        done = self._table.identifier(NUMBER)
        self.upto = NOTHING_YET if done is None else done
        return None if one.complete else self.upto


def _table(beside: Path, one: SetDescription) -> TableFiles:
    try:
        return TableFiles(set_folder(beside, one.name) / ROWS, one.schema)
    except NoTable as error:
        raise DataLost(f"logit set `{one.name}` has lost its rows: {error}; write it again, by another name") from None


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]

"""Withdrawals: what a lake holds and readers are not to learn from any more.

    logits   what versions of the teacher said of rows, first to last, reads as null
    rows     of a range of rows all, or those that match a condition, are passed over
    rescored rows of a range carry the logits of a logit set in the place of their own

    lake/withdrawn.json    the record, a list that only grows
    lake/withdraw.json     what was asked, a list: the writer of a live run records it, at the row that it writes next

Nothing in the lake is changed. Each withdrawal has a position, `at`: a reader that had begun before it was recorded
reads as logged what lies below that, and as withdrawn what comes from there on; one that begins later reads all of the
lake without it. So a reader that remembers how many withdrawals it knew when it began reads the same rows ever after.
A row from `at` on is written after its withdrawal is on the disk: who has read the row can read the record. In the same
way one that has no end gets it, `before`, where another teacher takes over: a row that is not written yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streaming.errors import BadInput, DataLost
from streaming.lake.logit_set import LogitSet
from streaming.lake.where import Where
from streaming.schema import EMBEDDING_FIELDS, RowSchema
from streaming.store.files import read_json, write_json
from streaming.store.lock import file_lock

RECORD, ASKED = "withdrawn.json", "withdraw.json"
LOCK_WAIT_S = 30.0


class Withdrawal(BaseModel):
    """One withdrawal. `first`, `last`: versions of the teacher (of `logits`), or rows by `lake_seq`; `at`: its
    position."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["logits", "rows", "rescored"]
    first: int = Field(ge=0)
    last: int | None = Field(default=None, description="null: all that follow, too")
    where: str | None = Field(default=None, description="of rows: only those that match")
    before: int | None = Field(default=None, description="of logits: only of rows before this `lake_seq`")
    logits: str | None = Field(default=None, description="of rescored rows: the logit set")
    why: str
    asked_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="microseconds"))
    at: int = -1

    @property
    def words(self) -> str:
        upto = "" if self.last == self.first else f" to {self.last:,}" if self.last is not None else " and later"
        if self.kind == "logits":
            rows = "" if self.before is None else f", of rows before lake_seq {self.before:,}"
            return f"logits of the teacher's version {self.first:,}{upto}{rows}"
        more = "" if self.where is None else f" where {self.where}"
        return f"rows lake_seq {self.first:,}{upto}{more}" + ("" if self.logits is None else f" by {self.logits}")


def record_of(beside: Path) -> list[Withdrawal]:
    """All withdrawals of the lake in the folder `beside`, in order. Raises DataLost where the record is damaged."""
    return [_parsed(value, beside / RECORD) for value in read_json(beside / RECORD) or []]


def _parsed(value: Any, path: Path) -> Withdrawal:
    try:
        return Withdrawal.model_validate(value)
    except ValidationError as error:
        raise DataLost(f"{path} is damaged ({error.errors()[0]['msg']}); put it back from a copy") from None


def ask(beside: Path, withdrawals: Sequence[Withdrawal], *, end: bool = False) -> None:
    """Ask the lake's writer to record withdrawals; `end`: and to end those of logits that have no end. Raises BadInput
    while others wait."""
    if (beside / ASKED).exists():
        raise BadInput(f"other withdrawals wait in {beside / ASKED} until the run's next commit; try again")
    write_json(beside / ASKED, {"record": [each.model_dump(mode="json") for each in withdrawals], "end": end})


def record_asked(beside: Path, at: int) -> list[Withdrawal]:
    """Record what was asked, if anything was, at the position `at`: the next row that will be written. Only the lake's
    writer does, or whoever knows that there is none."""
    path = beside / ASKED
    if not path.exists():
        return []
    with file_lock(beside / f".{RECORD}.lock", wait_s=LOCK_WAIT_S) as held:
        asked = read_json(path)
        if not held or asked is None:
            return []
        record = _ended(record_of(beside), at) if asked["end"] else record_of(beside)
        known = {each.asked_at for each in record}  # of a crash between both files
        new = [_parsed(value, path).model_copy(update={"at": at}) for value in asked["record"]]
        new = [each for each in new if each.asked_at not in known]
        _write(beside, [*record, *new])
        path.unlink()
        return new


def end_open(beside: Path, before: int) -> None:
    """End withdrawals of logits that have no end: another teacher scores from the row `before` on, not written yet."""
    with file_lock(beside / f".{RECORD}.lock", wait_s=None):
        if record := record_of(beside):
            _write(beside, _ended(record, before))


def _ended(record: Sequence[Withdrawal], before: int) -> list[Withdrawal]:
    is_open = [each.kind == "logits" and each.last is None and each.before is None for each in record]
    return [o.model_copy(update={"before": before}) if open_ else o for o, open_ in zip(record, is_open, strict=True)]


def _write(beside: Path, record: Sequence[Withdrawal]) -> None:
    write_json(beside / RECORD, [each.model_dump(mode="json") for each in record])


class Withdrawn:
    """Withdrawals of the lake in the folder `beside`, as one reader sees them. `known`: how many it knew when it began;
    None: all that there are.

    >>> import tempfile
    >>> ask(beside := Path(tempfile.mkdtemp()), [Withdrawal(kind="logits", first=3, last=4, why="")])
    >>> _ = record_asked(beside, at=2)
    >>> rows = pa.table({"lake_seq": [0, 1, 2, 3], "teacher_version": [2, 3, 4, 5],
    ...                  "teacher_logit_ctr": pa.array([.2, .3, .4, .5], pa.float32())})
    >>> Withdrawn(beside).applied(rows)["teacher_version"].to_pylist()  # begins now
    [2, None, None, 5]
    >>> Withdrawn(beside, known=0).applied(rows)["teacher_version"].to_pylist()  # had begun before
    [2, 3, None, 5]
    """

    def __init__(self, beside: Path, known: int | None = None) -> None:
        self._path, self._looked_at = beside / RECORD, 0
        self._record: Sequence[Withdrawal] = ()
        self._sets: dict[str, LogitSet] = {}
        self._look()
        self.known = len(self._record) if known is None else known

    def _look(self) -> None:
        try:
            changed_at = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed_at != self._looked_at:
            self._record, self._looked_at = record_of(self._path.parent), changed_at

    @property
    def id(self) -> str:
        """Name of what it leaves out of the whole lake, empty where that is nothing."""
        return " without " + "; ".join(each.words for each in self._known) if self._known else ""

    @property
    def _known(self) -> Sequence[Withdrawal]:
        return self._record[: self.known]

    def kept(self, schema: RowSchema) -> pc.Expression | None:
        """Filter of the rows that are read; None for all."""
        kept: pc.Expression | None = None
        for each in self._known:
            if each.kind == "rows":
                kept = ~matching(each, schema) if kept is None else kept & ~matching(each, schema)
        return kept

    def unlabelled(self, rows: pa.Table, schema: RowSchema) -> pa.Table:
        """Whole rows of the lake, those that are withdrawn without labels: for who has to keep every row's place."""
        gone = np.zeros(rows.num_rows, bool)
        for each in self._known:
            if each.kind == "rows":
                seq = rows["lake_seq"].to_numpy()
                of = (seq >= each.first) & (each.last is None or seq <= each.last)
                gone |= of if each.where is None or not of.any() else of & Where(each.where, schema).mask(rows)
        return _replaced(rows, gone, None, {f"label_{task.name}" for task in schema.tasks}) if gone.any() else rows

    def applied(self, rows: pa.Table) -> pa.Table:
        """Rows of the lake, read just now, with null in the place of withdrawn logits, of the representation, and of
        the version; or with the logits of a set, and the version, which says how many blocks that teacher had learned.
        They have `lake_seq` and `teacher_version`. Raises as `LogitSet` does."""
        self._look()
        if not self._record or not (gone := self._gone(rows)).any():
            return rows
        logits = {name for name in rows.column_names if name.startswith("teacher_logit_")}
        names = logits | {field.name for field in EMBEDDING_FIELDS}
        found, seq = _replaced(rows, gone, None, {"teacher_version"} | names), rows["lake_seq"].to_numpy()
        for each in self._known:
            if each.logits is not None and each.last is not None:
                here = gone & (seq >= each.first) & (seq <= each.last)
                found = _replaced(found, here, self._set(each.logits).applied(rows), names)
                found = _replaced(found, here, rows, {"teacher_version"})
        return found

    def _set(self, name: str) -> LogitSet:
        self._sets[name] = self._sets.get(name) or LogitSet(self._path.parent, name)
        return self._sets[name]

    def _gone(self, rows: pa.Table) -> np.ndarray:
        """Mask (N,) bool of rows whose logits are withdrawn."""
        gone, seq = np.zeros(rows.num_rows, bool), rows["lake_seq"].to_numpy()
        version = rows["teacher_version"].combine_chunks().fill_null(-1).to_numpy()
        for number, each in enumerate(self._record):
            if each.kind == "logits":
                of = (version >= each.first) & (each.last is None or version <= each.last)
                of &= (number < self.known) | (seq >= each.at)
                gone |= of if each.before is None else of & (seq < each.before)
        return gone


def matching(withdrawal: Withdrawal, schema: RowSchema) -> pc.Expression:
    """Condition that withdrawn rows meet. Raises BadInput where its own condition does not fit the rows."""
    seq = pc.field("lake_seq")
    found = seq >= withdrawal.first if withdrawal.last is None else (seq >= withdrawal.first) & (seq <= withdrawal.last)
    if withdrawal.where is not None:
        found &= pc.coalesce(Where(withdrawal.where, schema).expression, pc.scalar(False))
    return found


def _replaced(rows: pa.Table, at: np.ndarray, by: pa.Table | None, names: Collection[str]) -> pa.Table:
    """The rows with the values of `by` in these columns at the mask (N,); None: with null."""
    for index, field in enumerate(rows.schema):
        if field.name in names:
            values = pa.scalar(None, field.type) if by is None else by[field.name]
            column = pc.if_else(pa.array(at), values, rows[field.name])
            rows = rows.set_column(index, field.with_nullable(True), column)
    return rows

"""The verdict on a retrained student: what differs from the run, the most likely cause, and both in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipelines.lab.verify.bits import RowMismatch, TensorMismatch
from pipelines.live.training.machine import differing

SHOWN = 3
"""Tensors that are named one by one."""

OF_THE_LAKE = ("label_", "teacher_", "weight_", "cluster_", "group", "event_time_ms", "impression_id", "the row itself")
"""Logged columns that are the lake's, not a model's."""


class ErasedRange(NamedTuple):
    """Rows first to last, by `lake_seq`, that can no longer be compared: `rows` of them, which the student had learned,
    were erased, in the run's erasures `numbers`, and what it learned later follows from them."""

    first: int
    last: int
    rows: int
    numbers: tuple[int, ...]

    @property
    def words(self) -> str:
        several = len(self.numbers) > 1
        which = f"erasure{'s' if several else ''} {', '.join(map(str, self.numbers))}"
        return (
            f"lake_seq {self.first:,} to {self.last:,} can no longer be compared: {self.rows:,} rows are erased "
            f"({which}, erasures.json), and what was learned from there on follows from them"
        )


@dataclass(frozen=True)
class VerifyVerdict:
    """The result for one student.

    range              first and last `lake_seq` that it learned
    bytes, tensors     of its checkpoint, as far as they were compared
    predictions        compared; `pruned` others were deleted before
    erased             where nothing can be compared; the state at the end is not either then
    """

    student: str
    checkpoint: str
    range: tuple[int, int]
    rows: int
    tensors: int
    bytes: int
    predictions: int
    pruned: int
    row_mismatch: RowMismatch | None
    tensor_mismatches: tuple[TensorMismatch, ...]
    counts: dict[str, tuple[Any, Any]]
    cause: str | None = None
    notes: tuple[str, ...] = field(default=())
    erased: tuple[ErasedRange, ...] = field(default=())

    @property
    def identical(self) -> bool:
        return self.row_mismatch is None and not self.tensor_mismatches and not self.counts

    def as_json(self) -> dict[str, Any]:
        return {
            "student": self.student,
            "identical": self.identical,
            "checkpoint": self.checkpoint,
            "range": list(self.range),
            "rows": self.rows,
            "tensors": self.tensors,
            "bytes": self.bytes,
            "predictions": self.predictions,
            "predictions_deleted": self.pruned,
            "first_row": None if self.row_mismatch is None else self.row_mismatch._asdict(),
            "differing_tensors": [tensor._asdict() for tensor in self.tensor_mismatches],
            "differing_counts": self.counts,
            "cause": self.cause,
            "notes": list(self.notes),
            "erased": [each._asdict() for each in self.erased],
        }


def text_of(verdict: VerifyVerdict) -> str:
    """Format one student's verdict in a few lines."""
    first, last = verdict.range
    what = f"{verdict.student}: {verdict.rows:,} rows, lake_seq {first:,} to {last:,}, up to `{verdict.checkpoint}`"
    pruned = f" ({verdict.pruned:,} more were deleted by then)" if verdict.pruned else ""
    compared = f"{verdict.tensors:,} tensors ({verdict.bytes:,} bytes), {verdict.predictions:,} predictions{pruned}"
    lines = [what]
    if verdict.erased and verdict.identical:
        lines.append(f"  identical before: {verdict.predictions:,} predictions{pruned}, to the last bit")
    elif verdict.identical:
        lines.append(f"  identical: {compared}, counts and figures, to the last bit")
    else:
        lines.append(f"  NOT identical; compared: {compared}")
    if (row := verdict.row_mismatch) is not None:
        lines.append(f"  first row: lake_seq {row.lake_seq}, impression_id {row.impression_id}; {row.rows:,} differ")
        lines += [f"    {name}: {was} was logged, {found} now" for name, (was, found) in row.columns.items()]
    lines += [f"  {_tensor(tensor)}" for tensor in verdict.tensor_mismatches[:SHOWN]]
    if (more := len(verdict.tensor_mismatches) - SHOWN) > 0:
        lines.append(f"  and {more} more tensors")
    lines += [f"  {name}: {was} was counted, {found} now" for name, (was, found) in verdict.counts.items()]
    if verdict.cause is not None:
        lines.append(f"  likely cause: {verdict.cause}")
    lines += [f"  {each.words}" for each in verdict.erased]
    return "\n".join([*lines, *(f"  note: {note}" for note in verdict.notes)])


def _tensor(tensor: TensorMismatch) -> str:
    if tensor.problem is not None:
        return f"tensor {tensor.name}: {tensor.problem}"
    return (
        f"tensor {tensor.name}: {tensor.differing:,} of {tensor.of:,} values differ, the first at {list(tensor.at)}: "
        f"{tensor.stored!r} is stored, {tensor.found!r} found"
    )


def likely_cause(
    row: RowMismatch | None,
    tensors: Sequence[TensorMismatch],
    *,
    learned_by: Sequence[Mapping[str, Any]],
    now: Mapping[str, str],
    pruned_upto: int,
    same_config: bool,
) -> str:
    """One sentence. `learned_by`: as a checkpoint has it, earliest first."""
    if row is not None and (lakes := [name for name in row.columns if name.startswith(OF_THE_LAKE)]):
        was, now_there = ("absent" if value is None else str(value) for value in row.columns[lakes[0]])
        return (
            f"the lake was changed after the student had read it: {lakes[0]} of this row is {now_there} there, and "
            f"was {was}"
        )
    if row is None and (broken := next((t.problem for t in tensors if t.problem and "altered" in t.problem), None)):
        return f"the checkpoint was changed on the disk: {broken}"
    if not same_config:
        return "the config was changed: the checkpoint is of another one than config.yaml and its lineage say"
    others = [(entry["after"], words) for entry in learned_by if (words := differing(entry, now))]
    if others:
        after, words = others[0]
        return f"{' and '.join(words)}: rows from lake_seq {after + 1} on were learned by another"
    if row is None and pruned_upto >= 0:
        return (
            f"a row up to lake_seq {pruned_upto}, whose predictions were deleted (resources.predictions_bytes), was "
            "learned otherwise; or the checkpoint was changed"
        )
    if row is None:
        return "the checkpoint was changed after it was written: every prediction that led to it is the same"
    return (
        "a feature of this row, or of one that was learned before it, was changed in the lake; or a fault of ExFM: the "
        "software and the machine are the same"
    )

"""Verdicts as text."""

from __future__ import annotations

from pipelines.lab.verify.bits import TensorMismatch
from pipelines.lab.verify.verdict import VerifyVerdict

SHOWN = 3
"""Tensors that are named one by one."""


def text_of(verdict: VerifyVerdict) -> str:
    """Format one student's verdict in a few lines."""
    first, last = verdict.range
    what = f"{verdict.student}: {verdict.rows:,} rows, lake_seq {first:,} to {last:,}, up to `{verdict.checkpoint}`"
    pruned = f" ({verdict.pruned:,} more were deleted by then)" if verdict.pruned else ""
    compared = f"{verdict.tensors:,} tensors ({verdict.bytes:,} bytes), {verdict.predictions:,} predictions{pruned}"
    lines = [what]
    if verdict.identical:
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
    return "\n".join([*lines, *(f"  note: {note}" for note in verdict.notes)])


def _tensor(tensor: TensorMismatch) -> str:
    if tensor.problem is not None:
        return f"tensor {tensor.name}: {tensor.problem}"
    return (
        f"tensor {tensor.name}: {tensor.differing:,} of {tensor.of:,} values differ, the first at {list(tensor.at)}: "
        f"{tensor.stored!r} is stored, {tensor.found!r} found"
    )

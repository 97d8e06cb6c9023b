"""Quantised tables (int8 or int4) at serving: their cost in normalised entropy is measured on labelled rows before
they answer, and refused beyond a bound. Of a registered model there are no rows: what was measured when it was
published is in its tags."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from exfm.errors import ModelError
from exfm.models.served import ServedStudent
from exfm.snapshots.delta import Codec

JUDGED_ROWS = 20_000


class TableSettings(NamedTuple):
    """`kind`: fp32 keeps the bits. `max_ne_loss`: by how much of itself the NE of a task may grow, 0.001 is a
    thousandth."""

    kind: Codec = "fp32"
    max_ne_loss: float = 0.001


def refuse_stated(asked: TableSettings, stated: dict[str, Any] | None) -> None:
    """Raise ModelError if the publication of the version states an NE increase of such tables beyond the allowed
    one; `stated`: from its ledger."""
    changes = (stated or {}).get(asked.kind, {}).get("ne_change", {})
    for task, change in changes.items():
        if change is not None and change > asked.max_ne_loss:
            raise ModelError(
                f"tables of {asked.kind} raised the NE of `{task}` by {change:.3%} when this version was published, "
                f"and may by {asked.max_ne_loss:.3%} (--max-ne-loss); serve int8 or fp32"
            )


def take_tables(
    served: ServedStudent, asked: TableSettings, rows: pa.Table | None, stated: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Quantise the student's tables; returns a description. `rows`: labelled ones to judge them on; where there are
    none, what was `stated` of the version has been judged (`refuse_stated`).

    Raises ModelError where a task's NE grows by more than it may, or nothing can tell.
    """
    before = served.table_bytes
    if asked.kind == "fp32":
        return {"kind": "fp32", "bytes": before}
    if rows is None and (known := (stated or {}).get(asked.kind)) is not None:
        served.quantise(asked.kind)
        sizes = {"bytes": served.table_bytes, "bytes_fp32": before}
        return {"kind": asked.kind, **sizes, "ne_change": known["ne_change"], "judged_rows": None}
    if rows is None or not rows.num_rows:
        raise ModelError(
            f"tables of {asked.kind} are judged on labelled rows, and there are none; nor was it stated what they cost "
            "when the version was published; serve fp32"
        )
    from pipelines.live.workers.student.tables import table_losses

    kind: Codec = asked.kind
    changes = table_losses(served, [kind], rows)[kind].ne_change
    for task, change in changes.items():
        if change is not None and change > asked.max_ne_loss:
            raise ModelError(
                f"tables of {asked.kind} raise the NE of `{task}` by {change:.3%} on {rows.num_rows:,} rows, and may "
                f"by {asked.max_ne_loss:.3%} (--max-ne-loss); serve int8 or fp32"
            )
    if all(change is None for change in changes.values()):
        raise ModelError(
            f"the {rows.num_rows:,} rows to judge {asked.kind} on have labels of one kind only; serve fp32 until there "
            "are more"
        )
    served.quantise(kind)
    return {
        "kind": kind,
        "bytes": served.table_bytes,
        "bytes_fp32": before,
        "ne_change": changes,
        "judged_rows": rows.num_rows,
    }

"""Tables of int8 or int4 at serving: what they cost in normalised entropy is measured on labelled rows before they
answer, and beyond a bound they are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.data import Batch, BatchBuilder
from exfm.errors import ModelError
from exfm.metrics import normalised_entropy
from exfm.models import ServedStudent

JUDGED_ROWS = 20_000
AT_ONCE = 4096


class Tables(NamedTuple):
    """`kind`: fp32 keeps the bits. `max_ne_loss`: by how much of itself the NE of a task may grow, 0.001 is a
    thousandth."""

    kind: Literal["fp32", "int8", "int4"] = "fp32"
    max_ne_loss: float = 0.001


def columns_to_judge(served: ServedStudent) -> list[str]:
    """The columns of the lake that `take_tables` reads."""
    return [*served.features.needs_columns(), *(f"label_{task}" for task in served.tasks), "sample_weight"]


def take_tables(served: ServedStudent, asked: Tables, rows: pa.Table | None) -> dict[str, Any]:
    """Have the student serve from such tables; what is to be said of them. `rows`: labelled ones to judge them on.

    Raises ModelError where a task's NE grows by more than it may, or nothing can tell.
    """
    before = served.table_bytes
    if asked.kind == "fp32":
        return {"kind": "fp32", "bytes": before}
    if rows is None or not rows.num_rows:
        raise ModelError(f"tables of {asked.kind} are judged on labelled rows, and there are none; serve fp32")
    build = BatchBuilder(served.features, served.tasks)
    batches = [build(rows.slice(start, AT_ONCE)) for start in range(0, rows.num_rows, AT_ONCE)]
    exact = _logits(served, batches)
    served.quantise(asked.kind)
    changes = _changes(served.tasks, exact, _logits(served, batches), batches)
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
    return {
        "kind": asked.kind,
        "bytes": served.table_bytes,
        "bytes_fp32": before,
        "ne_change": changes,
        "judged_rows": rows.num_rows,
    }


def _logits(served: ServedStudent, batches: Sequence[Batch]) -> np.ndarray:
    """(N, T), of all rows."""
    return np.concatenate([served.score(batch) for batch in batches])


def _changes(
    tasks: Sequence[str], exact: np.ndarray, now: np.ndarray, batches: Sequence[Batch]
) -> dict[str, float | None]:
    """NE over that of fp32, less 1, by task; None where it is not defined. exact, now: (N, T)."""
    parts = zip(*((b.labels.numpy(), b.label_mask.numpy(), b.weights.numpy()) for b in batches), strict=True)
    labels, known, weights = (np.concatenate(part) for part in parts)
    found = {}
    for t, task in enumerate(tasks):
        at = known[:, t]
        was, is_now = (normalised_entropy(z[at, t], labels[at, t], weights[at]) for z in (exact, now))
        found[task] = None if was is None or is_now is None else is_now / was - 1
    return found

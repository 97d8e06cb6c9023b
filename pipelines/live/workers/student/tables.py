"""Cost of quantised tables for a version: the change of its normalised entropy with int8 and int4 tables, measured
on labelled rows of the lake, and their bytes. It is stated of every version that is published; servers measure by
the same code."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.features.batch import Batch, BatchBuilder
from exfm.metrics.classification import normalised_entropy
from exfm.models.served import ServedStudent
from exfm.snapshots.delta import Codec
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from streaming.errors import BadInput, StreamingError
from streaming.lake.reader import LakeReader

STATED: tuple[Codec, ...] = ("int8", "int4")
STATED_ROWS = 8192
"""Rows that are looked at for each version that is published."""
AT_ONCE = 4096
LOOK_BACK = 20
"""A student that has fewer than one of so many of the newest rows is judged on fewer."""

log = logging.getLogger(__name__)


class TableLoss(NamedTuple):
    """Cost by task; `ne_change`: NE with quantised tables over that with fp32, less 1; None if undefined."""

    bytes: int
    ne_change: dict[str, float | None]


def table_losses(served: ServedStudent, kinds: Sequence[Codec], rows: pa.Table) -> dict[Codec, TableLoss]:
    """Measure quantised tables on labelled rows, without changing the student."""
    build = BatchBuilder(served.features, served.tasks)
    batches = [build(rows.slice(start, AT_ONCE)) for start in range(0, rows.num_rows, AT_ONCE)]
    exact, found = _logits(served, batches), {}
    for kind in kinds:
        smaller = served.quantised_as(kind)
        changes = _changes(served.tasks, exact, _logits(smaller, batches), batches)
        found[kind] = TableLoss(smaller.table_bytes, changes)
    return found


def columns_to_judge(served: ServedStudent) -> list[str]:
    """The columns of the lake that `table_losses` reads."""
    return [*served.features.needs_columns(), *(f"label_{task}" for task in served.tasks), "sample_weight"]


def newest_labelled(
    config: Config, student: StudentSettings, lake: Path, columns: Sequence[str], count: int, upto: int | None = None
) -> pa.Table:
    """The newest own rows of a student in the lake, at most `count`, none after `upto`. Raises BadInput where there
    is no lake."""
    own, reader = config.own_rows(student), LakeReader(lake, config.rows)
    last = reader.last_lake_seq if upto is None else min(upto, reader.last_lake_seq)
    if last < reader.first_lake_seq:
        return pa.table({})
    after = max(last - LOOK_BACK * count, reader.first_lake_seq - 1)
    wanted = [name for name in columns if name in set(config.rows.augmented.names)]
    verticals = set(own.verticals) or None
    read = reader.read(after, upto=last, columns=wanted, verticals=verticals, filter=own.condition)
    return read.table.slice(max(0, read.table.num_rows - count))


def stated_tables(
    config: Config, student: StudentSettings, lake: Path, served: ServedStudent, upto: int | None = None
) -> dict[str, Any] | None:
    """Cost of quantised tables in the ledger's form; None without suitable rows."""
    try:
        rows = newest_labelled(config, student, lake, columns_to_judge(served), STATED_ROWS, upto)
    except (BadInput, StreamingError) as error:
        log.info("what smaller tables cost is not stated: %s", error)
        return None
    if not rows.num_rows:
        return None
    stated: dict[str, Any] = {"rows": rows.num_rows, "fp32": {"bytes": served.table_bytes}}
    return stated | {kind: loss._asdict() for kind, loss in table_losses(served, STATED, rows).items()}


def _logits(served: ServedStudent, batches: Sequence[Batch]) -> np.ndarray:
    """(N, T), of all rows."""
    return np.concatenate([served.score(batch) for batch in batches])


def _changes(
    tasks: Sequence[str], exact: np.ndarray, now: np.ndarray, batches: Sequence[Batch]
) -> dict[str, float | None]:
    """NE over that of fp32, less 1, by task. exact, now: (N, T)."""
    parts = zip(*((b.labels.numpy(), b.label_mask.numpy(), b.weights.numpy()) for b in batches), strict=True)
    labels, known, weights = (np.concatenate(part) for part in parts)
    found = {}
    for t, task in enumerate(tasks):
        at = known[:, t]
        was, is_now = (normalised_entropy(z[at, t], labels[at, t], weights[at]) for z in (exact, now))
        change = is_now / was - 1 if was and is_now is not None else None
        found[task] = change if change is not None and isfinite(change) else None
    return found

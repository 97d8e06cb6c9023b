"""All checks of labelled rows, the gravest first: leaks of the label and train/serve skew before all else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.data.checks.drift import Drift, changes, drifts
from pipelines.data.checks.leakage import Knowledge, filled_by_label, leaks, what_features_know
from pipelines.data.checks.report import CheckReport
from pipelines.data.checks.skew import skews
from pipelines.data.checks.supply import by_day, shortages
from pipelines.data.findings import stops
from pipelines.data.profile.codes import feature_names, tasks_of

MOST_ROWS = 500_000
PIECES = 50
"""Runs of consecutive rows, evenly spaced, that are examined of more rows."""


def examined(
    table: pa.Table,
    recorded: pa.Table | None = None,
    given: Mapping[str, str] | None = None,
    name: str = "rows",
    growing: Collection[str] = (),
) -> CheckReport:
    """The report on settled rows in order of time, with columns `event_time_ms`, `label_<task>`, features, perhaps
    `vertical`, `settlement`, the teacher's logits, and values as they were served (`served_<feature>`, or in
    `recorded`, by `impression_id`). `given`: which task another one is conditional on. `growing`: columns such as
    as-of counts, whose change over time says nothing.

    >>> y = np.arange(4000) % 5 == 0
    >>> rows = pa.table({"event_time_ms": np.arange(4000) * 60_000, "label_ctr": y.astype("int8"),
    ...                  "bid": np.arange(4000) % 7, "clicked": y, "served_bid": np.arange(4000) % 6})
    >>> [finding.where for finding in examined(rows).findings][:2]
    ['leakage: clicked', 'skew: bid']
    """
    seen = _sample(table)
    tasks = tasks_of(seen)
    known, drifted = what_features_know(seen, tasks), drifts(seen, growing) if seen.num_rows else []
    by_value = list(leaks(known))
    named = {finding.where for finding in by_value if stops([finding])}
    filled = [finding for finding in filled_by_label(seen, tasks) if finding.where not in named]
    findings = [*by_value, *filled, *skews(seen, recorded), *shortages(seen, tasks, given), *changes(drifted)]
    tables = [by_day(seen, tasks), _knows(known), _drifts(drifted, len(feature_names(seen)))] if seen.num_rows else []
    return CheckReport(name, table.num_rows, seen.num_rows, findings, tables=tables)


def _sample(table: pa.Table) -> pa.Table:
    if table.num_rows <= MOST_ROWS:
        return table
    begins = np.linspace(0, table.num_rows - MOST_ROWS // PIECES, PIECES).astype(int)
    return pa.concat_tables([table.slice(int(begin), MOST_ROWS // PIECES) for begin in begins])


def _knows(known: Sequence[Knowledge]) -> dict[str, Any]:
    rows = [[k.feature, k.task, f"{k.auc:.4f}", f"{k.gain:.2f}"] for k in known]
    head = ["feature", "task", "AUC alone", "% off the log-loss of time"]
    return {"caption": "what each feature alone knows of the label, in order of time", "head": head, "rows": rows}


def _drifts(drifted: Sequence[Drift], features: int) -> dict[str, Any]:
    rows = [[d.feature, d.vertical or "all", d.day, f"{d.psi:.3f}"] for d in drifted]
    caption = f"largest change of each of {features} features, against all days before"
    return {"caption": caption, "head": ["feature", "vertical", "day", "PSI"], "rows": rows}

"""All checks of labelled rows, the gravest first: what knows the label and what is served otherwise before all else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.data.profile.columns import feature_names, tasks_of
from pipelines.data.profile.drift import changes, drifts
from pipelines.data.profile.finding import Finding, Severity
from pipelines.data.profile.leakage import Known, filled_by_label, leaks, what_features_know
from pipelines.data.profile.skew import skews
from pipelines.data.profile.supply import by_day, shortages

MOST_ROWS = 500_000
PIECES = 50
"""Of more rows, a sample of this many runs of consecutive rows is examined, evenly spaced."""


@dataclass
class Examined:
    """`rows` there are, `looked_at` of them; findings, and what was seen as tables: caption, head, rows."""

    rows: int
    looked_at: int
    findings: list[Finding] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)

    @property
    def stops(self) -> bool:
        return any(finding.severity is Severity.STOP for finding in self.findings)

    @property
    def verdict(self) -> str:
        """
        >>> Examined(9, 9, [Finding(Severity.STOP, "leakage: x", "…"), Finding(Severity.WARN, "volume", "…")]).verdict
        '1 problem with these rows, 1 warning'
        >>> Examined(9, 9).verdict
        'nothing is wrong with these rows'
        """
        stops, warnings = (sum(f.severity is s for f in self.findings) for s in (Severity.STOP, Severity.WARN))
        parts = [f"{stops} problem{'s' * (stops != 1)} with these rows"] if stops else []
        parts += [f"{warnings} warning{'s' * (warnings != 1)}"] if warnings else []
        return ", ".join(parts) or "nothing is wrong with these rows"

    def as_json(self) -> dict[str, Any]:
        findings = [{**finding._asdict(), "severity": str(finding.severity)} for finding in self.findings]
        return {"rows": self.rows, "looked_at": self.looked_at, "stops": self.stops, "verdict": self.verdict,
                "findings": findings, "tables": self.tables}  # fmt: skip


def examined(
    table: pa.Table,
    recorded: pa.Table | None = None,
    given: Mapping[str, str] | None = None,
) -> Examined:
    """Of settled rows in order of time: `event_time_ms`, `label_<task>`, features, perhaps `vertical`, `settlement`,
    the teacher's logits, and values as they were served (`served_<feature>`, or in `recorded`, by `impression_id`).
    `given`: which task another one is conditional on.

    >>> y = np.arange(4000) % 5 == 0
    >>> rows = pa.table({"event_time_ms": np.arange(4000) * 60_000, "label_ctr": y.astype("int8"),
    ...                  "bid": np.arange(4000) % 7, "clicked": y, "served_bid": np.arange(4000) % 6})
    >>> [finding.where for finding in examined(rows).findings][:2]
    ['leakage: clicked', 'skew: bid']
    """
    seen = _sample(table)
    tasks = tasks_of(seen)
    found = Examined(table.num_rows, seen.num_rows)
    known = what_features_know(seen, tasks)
    drifted = drifts(seen) if seen.num_rows else []
    findings = [*_leaks(seen, known, tasks), *skews(seen, recorded), *shortages(seen, tasks, given), *changes(drifted)]
    order = list(Severity)
    found.findings = sorted(findings, key=lambda finding: order.index(finding.severity))
    if seen.num_rows:
        found.tables = [by_day(seen, tasks), _knows(known), _drifts(drifted, len(feature_names(seen)))]
    return found


def _leaks(table: pa.Table, known: Sequence[Known], tasks: Sequence[str]) -> list[Finding]:
    """Those by values, and of others those by what is filled in."""
    found = list(leaks(known))
    named = {finding.where for finding in found if finding.severity is Severity.STOP}
    return [*found, *(finding for finding in filled_by_label(table, tasks) if finding.where not in named)]


def _sample(table: pa.Table) -> pa.Table:
    if table.num_rows <= MOST_ROWS:
        return table
    begins = np.linspace(0, table.num_rows - MOST_ROWS // PIECES, PIECES).astype(int)
    return pa.concat_tables([table.slice(int(begin), MOST_ROWS // PIECES) for begin in begins])


def _knows(known: Sequence[Any]) -> dict[str, Any]:
    rows = [[k.feature, k.task, f"{k.auc:.4f}", f"{k.gain:.2f}"] for k in known]
    head = ["feature", "task", "AUC alone", "% off the log-loss of time"]
    return {"caption": "what each feature alone knows of the label, in order of time", "head": head, "rows": rows}


def _drifts(drifted: Sequence[Any], features: int) -> dict[str, Any]:
    rows = [[d.feature, d.vertical or "all", d.day, f"{d.psi:.3f}"] for d in drifted]
    caption = f"largest change of each of {features} features, against all days before"
    return {"caption": caption, "head": ["feature", "vertical", "day", "PSI"], "rows": rows}

"""Rules of what there is to learn from: rows by day, label rates, unknown labels, missing logits, repeated rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.metrics.limits import MIN_POSITIVES
from pipelines.data.findings import Finding, Rules, Severity, percent
from pipelines.data.profile.codes import LABEL, LOGIT, days_of

RULES = Rules("""
stop  supply.no-rows  rows
    there is no row
    -> give a lake or file that has some, or a longer range
warn  supply.thin-day  volume
    {day} has {rows:,} rows, and half of the others have {usual:,.0f} or more; {days}
    -> leave a gap out of what is judged
note|warn  supply.repeats  duplicates
    {repeats:,} of {rows:,} rows ({share}) repeat another one's id
    -> a label that is learned twice counts twice; drop repeats where rows come from
note|warn  supply.unlabelled  join rate of {task}
    {share} of {rows:,} rows have no label of {task}
    -> see whether feedback was lost; rows without a label are neither learned nor judged
warn  supply.few-positives  label rate of {task}
    {positives:,} positives in {rows:,} rows are too few to tell models apart
    -> give more rows
warn  supply.odd-day  label rate of {task}
    {day}: {rate:.4f} of {rows:,} rows are positive, {usual:.4f} of the others
    -> see whether clicks were lost, or counted twice, on that day
note|warn  supply.no-logits  teacher's logits of {task}
    {share} of {rows:,} rows have none
    -> they teach no student and are left out of every comparison with the teacher
""")

FEW_ROWS = 0.2
"""A day with less than this share of the usual rows."""

RATE_FACTOR = 2.0
SURE = 5.0
"""A day's label rate is odd where it differs by this factor from the others', and by this many standard errors."""

MISSING_WARNS, UNKNOWN_WARNS, REPEATS_WARN = 0.05, 0.05, 0.001


def shortages(table: pa.Table, tasks: Sequence[str], given: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Findings on an Arrow table of settled rows, with `event_time_ms`, `label_<task>` and perhaps the logits. `given`:
    the task that another one is conditional on; a row of label 0 of that one is no row of the other.

    >>> rows = pa.table({"event_time_ms": [0, 0], "label_shown": [1, 0], "label_ctr": [1, None]})
    >>> [len(list(shortages(rows, ["ctr"], given))) for given in (None, {"ctr": "shown"})]
    [2, 1]
    """
    if not table.num_rows:
        yield RULES("supply.no-rows")
        return
    yield from _volume(table)
    yield from _repeats(table)
    for task in tasks:
        yield from _labels(table, task, (given or {}).get(task))
    yield from _logits(table, tasks)


def by_day(table: pa.Table, tasks: Sequence[str]) -> dict[str, Any]:
    """Rows and label rates of every day, as a table."""
    day, names = days_of(table)
    rows = np.bincount(day, minlength=len(names))
    columns = [[f"{count:,}" for count in rows]]
    for task in tasks:
        y, known = _known(table, task)
        positives, labelled = (np.bincount(day[known], w, len(names)) for w in (y[known], None))
        columns.append([f"{p / n:.4f}" if n else "–" for p, n in zip(positives, labelled, strict=True)])
    head = ["day", "rows", *(f"rate of {task}" for task in tasks)]
    return {
        "caption": "rows and label rates by day",
        "head": head,
        "rows": [list(r) for r in zip(names, *columns, strict=True)],
    }


def _volume(table: pa.Table) -> Iterator[Finding]:
    day, names = days_of(table)
    rows = np.bincount(day, minlength=len(names))
    usual = float(np.median(rows))
    thin = [k for k in range(1, len(rows) - 1) if rows[k] < FEW_ROWS * usual]  # the first and last may be cut
    if thin:
        worst = min(thin, key=lambda k: rows[k])
        days = f"{len(thin)} such day{'s' * (len(thin) != 1)}"
        yield RULES("supply.thin-day", day=names[worst], rows=rows[worst], usual=usual, days=days)


def _repeats(table: pa.Table) -> Iterator[Finding]:
    if "impression_id" not in table.schema.names:
        return
    keys = [name for name in ("impression_id", "settlement") if name in table.schema.names]
    distinct = table.select(keys).group_by(keys).aggregate([]).num_rows
    repeats = table.num_rows - distinct
    if repeats:
        share = repeats / table.num_rows
        severity = Severity.WARN if share >= REPEATS_WARN else Severity.NOTE
        yield RULES("supply.repeats", severity, repeats=repeats, rows=table.num_rows, share=percent(share))


def _labels(table: pa.Table, task: str, given: str | None) -> Iterator[Finding]:
    y, known = _known(table, task)
    due = _due(table, task)
    if given is not None and LABEL + given in table.schema.names:
        condition, settled = _known(table, given)
        due = due & ~(settled & (condition == 0))
    if not due.any():
        return
    unknown = 1 - float(known[due].mean())
    if unknown:
        severity = Severity.WARN if unknown >= UNKNOWN_WARNS else Severity.NOTE
        yield RULES("supply.unlabelled", severity, task=task, share=percent(unknown), rows=int(due.sum()))
    positives, count = int(y[known].sum()), int(known.sum())
    if min(positives, count - positives) < MIN_POSITIVES:
        yield RULES("supply.few-positives", task=task, positives=positives, rows=count)
        return
    day, names = days_of(table)
    p_day, n_day = (np.bincount(day[known], w, len(names)) for w in (y[known], None))
    for k, name in enumerate(names):
        others, rest = positives - p_day[k], count - n_day[k]
        if not n_day[k] or not rest:
            continue
        rate, usual = p_day[k] / n_day[k], others / rest
        error = np.sqrt(usual * (1 - usual) * (1 / n_day[k] + 1 / rest))  # 0 where all others are alike
        if abs(rate - usual) > SURE * error and not usual / RATE_FACTOR < rate < usual * RATE_FACTOR:
            yield RULES("supply.odd-day", task=task, day=name, rate=rate, rows=int(n_day[k]), usual=usual)


def _logits(table: pa.Table, tasks: Sequence[str]) -> Iterator[Finding]:
    for task in tasks:
        if LOGIT + task not in table.schema.names:
            continue
        due = _due(table, task)
        z = table[LOGIT + task].to_numpy(zero_copy_only=False).astype(np.float64)[due]
        missing = 1 - float(np.isfinite(z).mean()) if len(z) else 0.0
        if missing:
            severity = Severity.WARN if missing >= MISSING_WARNS else Severity.NOTE
            yield RULES("supply.no-logits", severity, task=task, share=percent(missing), rows=len(z))


def _known(table: pa.Table, task: str) -> tuple[np.ndarray, np.ndarray]:
    column = table[LABEL + task]
    known = column.is_valid().to_numpy()
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64), known


def _due(table: pa.Table, task: str) -> np.ndarray:
    """Rows that settle the task: those of the settlements that have labels of it."""
    if "settlement" not in table.schema.names:
        return np.ones(table.num_rows, dtype=bool)
    settlement, known = table["settlement"], table[LABEL + task].is_valid()
    groups = pc.unique(settlement.filter(known))
    return np.asarray(pc.is_in(settlement, value_set=groups).to_numpy(), dtype=bool)

"""Rules of served predictions of the students of a run: is it in the lake, were the features those that are learned
from, does the version say the same again, and is it calibrated on what became of it?

    calibration   Σ p / Σ y over the impressions whose label has settled; its 95 % interval takes the count of positives
                  as Poisson's, so it is somewhat narrow where the clicks of one user come together
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.errors import ModelError
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.settings import Config
from pipelines.core.config.text import choices
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.checks.report import CheckReport
from pipelines.data.checks.served.joined import ServedRows, joined
from pipelines.data.checks.served.log import PREDICTION, VERSION, ServedLogRows
from pipelines.data.checks.skew import rows_apart, skews
from pipelines.data.findings import Finding, Rules, Severity, percent
from pipelines.serve.prediction_request import PredictionRequest
from pipelines.serve.version import ServedVersion
from pipelines.track.registry.ledger import Ledger
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader

RULES = Rules("""
warn  served.unreadable  the log
    {messages:,} messages are not read: {why}
warn  served.empty  the log
    it holds no rows
    -> serve with --log-topic, and requests with impression_id
warn  served.other-run  the log
    {rows:,} rows are of `{model}`, which is no student of {run}
    -> name the run whose students were served
note|warn|stop  served.coverage  {model}: coverage
    {share} of {served:,} impressions that were served are in the lake ({rows:,}){more}
    -> {remedy}
note  served.same  {model}: predictions of {task}
    {version} predicts {rows:,} rows again as they were served: within {within:.1g}
note|warn  served.asof  {model}: as-of feature {feature}
    {share} of {rows:,} rows were served the value that the lake holds{more}
    -> {remedy}
warn  served.differs  {model}: predictions of {task}
    {version} predicts {share} of {rows:,} rows otherwise than was served; first impression {id}: {served:.6f} was
    served, {now:.6f} now
    -> with --tables int8 or int4 that is their loss; else the version has been altered
note  served.version-gone  {model}: predictions
    {rows:,} rows are of versions that are not on the disk any more, or of live increments: they are not predicted again
note  served.no-positives  {model}: calibration of {task}
    none of {rows:,} served impressions whose label has settled is positive yet
note|warn|stop  served.calibration  {model}: calibration of {task}
    {ratio:.3f} (95 %: {low:.3f} to {high:.3f}): {predicted:.4f} was predicted and {rate:.4f} came, over {rows:,}
    impressions with {positives:,.0f} positives; {least:g} to {most:g} is in order
    -> {remedy}
""")

AGAIN_ROWS = 20_000
"""Newest rows of each version that are predicted again."""
CLOSE = 1e-6
"""Probabilities: a request of another size adds up in another order."""
FEW_MATCHED = 0.5
ASOF_EQUAL = 0.95
"""Share of rows whose as-of feature is served as it is logged, below which a warning says so."""


def judge_served(run_dir: RunDir, logged: ServedLogRows, student: str | None = None) -> CheckReport:
    """Raises BadInput where the run has no such student, or no lake."""
    config = with_roster(config_of(run_dir), run_dir.roster)
    students = {settings.name for settings in config.students}
    if student is not None and student not in students:
        raise BadInput(f"no student of {run_dir.root} is named `{student}`; {choices(student, students)}")
    lake = LakeReader(run_dir.lake, config.rows)
    findings = [RULES("served.unreadable", messages=count, why=why) for why, count in logged.unreadable.items()]
    findings += [RULES("served.empty")] if not logged.rows else []
    looked_at, tables = 0, []
    for model, rows in logged.by_model.items():
        if model not in students:
            findings.append(RULES("served.other-run", rows=rows.num_rows, model=model, run=run_dir.root))
        elif student in (None, model):
            of = joined(config, config.student(model), lake, rows)
            looked_at += of.served.num_rows
            calibrations = [_calibration(config, model, task, of) for task in of.labels]
            findings += [*_of_one(config, run_dir, model, of), *(finding for _, finding in calibrations)]
            head = ["task", "rows", "positives", "mean prediction", "rate", "calibration", "95 %"]
            caption = f"{model}: served predictions and what became of them"
            tables.append({"caption": caption, "head": head, "rows": [row for row, _ in calibrations]})
    return CheckReport(str(run_dir.root), logged.rows, looked_at, findings, tables=tables)


def _of_one(config: Config, run_dir: RunDir, model: str, of: ServedRows) -> Iterator[Finding]:
    yield from _coverage(model, of)
    recorded = of.served.select([name for name in of.served.schema.names if not name.startswith("served_")])
    asof = [column for column in config.rows.asof.columns if column.name in of.rebuilt.schema.names]
    for column in asof if of.rebuilt.num_rows else ():
        if column.name in recorded.schema.names:
            yield _asof(model, column.name, of.rebuilt, recorded)
    names = [column.name for column in asof if column.name in recorded.schema.names]
    recorded = recorded.drop_columns(names)
    for finding in skews(of.rebuilt, recorded) if of.rebuilt.num_rows else ():
        yield finding._replace(where=f"{model}: {finding.where}")
    yield from _again(config, run_dir, model, of)


def _asof(model: str, name: str, rebuilt: pa.Table, recorded: pa.Table) -> Finding:
    """Share of rows that were served an as-of feature as the lake holds it, and the distance of the others."""
    place = pc.index_in(rebuilt["impression_id"].combine_chunks(), recorded["impression_id"].combine_chunks())
    served = recorded[name].take(place.drop_null()).combine_chunks()
    logged = rebuilt[name].filter(place.is_valid()).combine_chunks()
    apart = rows_apart(served, logged)
    share = 1 - float(apart.mean()) if len(apart) else 1.0
    more = _distance(*(column.filter(pa.array(apart)).to_pylist() for column in (served, logged))) if share < 1 else ""
    severity = Severity.NOTE if share >= ASOF_EQUAL else Severity.WARN
    remedy = (
        ""
        if severity is Severity.NOTE
        else "what is served knows what was committed (pace.commit_interval_s); times count from the merge"
    )
    return RULES("served.asof", severity, model=model, feature=name, share=percent(share), rows=len(apart), more=more,
                 remedy=remedy)  # fmt: skip


def _distance(served: list[Any], logged: list[Any]) -> str:
    """Distance between values that differ, in words."""
    both = [(a, b) for a, b in zip(served, logged, strict=True) if a is not None and b is not None]
    words = f"; {len(served) - len(both):,} have none on one side" if len(both) < len(served) else ""
    if not both:
        return words
    if isinstance(both[0][0], list):
        lacking = np.median([len(b) - (Counter(a) & Counter(b)).total() for a, b in both])
        return f"; of the others the median lacks {lacking:g} of the values listed there{words}"
    return f"; of the others the median difference is {np.median([abs(a - b) for a, b in both]):.3g}{words}"


def _coverage(model: str, of: ServedRows) -> Iterator[Finding]:
    served, rows = of.served.num_rows, of.rebuilt.num_rows
    more = f"; {of.repeats:,} more were served again, and the last counts" if of.repeats else ""
    if of.lake_rows:
        more += f"; of the lake's {of.lake_rows:,} in that time they are {percent(rows / of.lake_rows)}"
    severity, remedy = Severity.NOTE, ""
    if rows < FEW_MATCHED * served:
        severity, remedy = Severity.WARN, "candidates not shown never come there, others when their windows close"
        if not rows:
            severity, remedy = Severity.STOP, f"{remedy}; are the ids those of the impressions topic?"
    share = percent(rows / max(1, served))
    yield RULES(
        "served.coverage", severity, model=model, share=share, served=served, rows=rows, more=more, remedy=remedy
    )


def _again(config: Config, run_dir: RunDir, model: str, of: ServedRows) -> Iterator[Finding]:
    """Predictions as they were served, against what the version says of the same rows now."""
    versions, gone = of.served[VERSION].combine_chunks(), 0
    for version in pc.unique(versions).to_pylist():
        rows = of.served.filter(pc.equal(versions, version))
        rows = rows.slice(max(0, rows.num_rows - AGAIN_ROWS))
        loaded = _version(config, run_dir, model, version)
        if loaded is None:
            gone += rows.num_rows
            continue
        inputs = {name: rows[name] for name in loaded.inputs.names if name in rows.schema.names}
        now_NT = loaded.answer(PredictionRequest(inputs, {}, rows.num_rows)).probabilities
        for t, task in enumerate(loaded.tasks):
            if PREDICTION + task not in rows.schema.names:
                continue
            served_N, now_N = rows[PREDICTION + task].to_numpy(), now_NT[:, t]
            apart = ~(np.abs(served_N - now_N) <= CLOSE)
            about = {"model": model, "task": task, "version": version, "rows": rows.num_rows}
            if not apart.any():
                yield RULES("served.same", **about, within=np.abs(served_N - now_N).max(initial=0.0))
                continue
            n = int(np.argmax(apart))
            first = {"id": rows["impression_id"][n].as_py(), "served": served_N[n], "now": now_N[n]}
            yield RULES("served.differs", **about, **first, share=percent(apart.mean()))
    if gone:
        yield RULES("served.version-gone", model=model, rows=gone)


def _version(config: Config, run_dir: RunDir, model: str, version: str) -> ServedVersion | None:
    for folder in (Ledger(run_dir, model).folder(version), run_dir.served(model) / version):
        if folder.exists():
            try:
                return ServedVersion(model, version, folder, config.rows, {})
            except ModelError:
                continue
    return None


def _calibration(config: Config, model: str, task: str, of: ServedRows) -> tuple[list[str], Finding]:
    """A row of the table, and what is found of it."""
    ids, y = of.labels[task]
    place = pc.index_in(ids, of.served["impression_id"].combine_chunks())
    name = PREDICTION + task
    known = place.is_valid().to_numpy(zero_copy_only=False) & (name in of.served.schema.names)
    at = place.drop_null() if known.any() else pa.array([], pa.int32())
    p, y = (of.served[name].take(at).to_numpy() if len(at) else np.zeros(0)), y[known]
    positives, about = float(y.sum()), {"model": model, "task": task, "rows": len(y)}
    if not positives:
        row = [task, f"{len(y):,}", "0", f"{p.mean():.4f}" if len(p) else "", "0", "", ""]
        return row, RULES("served.no-positives", **about)
    ratio, wide = p.sum() / positives, np.exp(1.96 / np.sqrt(positives))
    low, high, (least, most) = ratio / wide, ratio * wide, config.registry.calibration
    row = [task, f"{len(y):,}", f"{positives:,.0f}", f"{p.mean():.4f}", f"{y.mean():.4f}", f"{ratio:.3f}",
           f"{low:.3f} to {high:.3f}"]  # fmt: skip
    severity, remedy = Severity.WARN, "there are too few positives yet to be certain"
    if least <= ratio <= most:
        severity, remedy = Severity.NOTE, ""
    elif high < least or low > most:
        remedy = "look at skew first; then `exfm rollback`, or another version by `exfm promote`"
        severity = Severity.STOP
    about |= {"ratio": ratio, "low": low, "high": high, "predicted": p.mean(), "rate": y.mean()}
    about |= {"positives": positives, "least": least, "most": most, "remedy": remedy}
    return row, RULES("served.calibration", severity, **about)

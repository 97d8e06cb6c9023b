"""What was served of the students of a run, judged: is it in the lake, were the features those that are learned from,
does the version say the same again, and is it calibrated on what became of it?

    calibration   Σ p / Σ y over the impressions whose label has settled; its 95 % interval takes the count of positives
                  as Poisson's, so it is somewhat narrow where the clicks of one user come together
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.errors import ModelError
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.settings import Config
from pipelines.core.config.text import choices
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.checks.served.joined import Joined, joined
from pipelines.data.checks.served.log import PREDICTION, VERSION, Logged
from pipelines.data.profile.examine import Examined
from pipelines.data.profile.finding import Finding, Severity, note, percent, stop, warn
from pipelines.data.profile.skew import skews
from pipelines.live.loop.reconciler import with_roster
from pipelines.serve.asked import Asked
from pipelines.serve.version import ServedVersion
from pipelines.track.registry.ledger import Ledger
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader

AGAIN_ROWS = 20_000
"""Of each version, so many of the newest rows are predicted again."""
CLOSE = 1e-6
"""Probabilities: a request of another size adds up in another order."""
FEW_MATCHED = 0.5


def judge_served(run_dir: RunDir, logged: Logged, student: str | None = None) -> Examined:
    """All findings, the gravest first. Raises BadInput where the run has no such student, or no lake."""
    config = with_roster(config_of(run_dir), run_dir.roster)
    known = {settings.name for settings in config.students}
    if student is not None and student not in known:
        raise BadInput(f"no student of {run_dir.root} is named `{student}`; {choices(student, known)}")
    lake = LakeReader(run_dir.lake, config.rows)
    found = Examined(logged.rows, 0)
    findings = [warn("the log", f"{count:,} messages are not read: {why}") for why, count in logged.unreadable.items()]
    if not logged.rows:
        findings.append(warn("the log", "it holds no rows", "serve with --log-topic, and requests with impression_id"))
    for model, rows in logged.by_model.items():
        if model not in known:
            words = f"{rows.num_rows:,} rows are of `{model}`, which is no student of {run_dir.root}"
            findings.append(warn("the log", words, "name the run whose students were served"))
        elif student in (None, model):
            of = joined(config, config.student(model), lake, rows)
            found.looked_at += of.served.num_rows
            findings += _of_one(config, run_dir, model, of, found)
    order = list(Severity)
    found.findings = sorted(findings, key=lambda finding: order.index(finding.severity))
    return found


def _of_one(config: Config, run_dir: RunDir, model: str, of: Joined, found: Examined) -> Iterator[Finding]:
    yield from _coverage(model, of)
    recorded = of.served.select([name for name in of.served.schema.names if not name.startswith("served_")])
    for finding in skews(of.rebuilt, recorded) if of.rebuilt.num_rows else ():
        yield finding._replace(where=f"{model}: {finding.where}")
    yield from _again(config, run_dir, model, of)
    table = [_calibration(config, task, of) for task in of.labels]
    found.tables.append(
        {
            "caption": f"{model}: served predictions and what became of them",
            "head": ["task", "rows", "positives", "mean prediction", "rate", "calibration", "95 %"],
            "rows": [row for row, _ in table],
        }
    )
    for _, finding in table:
        yield finding._replace(where=f"{model}: {finding.where}")


def _coverage(model: str, of: Joined) -> Iterator[Finding]:
    served, met = of.served.num_rows, of.rebuilt.num_rows
    share = percent(met / served) if served else "0 %"
    again = f"; {of.repeats:,} more were served again, and the last counts" if of.repeats else ""
    seen = f"{share} of {served:,} impressions that were served are in the lake ({met:,}){again}"
    if of.lake_rows:
        seen += f"; of the lake's {of.lake_rows:,} in that time they are {percent(met / of.lake_rows)}"
    remedy = "candidates that were not shown never come there, others when their windows close"
    if not met and served:
        yield stop(f"{model}: coverage", seen, f"{remedy}; are the ids those of the impressions topic?")
    elif met < FEW_MATCHED * served:
        yield warn(f"{model}: coverage", seen, remedy)
    else:
        yield note(f"{model}: coverage", seen)


def _again(config: Config, run_dir: RunDir, model: str, of: Joined) -> Iterator[Finding]:
    """Predictions as they were served, against what the version says of the same rows now."""
    versions, gone = of.served[VERSION].combine_chunks(), 0
    for version in pc.unique(versions).to_pylist():
        rows = of.served.filter(pc.equal(versions, version))
        rows = rows.slice(max(0, rows.num_rows - AGAIN_ROWS))
        loaded = _version(config, run_dir, model, version)
        if loaded is None:
            gone += rows.num_rows
            continue
        given = {name: rows[name] for name in loaded.inputs.names if name in rows.schema.names}
        said = loaded.answer(Asked(given, {}, rows.num_rows)).probabilities
        for t, task in enumerate(loaded.tasks):
            if PREDICTION + task not in rows.schema.names:
                continue
            was = rows[PREDICTION + task].to_numpy()
            apart = ~(np.abs(was - said[:, t]) <= CLOSE)
            where = f"{model}: predictions of {task}"
            if not apart.any():
                words = f"{version} predicts {rows.num_rows:,} rows again as they were served"
                yield note(where, f"{words}: within {np.abs(was - said[:, t]).max(initial=0.0):.1g}")
                continue
            n = int(np.argmax(apart))
            words = (
                f"{version} predicts {percent(apart.mean())} of {rows.num_rows:,} rows otherwise than was served; "
                f"first impression {rows['impression_id'][n].as_py()}: {was[n]:.6f} was served, {said[n, t]:.6f} now"
            )
            yield warn(where, words, "with --tables int8 or int4 that is their loss; else the version has been altered")
    if gone:
        words = f"{gone:,} rows are of versions that are not on the disk any more, or of live increments"
        yield note(f"{model}: predictions", f"{words}: they are not predicted again")


def _version(config: Config, run_dir: RunDir, model: str, version: str) -> ServedVersion | None:
    for folder in (Ledger(run_dir, model).folder(version), run_dir.served(model) / version):
        if folder.exists():
            try:
                return ServedVersion(model, version, folder, config.rows, {})
            except ModelError:
                continue
    return None


def _calibration(config: Config, task: str, of: Joined) -> tuple[list[str], Finding]:
    ids, y = of.labels[task]
    place = pc.index_in(ids, of.served["impression_id"].combine_chunks())
    name = PREDICTION + task
    known = place.is_valid().to_numpy(zero_copy_only=False) & (name in of.served.schema.names)
    at = place.drop_null() if known.any() else pa.array([], pa.int32())
    p, y = (of.served[name].take(at).to_numpy() if len(at) else np.zeros(0)), y[known]
    positives, where = float(y.sum()), f"calibration of {task}"
    if not positives:
        row = [task, f"{len(y):,}", "0", f"{p.mean():.4f}" if len(p) else "", "0", "", ""]
        return row, note(where, f"none of {len(y):,} served impressions whose label has settled is positive yet")
    ratio, wide = p.sum() / positives, np.exp(1.96 / np.sqrt(positives))
    low, high, bounds = ratio / wide, ratio * wide, config.registry.calibration
    row = [task, f"{len(y):,}", f"{positives:,.0f}", f"{p.mean():.4f}", f"{y.mean():.4f}", f"{ratio:.3f}",
           f"{low:.3f} to {high:.3f}"]  # fmt: skip
    seen = (
        f"{ratio:.3f} (95 %: {low:.3f} to {high:.3f}): {p.mean():.4f} was predicted and {y.mean():.4f} came, over "
        f"{len(y):,} impressions with {positives:,.0f} positives; {bounds[0]:g} to {bounds[1]:g} is in order"
    )
    if bounds[0] <= ratio <= bounds[1]:
        return row, note(where, seen)
    if high < bounds[0] or low > bounds[1]:
        remedy = "look at skew first; then `exfm rollback`, or another version by `exfm promote`"
        return row, stop(where, seen, remedy)
    return row, warn(where, seen, "there are too few positives yet to be certain")

"""Output of a replay: the report as JSON, page, Markdown and pictures; every prediction as Parquet; and all of it as
a run of MLflow, if the config names a store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.lab.data import places_of
from pipelines.lab.mapped import PIECE_ROWS, release_pages
from pipelines.lab.parts import load_part
from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.report.curves import curves
from pipelines.lab.report.figures import by_tenth, gains, over_time
from pipelines.lab.report.page import page_of
from pipelines.lab.report.text import markdown
from pipelines.live.feeds.table import taken
from pipelines.report.cells import MEAN
from pipelines.report.pictures import write_png
from pipelines.track.mlflow import Tracker
from streaming.store.files import replacing, write_json

PREDICTIONS = "predictions"
PAGE = "report.html"
PATIENCE_S = 20.0


def write_outcome(workspace: Workspace, kind: str, report: ReplayReport, parts: Mapping[Any, Path]) -> list[Path]:
    """Write everything but the parts; returns the paths for a reader, the page first. `parts`: student, condition,
    arm and seed -> the part with the logits of that student."""
    folder = workspace.folder
    files = [folder / PAGE, folder / f"{kind}.md", folder / f"{kind}.json"]
    write_json(files[2], report.model_dump(mode="json"))
    files[1].write_text(markdown(report))
    files[0].write_text(page_of(report))
    files += draw(report, folder)
    write_predictions(workspace, parts)
    track(workspace, kind, report, files)
    return files


def draw(report: ReplayReport, folder: Path) -> list[Path]:
    """Write `ne_by_age.png`; where arms are compared, `gains.png` and `over_time.png`; and `curves.png`, if any."""
    title = f"{report.about.config}, {report.about.date}"
    drawn = [write_png(folder / "ne_by_age.png", f"{title}: NE by tenth of the stream", list(by_tenth(report)))]
    if forests := list(gains(report)):
        words = f"{title}: gain over the best twin, 95 % intervals"
        drawn.append(write_png(folder / "gains.png", words, forests, across=3))
    if windows := list(over_time(report)):
        drawn.append(write_png(folder / "over_time.png", f"{title}: gain over event time, and by rows", windows))
    if found := list(curves(report)):
        words = f"{title}: gain over the best twin, 95 % intervals"
        drawn.append(write_png(folder / "curves.png", words, found))
    return drawn


def write_predictions(workspace: Workspace, parts: Mapping[tuple[str, str, str, int], Path]) -> None:
    """A file for each trained student, all readable as one data set: student, condition, arm, seed, lake_seq, task,
    logit (when the row was shown), logit_as_learned, label. Without a lake, `lake_seq` is the row's number in the
    stream."""
    root = workspace.folder / PREDICTIONS
    root.mkdir(exist_ok=True)
    wanted = set()
    for (student, condition, arm, seed), part in parts.items():
        if arm not in workspace.spec.arms:
            continue
        name = "-".join(re.sub(r"[^\w.]+", "_", text) for text in (student, arm, condition))
        path = root / f"{name}-seed{seed}-{part.stem.rpartition('-')[2]}.parquet"
        wanted.add(path)
        if not path.exists():
            constant = {"student": student, "condition": condition, "arm": arm, "seed": seed}
            _write_student(workspace, constant, part, path)
    for stale in set(root.glob("*.parquet")) - wanted:
        stale.unlink()


def _write_student(workspace: Workspace, constant: Mapping[str, Any], part: Path, path: Path) -> None:
    with replacing(path) as file, ExitStack() as writing:
        writer = None
        for rows in _predictions(workspace, constant["student"], constant["seed"], part):
            for at, (key, value) in enumerate(constant.items()):
                rows = rows.add_column(at, key, pa.repeat(value, rows.num_rows))
            if writer is None:
                writer = writing.enter_context(pq.ParquetWriter(file, rows.schema, compression="zstd"))
            writer.write_table(rows)


def _predictions(workspace: Workspace, student: str, seed: int, path: Path) -> Iterator[pa.Table]:
    """The predictions of a student in pieces, task after task."""
    part, config = load_part(path), workspace.of(seed)
    assert part is not None
    rows, settings = workspace.rows(seed), config.student(student)
    places = places_of(rows, config, settings, workspace.folder)[int(part["first"]) :]
    for t, task in enumerate(config.student_tasks(settings)):
        for start in range(0, max(1, len(places)), PIECE_ROWS):  # of no rows, a piece without any
            own = places[start : start + PIECE_ROWS]
            table = taken(rows, own)
            label = table[f"label_{task}"].combine_chunks()
            positions = table["lake_seq"] if "lake_seq" in table.schema.names else pa.array(own)
            piece = {"lake_seq": positions, "task": pa.repeat(task, len(own))}
            for column, name in {"logit": "logits", "logit_as_learned": "as_learned"}.items():
                piece[column] = part[name][start : start + PIECE_ROWS, t]
                release_pages(part[name])
            piece["label"] = label
            yield pa.table(piece).filter(label.is_valid())
            release_pages(places)


def track(workspace: Workspace, kind: str, report: ReplayReport, files: list[Path]) -> None:
    """Log figures and files of this report as one run of MLflow, if the config names a store."""
    settings = workspace.config.tracking
    if not settings.enabled or settings.uri is None:
        return
    tracker = Tracker(
        settings.uri,
        workspace.folder / "artifacts",
        workspace.config.name,
        workspace.folder / "mlflow.json",
        settings.interval_s,
    )
    about = report.about
    params = {
        "config_hash": about.config_hash,
        "seeds": report.spec.seeds,
        "code": about.code,
        "command": about.command,
    }
    tracker.params(kind, {name: str(value) for name, value in params.items()})
    figures: dict[str, float] = {}
    for verdict in report.verdicts:
        if verdict.arm is not None:
            gain = report.table.of(report.spec.tuned_under, MEAN, verdict.task, verdict.arm).cell("gain")
            ends = {end: getattr(gain, end) for end in ("value", "low", "high")}
            figures |= {f"{verdict.task}/gain_{end}": value for end, value in ends.items() if value is not None}
    tracker.metrics(kind, 0, figures)
    for path in files:
        tracker.artifact(kind, path)
    tracker.finish(kind)
    tracker.close(PATIENCE_S)

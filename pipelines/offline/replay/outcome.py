"""What a replay leaves in its folder: the report as JSON, as a page, as Markdown and in pictures; every prediction as
Parquet; and the same as a run of MLflow, where the config names a store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.feeds import taken
from pipelines.offline import PIECE_ROWS, let_go, load_part
from pipelines.offline.page import page_of
from pipelines.offline.replay.data import places_of
from pipelines.offline.replay.picture import draw
from pipelines.offline.replay.place import Place
from pipelines.offline.replay.text import markdown
from pipelines.tracking import Tracker
from streaming.disk import replacing, write_json

PREDICTIONS = "predictions"
PAGE = "report.html"
PATIENCE_S = 20.0


def write_outcome(place: Place, kind: str, report: dict[str, Any], lives: Mapping[Any, Path]) -> list[Path]:
    """Everything but the parts; the paths of what a reader opens, the page first. `lives`: student, condition, arm and
    seed -> the part with its logits."""
    folder = place.folder
    files = [folder / PAGE, folder / f"{kind}.md", folder / f"{kind}.json"]
    write_json(files[2], report)
    files[1].write_text(markdown(report))
    files[0].write_text(page_of(report))
    files += draw(report, folder)
    write_predictions(place, lives)
    track(place, kind, report, files)
    return files


def write_predictions(place: Place, lives: Mapping[tuple[str, str, str, int], Path]) -> None:
    """A file for each life, all readable as one data set: student, condition, arm, seed, lake_seq, task, logit, label.
    Rows are those of the student's life, scored before they were learned; without a lake, `lake_seq` is the row's
    number in the stream."""
    root = place.folder / PREDICTIONS
    root.mkdir(exist_ok=True)
    wanted = set()
    for (student, condition, arm, seed), part in lives.items():
        if arm not in place.spec.arms:
            continue
        name = "-".join(re.sub(r"[^\w.]+", "_", text) for text in (student, arm, condition))
        path = root / f"{name}-seed{seed}-{part.stem.rpartition('-')[2]}.parquet"
        wanted.add(path)
        if not path.exists():
            constant = {"student": student, "condition": condition, "arm": arm, "seed": seed}
            _write_life(place, constant, part, path)
    for stale in set(root.glob("*.parquet")) - wanted:
        stale.unlink()


def _write_life(place: Place, constant: Mapping[str, Any], part: Path, path: Path) -> None:
    with replacing(path) as file:
        writer = None
        for rows in _predictions(place, constant["student"], constant["seed"], part):
            for at, (key, value) in enumerate(constant.items()):
                rows = rows.add_column(at, key, pa.repeat(value, rows.num_rows))
            writer = writer or pq.ParquetWriter(file, rows.schema, compression="zstd")
            writer.write_table(rows)
        assert writer is not None
        writer.close()


def _predictions(place: Place, student: str, seed: int, path: Path) -> Iterator[pa.Table]:
    """Pieces of a life: those of a task one after the other, then the next task's."""
    part, config = load_part(path), place.of(seed)
    assert part is not None
    rows, settings = place.rows(seed), config.student(student)
    places = places_of(rows, config, settings, place.folder)[int(part["first"]) :]
    for t, task in enumerate(config.student_tasks(settings)):
        for start in range(0, max(1, len(places)), PIECE_ROWS):  # of no rows, a piece without any
            own = places[start : start + PIECE_ROWS]
            table = taken(rows, own)
            label = table[f"label_{task}"].combine_chunks()
            positions = table["lake_seq"] if "lake_seq" in table.schema.names else pa.array(own)
            piece = {"lake_seq": positions, "task": pa.repeat(task, len(own))}
            piece |= {"logit": part["logits"][start : start + PIECE_ROWS, t], "label": label}
            yield pa.table(piece).filter(label.is_valid())
            let_go(part["logits"])
            let_go(places)


def track(place: Place, kind: str, report: Mapping[str, Any], files: list[Path]) -> None:
    """One run of MLflow with the figures and files of this report; nothing where the config names no store."""
    settings = place.config.tracking
    if not settings.enabled or settings.uri is None:
        return
    tracker = Tracker(
        settings.uri, place.folder / "artifacts", place.config.name, place.folder / "mlflow.json", settings.interval_s
    )
    about = report["sweep"]
    tracker.params(kind, {key: str(about[key]) for key in ("config_hash", "seeds", "code", "command")})
    figures: dict[str, float] = {}
    for of in report["verdicts"]:
        if of.get("gain"):
            figures |= {
                f"{of['task']}/gain_{k}": of["gain"][k] for k in ("value", "low", "high") if of["gain"][k] is not None
            }
    tracker.metrics(kind, 0, figures)
    for path in files:
        tracker.artifact(kind, path)
    tracker.finish(kind)
    tracker.close(PATIENCE_S)

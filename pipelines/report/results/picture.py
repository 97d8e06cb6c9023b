"""A picture of normalised entropy over the stream, a panel per student and task."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from exfm.metrics.classification import normalised_entropy
from exfm.metrics.limits import MIN_POSITIVES, too_few
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.predictions import read_predictions
from pipelines.report.figure import Figure, Point, Series
from pipelines.report.pictures import write_png
from pipelines.report.results.figures import Columns, columns_of
from streaming.sources.synthetic.truth import load_truth

WINDOWS = 30
"""Fewer where they would hold fewer positives than a figure needs."""
LABELS = {
    "student": "student",
    "no_teacher": "twin without teacher",
    "teacher": "teacher",
    "optimum": "optimum",
    "ftrl": "FTRL",
    "constant": "running base rate",
}
HIGHEST = 1.25
"""NE that is still shown: a young model may be far above it."""


def draw(config: Config, run_dir: RunDir) -> Path | None:
    """Write `ne.png` to the run directory; None when no student has enough positives."""
    truth = load_truth(run_dir.truth, config.tasks)
    figures = []
    for student in config.students:
        table = read_predictions(run_dir.predictions(student.name))
        for task in config.student_tasks(student) if table is not None else ():
            columns = columns_of(table, task, truth)
            positives = int(columns.labels.sum())
            if too_few(positives, len(columns.labels) - positives) is None:
                figures.append(_figure(f"{student.name} · {task}", columns))
    if not figures:
        return None
    return write_png(run_dir.picture, f"{config.name}: NE as learned by window of the stream, lower is better", figures)


def _figure(title: str, columns: Columns) -> Figure:
    windows = max(2, min(WINDOWS, int(columns.labels.sum()) // MIN_POSITIVES))
    series, later = [], []
    for look, model in enumerate(LABELS):
        if model in columns.logits:
            seq, ne = windowed_ne(columns, model, windows)
            points = [Point(at / 1000, value) for at, value in zip(seq.tolist(), ne.tolist(), strict=True)]
            series.append(Series(LABELS[model], look, [p for p in points if np.isfinite(p.y)], "curve"))
            later += [value for value in ne[-(-windows // 10) :].tolist() if np.isfinite(value)]
    # the first windows, of models that are still untrained, may lie outside: the others are compared
    high = min(max(later, default=1.0), HIGHEST)
    return Figure(title, series, "thousand rows of the lake", "NE", high=high)


def windowed_ne(columns: Columns, model: str, windows: int = WINDOWS) -> tuple[np.ndarray, np.ndarray]:
    """(middle lake_seq, NE) of consecutive windows of equally many rows; NaN where a window has a single class."""
    pieces = [columns.take(piece) for piece in np.array_split(np.arange(len(columns.labels)), windows)]
    middle = np.array([piece.lake_seq.mean() for piece in pieces])
    ne = [normalised_entropy(piece.logits[model], piece.labels, piece.weights) for piece in pieces]
    return middle, np.array([np.nan if value is None else value for value in ne])

"""A picture of normalised entropy over the stream, a panel per student and task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from exfm.metrics.classification import normalised_entropy
from exfm.metrics.limits import MIN_POSITIVES, too_few
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.predictions import read_predictions
from pipelines.report.results.figures import Columns, columns_of
from streaming.sources.synthetic.truth import load_truth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

WINDOWS = 30
"""Fewer where they would hold fewer positives than a figure needs."""
COLOURS = {
    "constant": "#c9c9c9",
    "ftrl": "#d99a2b",
    "no_teacher": "#8a8a8a",
    "student": "#d1495b",
    "teacher": "#30638e",
    "optimum": "#2e8b57",
}
LABELS = {
    "constant": "running base rate",
    "ftrl": "FTRL",
    "no_teacher": "twin without teacher",
    "student": "student",
    "teacher": "teacher",
    "optimum": "optimum",
}
HIGHEST = 1.25
"""NE that is still shown: a young model may be far above it."""


def draw(config: Config, run_dir: RunDir) -> Path | None:
    """Write `ne.png` to the run directory; None when no student has enough positives."""
    truth = load_truth(run_dir.truth, config.tasks)
    panels: dict[tuple[str, str], Columns] = {}
    for student in config.students:
        table = read_predictions(run_dir.predictions(student.name))
        if table is None:
            continue
        for task in config.student_tasks(student):
            columns = columns_of(table, task, truth)
            positives = int(columns.labels.sum())
            if too_few(positives, len(columns.labels) - positives) is None:
                panels[student.name, task] = columns
    if not panels:
        return None
    import matplotlib  # here: a run imports this file when it starts, and draws when it ends

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    students, tasks = (list(dict.fromkeys(names)) for names in zip(*panels, strict=True))
    if len(tasks) > 1:  # a row for each student, a column for each task
        across, places = len(tasks), {(s, t): (students.index(s), tasks.index(t)) for s, t in panels}
    else:
        across = min(2, len(panels))
        places = {panel: divmod(n, across) for n, panel in enumerate(panels)}
    down = 1 + max(row for row, _ in places.values())
    figure, axes = plt.subplots(down, across, figsize=(5.6 * across, 2.5 * down + 0.9), squeeze=False, sharex=True)
    for axis in axes.flat:
        axis.set_visible(False)
    for panel, columns in panels.items():
        _panel(axes[places[panel]], " · ".join(panel), columns)
    for column in range(across):
        lowest = max(row for row, at in places.values() if at == column)
        axes[lowest, column].set_xlabel("thousand rows of the lake")
        axes[lowest, column].tick_params(labelbottom=True)
    known: dict[str, Line2D] = {}
    for place in places.values():
        known |= dict(zip(*reversed(axes[place].get_legend_handles_labels()), strict=True))
    names = [name for name in LABELS.values() if name in known]
    figure.legend([known[n] for n in names], names, frameon=False, fontsize=9, loc="lower left", ncols=len(names))
    figure.suptitle(f"{config.name}: NE by window of the stream, lower is better", x=0.01, ha="left")
    figure.tight_layout(rect=(0, 0.35 / figure.get_figheight(), 1, 1))
    figure.savefig(run_dir.picture, dpi=110)
    plt.close(figure)
    return run_dir.picture


def _panel(axis: Axes, title: str, columns: Columns) -> None:
    axis.set_visible(True)
    windows = max(2, min(WINDOWS, int(columns.labels.sum()) // MIN_POSITIVES))
    curves = {model: windowed_ne(columns, model, windows) for model in COLOURS if model in columns.logits}
    for model, (seq, ne) in curves.items():
        style = "--" if model == "constant" else "-"
        axis.plot(seq / 1000, ne, style, color=COLOURS[model], label=LABELS[model], linewidth=1.6)
    # The first windows, of models that are still untrained, may lie outside: the others are compared.
    later = np.concatenate([ne[-(-windows // 10) :] for _, ne in curves.values()])
    if np.isfinite(later).any():
        axis.set_ylim(np.nanmin(later) - 0.02, min(np.nanmax(later) + 0.04, HIGHEST))
    axis.set_title(title, loc="left", fontweight="bold", fontsize=10)
    axis.set_ylabel("NE")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def windowed_ne(columns: Columns, model: str, windows: int = WINDOWS) -> tuple[np.ndarray, np.ndarray]:
    """(middle lake_seq, NE) of consecutive windows of equally many rows; NaN where a window has a single class."""
    pieces = [columns.take(piece) for piece in np.array_split(np.arange(len(columns.labels)), windows)]
    middle = np.array([piece.lake_seq.mean() for piece in pieces])
    ne = [normalised_entropy(piece.logits[model], piece.labels, piece.weights) for piece in pieces]
    return middle, np.array([np.nan if value is None else value for value in ne])

"""A picture of normalised entropy over the stream, a panel per student and task."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from exfm.metrics import normalised_entropy, too_few
from pipelines.config import Config
from pipelines.results.figures import Columns, columns_of
from pipelines.run_dir import RunDir
from pipelines.training import read_predictions
from streaming.sources.synthetic import load_truth

WINDOWS = 30
COLOURS = {"no_teacher": "#999999", "student": "#d1495b", "teacher": "#30638e", "optimum": "#2e8b57"}
LABELS = {"no_teacher": "twin without teacher", "student": "student", "teacher": "teacher", "optimum": "optimum"}


def draw(config: Config, run_dir: RunDir) -> Path | None:
    """Write `ne.png` to the run directory; None when no student has enough positives."""
    truth = load_truth(run_dir.truth, config.tasks)
    panels: dict[str, Columns] = {}
    for student in config.students:
        table = read_predictions(run_dir.predictions(student.name))
        if table is None:
            continue
        task = config.student_tasks(student)[0]
        columns = columns_of(table, task, truth)
        positives = int(columns.labels.sum())
        if too_few(positives, len(columns.labels) - positives) is None:
            panels[f"{student.name} · {task}"] = columns
    if not panels:
        return None
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    figure, axes = plt.subplots(down, across, figsize=(6.2 * across, 3.3 * down), squeeze=False, sharex=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, columns) in zip(axes.flat, panels.items(), strict=False):
        curves = {model: windowed_ne(columns, model) for model in COLOURS if model in columns.logits}
        for model, (seq, ne) in curves.items():
            axis.plot(seq / 1000, ne, color=COLOURS[model], label=LABELS[model], linewidth=1.8)
        # The first windows, of models that are still untrained, may lie outside: the others are compared.
        later = np.concatenate([ne[WINDOWS // 10 :] for _, ne in curves.values()])
        axis.set_ylim(np.nanmin(later) - 0.02, np.nanmax(later) + 0.04)
        axis.set_title(title, loc="left", fontweight="bold")
        axis.set_ylabel("normalised entropy")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("thousand rows of the lake")
    axes.flat[0].legend(frameon=False, fontsize=9)
    figure.suptitle(f"{config.name}: NE by window of the stream, lower is better", x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(run_dir.picture, dpi=110)
    plt.close(figure)
    return run_dir.picture


def windowed_ne(columns: Columns, model: str) -> tuple[np.ndarray, np.ndarray]:
    """(middle lake_seq, NE) of consecutive windows of equally many rows; NaN where a window has a single class."""
    pieces = [columns.take(piece) for piece in np.array_split(np.arange(len(columns.labels)), WINDOWS)]
    middle = np.array([piece.lake_seq.mean() for piece in pieces])
    ne = [normalised_entropy(piece.logits[model], piece.labels, piece.weights) for piece in pieces]
    return middle, np.array([np.nan if value is None else value for value in ne])

"""A replay in pictures: gains with their intervals by arm and student, gains over the stream, and NE by its tenths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#1b3a5c", "#d1495b", "#edae49", "#2e8b57", "#8d6a9f", "#66a5ad", "#5a5a5a", "#c98686")
PER_LINE = 5
"""Names in a line of a legend."""

WORST_NE = 1.3
"""What is worse lies outside the picture: in its first rows a model can be many times as bad as the base rate."""

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
"""Colours of different lightness, and a different marker for every arm: the arms are distinct without colour, too."""


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write `ne_by_age.png` to the folder and, where arms are compared, `gains.png` and `over_time.png`."""
    arms = [arm for arm in report["sweep"]["trials"] if arm not in report["sweep"]["baselines"]]
    drawn = [_by_age(report, folder / "ne_by_age.png")]
    if arms:
        drawn += [_gains(report, arms, folder / "gains.png"), _over_time(report, arms, folder / "over_time.png")]
    return drawn


def _look(arms: list[str], arm: str) -> dict[str, Any]:
    at = arms.index(arm)
    return {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)]}


def _gains(report: dict[str, Any], arms: list[str], path: Path) -> Path:
    """A panel per task and condition; a group of lines per student, and the mean over students below them."""
    conditions, tasks = list(report["conditions"]), list(next(iter(report["conditions"].values()))["overall"])
    lines = max(len(_panel(report, conditions[0], task)) for task in tasks) * (len(arms) + 1)
    figure, axes = plt.subplots(
        len(tasks),
        len(conditions),
        figsize=(1.6 + 3.4 * len(conditions), len(tasks) * (1.1 + 0.17 * lines)),
        squeeze=False,
        sharex="row" if _alike(report) else False,
        sharey="row",
    )
    for row, task in zip(axes, tasks, strict=True):
        for axis, condition in zip(row, conditions, strict=True):
            panel = _panel(report, condition, task)
            for place, figures in enumerate(panel.values()):
                for at, arm in enumerate(arms):
                    gain = figures[arm]
                    if gain is None or gain["too_few"] is not None:
                        continue
                    y = place * (len(arms) + 1) + at
                    reach = (
                        None if gain["low"] is None else [[gain["value"] - gain["low"]], [gain["high"] - gain["value"]]]
                    )
                    label = arm if place == 0 else None
                    axis.errorbar(gain["value"], y, xerr=reach, markersize=5, capsize=2, linewidth=1.4, linestyle="",
                                  label=label, **_look(arms, arm))  # fmt: skip
            axis.axvline(0, color="#999999", linewidth=1)
            axis.set_yticks([p * (len(arms) + 1) + (len(arms) - 1) / 2 for p in range(len(panel))], list(panel))
            axis.set_title(
                f"{condition} · {task}" if len(tasks) > 1 else condition, loc="left", fontweight="bold", fontsize=10
            )
            axis.grid(alpha=0.25, axis="x")
            axis.spines[["top", "right"]].set_visible(False)
        row[0].invert_yaxis()
    for axis in axes[-1]:
        axis.set_xlabel("NE gain, % of the best twin's")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="lower center", ncols=min(6, len(arms)))
    about = report["sweep"]
    title = f"{about['config']}, {about['date']}: gain over the best twin on the second half, 95 % intervals"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return _saved(figure, path)


def _panel(report: dict[str, Any], condition: str, task: str) -> dict[str, dict[str, Any]]:
    """Student -> arm -> gain, and the mean over students last."""
    value = report["conditions"][condition]
    found = {}
    for student, tasks in value["students"].items():
        if task in tasks:
            found[student] = {arm: f["gain"] for arm, f in tasks[task]["arms"].items() if "gain" in f}
    if len(found) > 1:
        found["mean"] = {arm: f["gain"] for arm, f in value["overall"][task].items() if "gain" in f}
    return found


def _alike(report: dict[str, Any]) -> bool:
    """Whether the conditions' gains are of one order, so that one axis shows them all."""
    reaches = []
    for value in report["conditions"].values():
        gains = [f["gain"]["value"] for arms in value["overall"].values() for f in arms.values() if f.get("gain")]
        reaches.append(max((abs(gain) for gain in gains), default=0.0))
    return max(reaches) < 5 * max(min(reaches), 1e-9)


def _over_time(report: dict[str, Any], arms: list[str], path: Path) -> Path:
    """The first condition: a panel per student and task, gain by window of the stream, ± one s.e. over seeds."""
    condition = next(iter(report["conditions"]))
    figure, panels = _panels(report, condition)
    for axis, value in panels:
        shown, figures = [], value["arms"]
        for arm in arms:
            at, gain, se = np.array(figures[arm]["over_time"]).reshape(-1, 3).T
            look = _look(arms, arm)
            axis.plot(100 * at, gain, label=arm, linewidth=1.5, markersize=4, markevery=3, **look)
            axis.fill_between(100 * at, gain - se, gain + se, color=look["color"], alpha=0.15, linewidth=0)
            shown += gain[2:].tolist()
        if shown and np.isfinite(shown).all():  # the very first windows may lie outside
            margin = 0.15 * (max(shown) - min(shown)) + 0.1
            axis.set_ylim(min(*shown, 0) - margin, max(*shown, 0) + margin)
        axis.axhline(0, color="#999999", linewidth=1)
        axis.axvline(50, color="#999999", linewidth=1, linestyle=":")
        axis.set_ylabel("NE gain, %")
    about = report["sweep"]
    title = f"{about['config']}, {about['date']}, {condition}: NE relative to the best twin by window, ± s.e."
    return _finished(figure, "per cent of the stream (judged right of the dotted line)", title, path)


def _panels(report: dict[str, Any], condition: str) -> tuple[Figure, list[tuple[Axes, dict[str, Any]]]]:
    """A figure with a panel per student and task, and what the report has for each."""
    values = {
        f"{student} · {task}": value
        for student, tasks in report["conditions"][condition]["students"].items()
        for task, value in tasks.items()
    }
    across = min(2, len(values))
    down = -(-len(values) // across)
    figure, axes = plt.subplots(down, across, figsize=(6.2 * across, 3.0 * down + 0.5), squeeze=False, sharex=True)
    for axis in axes.flat[len(values) :]:
        axis.set_visible(False)
    for axis, title in zip(axes.flat, values, strict=False):
        axis.set_title(title, loc="left", fontweight="bold", fontsize=10)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(zip(axes.flat, values.values(), strict=False))


def _finished(figure: Figure, along: str, title: str, path: Path) -> Path:
    """Save it, with what lies along the lowest panels, and what the lines are at its foot."""
    for axis in figure.axes:
        place = axis.get_subplotspec()
        if place is not None and place.is_last_row():
            axis.set_xlabel(along)
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, frameon=False, fontsize=8, loc="lower left", ncols=PER_LINE)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    foot = 0.2 * -(-len(names) // PER_LINE) + 0.15  # inches
    figure.tight_layout(rect=(0, foot / figure.get_figheight(), 1, 1))
    return _saved(figure, path)


def _by_age(report: dict[str, Any], path: Path) -> Path:
    """The first condition: a panel per student and task, NE of every arm and of all others by tenth of the stream."""
    condition, arms = next(iter(report["conditions"])), list(report["sweep"]["trials"])
    figure, panels = _panels(report, condition)
    at = np.arange(5, 100, 10)
    for axis, value in panels:
        for arm, figures in value["arms"].items():
            ne = np.array(figures["ne_by_tenth"], dtype=float)
            axis.plot(at, ne, label=arm, linewidth=1.5, markersize=4, **_look(arms, arm))
        for style, (name, figures) in zip(("--", ":", "-.", (0, (1, 4))) * 3, value["others"].items(), strict=False):
            ne = np.array(figures["ne_by_tenth"], dtype=float)
            axis.plot(at, ne, label=name, linewidth=1.2, color="#777777", linestyle=style)
        axis.axhline(1, color="#999999", linewidth=1)
        axis.set_ylim(top=min(axis.get_ylim()[1], WORST_NE))
        axis.set_ylabel("NE")
    about = report["sweep"]
    title = f"{about['config']}, {about['date']}, {condition}: NE by tenth"
    return _finished(figure, "per cent of the stream", title, path)


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path

"""NE against FLOPs, a panel per task: every teacher a point, every interaction's law a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

COLOURS = {"wukong": "#d1495b", "dlrm": "#30638e", "dcn": "#2e8b57"}
LABELS = {"wukong": "Wukong", "dlrm": "DLRM", "dcn": "DCN-V2"}


def draw(report: dict[str, Any], path: Path) -> Path:
    """A report of `pipelines.lab.scaling.report`, drawn to `path`."""
    tasks = list(report["judged"])
    figure, axes = plt.subplots(1, len(tasks), figsize=(6.4 * len(tasks), 5.0), squeeze=False)
    for axis, task in zip(axes.flat, tasks, strict=True):
        for interaction, laws in report["laws"].items():
            points = [m for m in report["members"] if m["interaction"] == interaction and m["tasks"][task]["ne"]]
            flops = np.array([m["flops_per_example"] for m in points], dtype=float)
            ne = np.array([m["tasks"][task]["ne"] for m in points])
            label = f"{LABELS[interaction]}: {in_words(laws[task])}"
            axis.plot(flops, ne, "o", color=COLOURS[interaction], label=label, markersize=5)
            if len(np.unique(flops)) > 1:
                along = np.geomspace(flops.min(), flops.max(), 100)
                axis.plot(along, _curve(laws[task], flops, ne, along), color=COLOURS[interaction], linewidth=1.4)
        axis.set_xscale("log")
        axis.set_title(_title(task, report["judged"][task]), loc="left", fontweight="bold", fontsize=10)
        axis.set_xlabel("FLOPs per example, forward")
        axis.set_ylabel("normalised entropy")
        axis.grid(alpha=0.25, which="both")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))  # never on a point
    run = report["run"]
    title = f"{run['name']}: teachers of equal FLOPs on {run['rows']:,} rows, one pass, judged on the second half"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def in_words(law: dict[str, Any]) -> str:
    """What four times the FLOPs gain, and the exponent where it is determined."""
    gain, power = law["gain_per_4x_percent"], law["power_law"]
    if gain is None:
        return f"not determined: {law['not_determined']}"
    said = f"{gain['value']:+.2f} % per 4× [{gain['low']:+.2f}, {gain['high']:+.2f}]"
    if power is None:
        return f"{said}, exponent not determined"
    alpha = power["alpha"]
    return f"{said}, α {alpha['value']:.2f} [{alpha['low']:.2f}, {alpha['high']:.2f}]"


def _curve(law: dict[str, Any], flops: np.ndarray, ne: np.ndarray, along: np.ndarray) -> np.ndarray:
    if (power := law["power_law"]) is not None:
        curve: np.ndarray = power["a"] + power["b"] * (along / power["scale"]) ** -power["alpha"]["value"]
        return curve
    slope, level = np.polyfit(np.log(flops), ne, 1)
    return slope * np.log(along) + level


def _title(task: str, judged: dict[str, Any]) -> str:
    optimum = judged["optimum"]
    floor = "" if optimum is None or optimum["ne"] is None else f", optimum {optimum['ne']:.4f}"
    return f"{task}: {judged['rows']:,} rows, {judged['positives']:,} positive{floor}"

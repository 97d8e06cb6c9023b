"""Where the time of a run's workers goes, phase by phase, and how much of it is the models' own compute.

    python -m tests.benchmarks.phases before=runs/old after=runs/demo [--picture docs/pictures/phases.png]

Reads `phases_s` of each run's status.json: wall time in every phase that is not waiting. With more workers than cores a
phase contains waiting for a core, all alike: shares hold where seconds do not. *Compute* is what a bare loop around the
models would do as well: a teacher's and a student's steps, a twin's, and scoring. The generator of a demo is no part of
a pipeline and is left out of the share.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

COMPUTE = ("score", "train", "train twin")
SOURCE = "ingest"
COLOURS = {
    "score": "#30638e", "train": "#d1495b", "train twin": "#8a8a8a", "batch": "#d99a2b", "read": "#2e8b57",
    "make": "#c9c9c9",
}  # fmt: skip
OTHERS = "#e6e2d8"


def phases_of(run: Path) -> dict[str, dict[str, float]]:
    """Seconds of every phase but waiting, by worker."""
    workers = json.loads((run / "status.json").read_text())["workers"]
    return {
        name: {phase: s for phase, s in worker["phases_s"].items() if not phase.startswith("wait")}
        for name, worker in workers.items()
    }


def compute_share(phases: Mapping[str, float]) -> float | None:
    """Of a worker's busy time; None where it never was."""
    busy = sum(phases.values())
    return sum(phases.get(phase, 0.0) for phase in COMPUTE) / busy if busy else None


def said(name: str, workers: Mapping[str, Mapping[str, float]]) -> list[str]:
    lines = [f"{name}:", "| worker | busy s | compute | the largest phases |", "|---|---|---|---|"]
    for worker, phases in workers.items():
        share = compute_share(phases)
        largest = ", ".join(f"{phase} {s:.1f}" for phase, s in Counter(phases).most_common(6))
        shown = "–" if worker == SOURCE or share is None else f"{share:.2f}"
        lines.append(f"| {worker} | {sum(phases.values()):.1f} | {shown} | {largest} |")
    total: Counter[str] = Counter()
    for worker, phases in workers.items():
        total.update({} if worker == SOURCE else phases)
    return [*lines, f"compute over all busy time of the pipeline: {compute_share(total) or 0:.2f}", ""]


def draw(runs: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """A panel a run, a bar a worker, cut at its phases; panels have one scale."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = [len(workers) for workers in runs.values()]
    figure, axes = plt.subplots(
        len(runs), 1, figsize=(9, 0.34 * sum(bars) + 1.6), sharex=True, squeeze=False, height_ratios=bars
    )
    for axis, (name, workers) in zip(axes[:, 0], runs.items(), strict=True):
        for place, phases in enumerate(workers.values()):
            left = 0.0
            shown = [(phase, phases[phase], COLOURS[phase]) for phase in COLOURS if phase in phases]
            others = sum(s for phase, s in phases.items() if phase not in COLOURS)
            for phase, seconds, colour in [*shown, ("all others", others, OTHERS)]:
                axis.barh(place, seconds, left=left, color=colour, height=0.7, label=phase)
                left += seconds
        axis.set_yticks(range(len(workers)), workers, fontsize=8)
        axis.invert_yaxis()
        axis.set_title(name, loc="left", fontweight="bold", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("seconds of wall time in each phase, without waiting")
    known: dict[str, object] = {}
    for axis in axes[:, 0]:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    names = [label for label in [*COLOURS, "all others"] if label in known]
    figure.legend([known[n] for n in names], names, frameon=False, fontsize=8, loc="lower left", ncols=len(names))
    figure.tight_layout(rect=(0, 0.3 / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN", help="run directories, each under a name")
    parser.add_argument("--picture", type=Path, help="where a picture of them goes")
    asked = parser.parse_args()
    runs = {name: phases_of(Path(run)) for name, _, run in (given.partition("=") for given in asked.runs)}
    for name, workers in runs.items():
        print("\n".join(said(name, workers)))
    if asked.picture is not None:
        draw(runs, asked.picture)


if __name__ == "__main__":
    main()

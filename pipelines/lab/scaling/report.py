"""Scaling as tables and a picture: NE against FLOPs, every teacher a point, every interaction's law a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipelines.lab.scaling.fit import CONDITION, OPTIMUM_ARM, Law, Scaling
from pipelines.report.cells import Cells
from pipelines.report.figure import Figure, Point, Series
from pipelines.report.pictures import write_png
from pipelines.report.table import TextTable
from pipelines.report.words import count, fixed

LABELS = {"wukong": "Wukong", "dlrm": "DLRM", "dcn": "DCN-V2"}


def tables(scaling: Scaling) -> Iterator[TextTable]:
    """A table for each task, of every member."""
    every = Cells(scaling.cells)
    for task in tasks(scaling):
        rows = []
        few = None
        for member in scaling.members:
            of = every.of(CONDITION, "", task, member.name)
            few = of.lacking("rows")
            rates = ", ".join(f"{cell.value:g}" for cell in of.below("dense_lr").values())
            speeds = [cell.value or 0.0 for cell in of.below("rows_per_s").values()]
            gains = [of.interval(f"gain/over/{other}") for other in ("smallest", "wukong")]
            cost = [count(member.flops), count(sum(speeds) / len(speeds))]
            rows.append([member.name, rates, *cost, fixed(of.value("ne")), fixed(of.value("auc")), *gains])
        of = every.of(CONDITION, "", task, scaling.members[0].name)
        optimum = every.of(CONDITION, "", task, OPTIMUM_ARM).value("ne")
        floor = "" if optimum is None else f"; optimum NE {optimum:.4f}"
        judged = f"{count(of.value('rows'))} rows, {count(of.value('positives'))} positives{floor}"
        why = "" if few is None else f"; too few {few} to tell: give more --rows"
        head = ["teacher", "rate", "FLOPs/example", "rows/s", "NE", "AUC", "% over smallest", "% over Wukong"]
        yield TextTable(f"{task}: judged on the second half: {judged}{why}", head, rows)


def tasks(scaling: Scaling) -> list[str]:
    return list(dict.fromkeys(law.task for law in scaling.laws))


def laws(scaling: Scaling, task: str) -> Iterator[str]:
    """Gain of four times the FLOPs, by interaction, in words."""
    for law in scaling.laws:
        if law.task == task:
            yield f"{law.interaction}: {in_words(scaling, law)}"


def in_words(scaling: Scaling, law: Law) -> str:
    """Describe the gain from four times the FLOPs, and the exponent if it is determined."""
    of = Cells(scaling.cells).of(CONDITION, "", law.task, law.interaction)
    gain, alpha = of.cell("gain per 4x"), of.cell("alpha")
    if gain is None:
        return f"not determined: {law.reason}"
    said = f"{gain.value:+.2f} % per 4× [{gain.low:+.2f}, {gain.high:+.2f}]"
    if alpha is None:
        return f"{said}, exponent not determined ({law.reason})"
    return f"{said}, α {alpha.value:.2f} [{alpha.low:.2f}, {alpha.high:.2f}]"


def draw(scaling: Scaling, path: Path) -> Path:
    """Write the picture, a panel per task."""
    figures = [_figure(scaling, task) for task in tasks(scaling)]
    title = f"{scaling.name}: teachers of equal FLOPs on {scaling.rows:,} rows, one pass, judged on the second half"
    return write_png(path, title, figures)


def _figure(scaling: Scaling, task: str) -> Figure:
    every, series = Cells(scaling.cells), []
    for look, law in enumerate(law for law in scaling.laws if law.task == task):
        own = [member for member in scaling.members if member.interaction == law.interaction]
        values = [(member.flops, every.of(CONDITION, "", task, member.name).value("ne")) for member in own]
        points = [Point(float(flops), ne) for flops, ne in values if ne is not None]
        series.append(Series(LABELS[law.interaction], look, points, "points"))
        if len({p.x for p in points}) > 1:
            series.append(Series("", look, _curve(law, points), "curve"))
    drawn = any(one.points for one in series)  # a logarithmic axis needs a point
    return Figure(task, series, "FLOPs per example, forward", "NE", x_scale="log" if drawn else "number")


def _curve(law: Law, points: Sequence[Point]) -> list[Point]:
    flops, ne = np.array([p.x for p in points]), np.array([p.y for p in points])
    along = np.geomspace(flops.min(), flops.max(), 50)
    if law.curve is None:
        slope, level = np.polyfit(np.log(flops), ne, 1)
        values = slope * np.log(along) + level
    else:
        a, b, scale, alpha = law.curve
        values = a + b * (along / scale) ** -alpha
    return [Point(float(x), float(y)) for x, y in zip(along, values, strict=True)]

"""Figures drawn by matplotlib: several as one PNG, or each as an SVG that lies inside a page.

In a page the colours are variables of its style sheet, so that one picture is readable in light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.report.figure import Figure, Series
from pipelines.report.words import when

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#1b4b8f", "#c2410c", "#2e7d4f", "#7c3aa8", "#0f7f8b", "#9a6b00", "#b03070", "#555f6b")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
"""Colours of different lightness, and a marker for each: series are distinct without colour, too."""
GREY, INK, SOFT, RULE = "#777776", "#1c2430", "#5b6675", "#d5dbe2"
DASHES = ("--", ":", "-.", (0, (1, 4)))
VARIABLES = {colour: f"var(--a{n})" for n, colour in enumerate(COLOURS)} | {
    GREY: "var(--soft)", INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--line)",
}  # fmt: skip
ACROSS = 2
MOST_TICKS = 6
PER_LINE = 5
"""Names in a line of a legend."""


def write_png(path: Path, title: str, figures: Sequence[Figure], across: int = ACROSS) -> Path:
    """Draw figures as panels of one picture, with one legend at its foot."""
    with _matplotlib() as plt:
        across = min(across, len(figures))
        down = -(-len(figures) // across)
        heights = [max(_height(f) for f in figures[row * across :][:across]) for row in range(down)]
        made, axes = plt.subplots(
            down,
            across,
            figsize=(5.8 * across, sum(heights) + 0.9),
            squeeze=False,
            gridspec_kw={"height_ratios": heights},
        )
        for axis in axes.flat[len(figures) :]:
            axis.set_visible(False)
        named: dict[str, Any] = {}
        for axis, figure in zip(axes.flat, figures, strict=False):
            _draw(axis, figure)
            axis.set_title(figure.title, loc="left", fontweight="bold", fontsize=10)
            handles, names = axis.get_legend_handles_labels()
            named |= {name: handle for name, handle in zip(names, handles, strict=True) if name not in named}
        made.legend(named.values(), named, frameon=False, fontsize=9, loc="lower left", ncols=PER_LINE)
        made.suptitle(title, x=0.01, ha="left", fontsize=10)
        foot = 0.2 * -(-len(named) // PER_LINE) + 0.15  # inches
        made.tight_layout(rect=(0, foot / made.get_figheight(), 1, 1))
        made.savefig(path, dpi=110)
        plt.close(made)
    return path


def svg(figure: Figure, ident: str) -> str:
    """Draw one figure as an SVG element; `ident` begins the ids inside it, which are unique on the page then."""
    with _matplotlib() as plt:
        made, axis = plt.subplots(figsize=(5.2, _height(figure) + 0.4))
        _draw(axis, figure)
        if len(figure.series) > 1 and not figure.named_points:
            axis.legend(frameon=False, fontsize=8)
        made.tight_layout()
        text = io.StringIO()
        made.savefig(
            text, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
        plt.close(made)
    return _inside_a_page(text.getvalue(), ident)


def _inside_a_page(drawn: str, ident: str) -> str:
    """The SVG element without what a page has already, and with ids and colours of the page."""
    drawn = drawn[drawn.index("<svg") :].strip()
    drawn = re.sub(r"<(metadata|style).*?</\1>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'\s(?:xmlns(?::xlink)?|version|width|height)="[^"]*"', "", drawn, count=5)
    linked = set(re.findall(r"#([\w.-]+)", drawn))
    drawn = re.sub(r' id="([^"]*)"', lambda found: f' id="{ident}-{found[1]}"' if found[1] in linked else "", drawn)
    drawn = re.sub(r'(href="#|url\(#)', rf"\g<1>{ident}-", drawn)
    drawn = re.sub(r"'DejaVu Sans'[^;\"]*", "sans-serif", drawn)
    for colour, variable in VARIABLES.items():
        drawn = drawn.replace(colour, variable)
    return drawn


@contextmanager
def _matplotlib() -> Iterator[Any]:
    """Yield pyplot; it is loaded when the first figure is drawn, since a live run imports this file as it starts."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    look: Any = {
        "text.color": INK, "axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "axes.edgecolor": RULE,
        "grid.color": RULE, "svg.fonttype": "none", "svg.hashsalt": "exfm", "text.parse_math": False, "font.size": 9,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "figure.max_open_warning": 0,
    }  # fmt: skip
    with plt.rc_context(look):
        yield plt


def _height(figure: Figure) -> float:
    """Inches of the axes with their labels."""
    return 0.9 + 0.17 * len(figure.rows) * (1 + len(figure.series)) if figure.rows else 2.8


def _draw(axis: Axes, figure: Figure) -> None:
    for number, series in enumerate(figure.series):
        if figure.rows:
            _bars(axis, series, (number - (len(figure.series) - 1) / 2) / (len(figure.series) + 1))
        else:
            _along(axis, series, number)
            if figure.named_points:
                for point in series.points:
                    axis.annotate(series.name, (point.x, point.y), (6, 4), textcoords="offset points")
    _levels(axis, figure)
    _axes(axis, figure)


def _look(series: Series) -> dict[str, Any]:
    if series.look is None:
        return {"color": GREY}
    return {"color": COLOURS[series.look % len(COLOURS)], "marker": MARKERS[series.look % len(MARKERS)]}


def _along(axis: Axes, series: Series, number: int) -> None:
    x, y = [p.x for p in series.points], [p.y for p in series.points]
    look = _look(series)
    banded = [(p.x, p.low, p.high) for p in series.points if p.low is not None and p.high is not None]
    if series.style == "points":
        axis.plot(x, y, linestyle="", label=series.name, markersize=5, **look)
        if banded:
            axis.vlines(*zip(*banded, strict=True), color=look["color"], linewidth=1.4)
        return
    style = DASHES[number % len(DASHES)] if series.look is None else "-"
    if series.style == "curve":
        look.pop("marker", None)
    every = max(1, len(x) // 8)
    axis.plot(x, y, linestyle=style, label=series.name, linewidth=1.6, markersize=4, markevery=every, **look)
    if banded:
        places, lows, highs = zip(*banded, strict=True)
        axis.fill_between(places, lows, highs, color=look["color"], alpha=0.15, linewidth=0)


def _bars(axis: Axes, series: Series, shift: float) -> None:
    """Values along x, each at the place of its row, a little apart from those of other series."""
    look = _look(series)
    places = [p.x + shift for p in series.points]
    axis.plot([p.y for p in series.points], places, linestyle="", label=series.name, markersize=5, **look)
    intervals = [
        (at, p.low, p.high) for at, p in zip(places, series.points, strict=True) if None not in (p.low, p.high)
    ]
    if intervals:
        axis.hlines(*zip(*intervals, strict=True), color=look["color"], linewidth=1.4)


def _levels(axis: Axes, figure: Figure) -> None:
    if figure.level is not None:
        (axis.axvline if figure.rows else axis.axhline)(figure.level, color=SOFT, linewidth=1, linestyle=":")
    for at, text in (figure.marks or {}).items():
        axis.axvline(at, color=SOFT, linewidth=1, linestyle=":")
        axis.annotate(text, (at, 1), (3, -10), xycoords=("data", "axes fraction"), textcoords="offset points")
    if figure.diagonal:
        most = max((p.y for series in figure.series for p in series.points), default=1.0)
        axis.plot([0, most], [0, most], color=SOFT, linewidth=1, linestyle=":")


def _axes(axis: Axes, figure: Figure) -> None:
    axis.set_xlabel(figure.x_name)
    axis.set_ylabel(figure.y_name)
    low, high = limits(figure)
    if figure.rows:
        axis.set_xlim(low, high)
        names = [f"{name} ★" if at in figure.starred else name for at, name in enumerate(figure.rows)]
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
        return
    axis.set_ylim(low, high)
    if figure.x_scale == "log":
        _log_axis(axis, sorted({p.x for series in figure.series if series.style != "curve" for p in series.points}))
    if figure.x_scale == "time":
        span = max(p.x for s in figure.series for p in s.points) - min(p.x for s in figure.series for p in s.points)
        axis.locator_params(axis="x", nbins=4)
        axis.xaxis.set_major_formatter(lambda ms, _: when(ms, span))


def _log_axis(axis: Axes, places: Sequence[float]) -> None:
    """Ticks at the places of points, as far as there is room for them, in thousands, millions, …"""
    from matplotlib.ticker import EngFormatter, NullFormatter

    axis.set_xscale("log")
    if len(places) <= MOST_TICKS:
        axis.set_xticks(places)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_minor_formatter(NullFormatter())


def limits(figure: Figure) -> tuple[float, float]:
    """Limits of the values' axis: of all values, and of their intervals but for the widest twentieth.

    >>> from pipelines.report.figure import Point
    >>> limits(Figure("", [Series("a", 0, [Point(0, 1.0, 0.0, 2.0)])], "", "", level=0.0))
    (-0.1, 2.1)
    """
    points = [p for series in figure.series for p in series.points]
    values = [p.y for p in points] + ([] if figure.level is None else [figure.level])
    lows = sorted([p.low for p in points if p.low is not None] + values)
    highs = sorted([p.high for p in points if p.high is not None] + values)
    if not points:
        return -1.0, 1.0
    low, high = min(lows[len(lows) // 20], min(values)), max(highs[-1 - len(highs) // 20], max(values))
    low = low if figure.low is None else max(low, figure.low)
    high = high if figure.high is None else min(high, figure.high)
    margin = 0.05 * ((high - low) or max(abs(high), 1e-9))
    return low - margin, high + margin

"""Pictures as inline SVG. Each is a figure: the picture, its title, what it shows, and the table behind it.

All are 420 units wide, so that their text is readable on a phone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pipelines.lab.page.marks import colour, marker, number, path, scale, ticks
from pipelines.lab.page.markup import Html, el, folded

WIDTH = 420
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 38


class Line(NamedTuple):
    """An arm over time: x, value, low and high, of which the last two may be None. `arm`: its number."""

    name: str
    arm: int
    points: Sequence[tuple[float, float, float | None, float | None]]


class Bar(NamedTuple):
    """A row of a forest plot; `said` stands in the place of an interval where there is none."""

    name: str
    arm: int
    value: float | None
    low: float | None
    high: float | None
    said: str = ""
    strong: bool = False


class Spot(NamedTuple):
    """An arm at (x, y), with an interval of y, and of x none."""

    name: str
    arm: int
    x: float
    y: float
    low: float | None
    high: float | None


def figure(ident: str, title: str, shows: str, drawing: Html, height: float, behind: Html) -> Html:
    """A picture with what a reader of screens needs; `ident` is its own on the page."""
    svg = el(
        "svg",
        el("title", title, id=f"{ident}-title"),
        el("desc", shows, id=f"{ident}-shows"),
        drawing,
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_labelledby=f"{ident}-title {ident}-shows",
    )
    return el("figure", el("figcaption", el("b", title), " ", shows), svg, folded("The table behind it", behind))


def legend(arms: Mapping[str, int]) -> Html:
    """What marks mean."""
    items = [
        el("li", el("svg", marker(12, 8, number), viewBox="0 0 24 16", aria_hidden="true"), name)
        for name, number in arms.items()
    ]
    return el("ul", *items, class_="legend", aria_label="arms")


def lines(
    of: Sequence[Line], x_text: Callable[[float], str], y_name: str, marks: Iterable[tuple[float, str]] = ()
) -> tuple[Html, float]:
    """Values over x with their bands, and vertical `marks` at (x, text). The picture and its height."""
    height = 240.0
    points = [point for line in of for point in line.points]
    x = scale(min(p[0] for p in points), max(p[0] for p in points), LEFT, WIDTH - RIGHT)
    low, high = _range(points)
    y = scale(low, high, height - BOTTOM, TOP)
    parts = [_y_axis(y, low, high, y_name), _zero(y, low, high)]
    for line in of:
        banded = [(x(a), y(lo), y(hi)) for a, _, lo, hi in line.points if lo is not None and hi is not None]
        if banded:
            around = [(a, lo) for a, lo, _ in banded] + [(a, hi) for a, _, hi in reversed(banded)]
            parts.append(el("path", d=path(around) + "Z", fill=colour(line.arm), fill_opacity=0.15))
    for line in of:
        placed = [(x(a), y(v)) for a, v, _, _ in line.points]
        parts.append(el("path", d=path(placed), fill="none", stroke=colour(line.arm), stroke_width=1.8))
        parts += [marker(a, b, line.arm, 2.6) for a, b in placed[:: max(1, len(placed) // 8)]]
    for at, text in marks:
        parts.append(el("line", x1=x(at), x2=x(at), y1=TOP, y2=height - BOTTOM, class_="zero"))
        parts.append(el("text", text, x=x(at) + 3, y=TOP + 10, class_="soft"))
    ends = [(points[0][0], "start"), (max(p[0] for p in points), "end")]
    parts += [el("text", x_text(at), x=x(at), y=height - 20, text_anchor=a, class_="soft") for at, a in ends]
    return _group(parts), height


def forest(of: Sequence[Bar], x_name: str) -> tuple[Html, float]:
    """A row for each bar, with its name in front; a star marks those that are `strong`."""
    row, left = 20.0, 168
    height = row * len(of) + BOTTOM + TOP
    known = [(0.0, b.value, b.low, b.high) for b in of if b.value is not None]
    low, high = _range(known or [(0.0, 0.0, -1.0, 1.0)])
    x = scale(low, high, left, WIDTH - RIGHT)
    parts = [el("line", x1=x(0), x2=x(0), y1=TOP, y2=height - BOTTOM, class_="zero")]
    for k, bar in enumerate(of):
        y = TOP + row * (k + 0.5)
        name = bar.name if len(bar.name) <= 27 else bar.name[:26] + "…"
        parts.append(el("text", name + (" ★" if bar.strong else ""), x=left - 8, y=y + 4, text_anchor="end"))
        if bar.said or bar.value is None:
            parts.append(el("text", bar.said or "–", x=left + 4, y=y + 4, class_="soft"))
            continue
        if bar.low is not None and bar.high is not None:
            ends = {"x1": x(bar.low), "x2": x(bar.high), "y1": y, "y2": y}
            parts.append(el("line", **ends, stroke=colour(bar.arm), stroke_width=2))
        parts.append(marker(x(bar.value), y, bar.arm))
    for tick in ticks(low, high, 5):
        parts.append(el("text", number(tick), x=x(tick), y=height - 22, text_anchor="middle", class_="soft"))
    parts.append(el("text", x_name, x=(left + WIDTH - RIGHT) / 2, y=height - 5, text_anchor="middle", class_="soft"))
    return _group(parts), height


def reliability(of: Mapping[str, tuple[int, Sequence[Mapping[str, float]]]]) -> tuple[Html, float]:
    """Observed rates of bins over predicted ones, with bands, and the diagonal of a calibrated model."""
    height = 300.0
    bins = [one for _, some in of.values() for one in some]
    most = max([max(b["predicted"], b["observed"]) for b in bins] + [1e-6]) * 1.1
    x, y = scale(0, most, LEFT, WIDTH - RIGHT), scale(0, most, height - BOTTOM, TOP)
    parts = [_y_axis(y, 0, most, "observed rate")]
    parts.append(el("line", x1=x(0), y1=y(0), x2=x(most), y2=y(most), class_="zero"))
    for k, (arm, some) in enumerate(of.values()):
        shift = 3 * (k - (len(of) - 1) / 2)
        for one in some:
            at = round(x(one["predicted"]) + shift, 2)
            ends = {"x1": at, "x2": at, "y1": y(one["low"]), "y2": y(one["high"])}
            parts.append(el("line", **ends, stroke=colour(arm), stroke_width=1.4))
            parts.append(marker(at, y(one["observed"]), arm, 3))
    for tick in ticks(0, most, 5):
        parts.append(el("text", number(tick), x=x(tick), y=height - 22, text_anchor="middle", class_="soft"))
    parts.append(el("text", "predicted probability", x=WIDTH / 2, y=height - 5, text_anchor="middle", class_="soft"))
    return _group(parts), height


def scatter(of: Sequence[Spot], x_name: str, y_name: str) -> tuple[Html, float]:
    """Every arm a marker with its interval, and its name at it."""
    height = 260.0
    lowest, highest = min(s.x for s in of), max(s.x for s in of)
    room = 0.25 * (highest - lowest) or 0.1
    x = scale(lowest - room, highest + room, LEFT, WIDTH - RIGHT)
    low, high = _range([(s.x, s.y, s.low, s.high) for s in of])
    y = scale(low, high, height - BOTTOM, TOP)
    parts = [_y_axis(y, low, high, y_name), _zero(y, low, high)]
    for spot in of:
        if spot.low is not None and spot.high is not None:
            ends = {"x1": x(spot.x), "x2": x(spot.x), "y1": y(spot.low), "y2": y(spot.high)}
            parts.append(el("line", **ends, stroke=colour(spot.arm), stroke_width=1.6))
        parts.append(marker(x(spot.x), y(spot.y), spot.arm))
        right = spot.x > (lowest + highest) / 2
        parts.append(el("text", spot.name, x=x(spot.x) + (-8 if right else 8), y=y(spot.y) + 4,
                        text_anchor="end" if right else "start"))  # fmt: skip
    for tick in ticks(lowest - room, highest + room, 5):
        parts.append(el("text", number(tick), x=x(tick), y=height - 22, text_anchor="middle", class_="soft"))
    parts.append(el("text", x_name, x=WIDTH / 2, y=height - 5, text_anchor="middle", class_="soft"))
    return _group(parts), height


def _range(points: Sequence[tuple[float, float, float | None, float | None]]) -> tuple[float, float]:
    """Of values and bands, 0 included. Bands far beyond the values are cut off: a few wide ones would hide the rest."""
    values = [v for _, v, _, _ in points]
    reach = max(max(map(abs, values)), 1e-9)
    lows = sorted([lo for _, _, lo, _ in points if lo is not None] + [min(values)])
    highs = sorted([hi for _, _, _, hi in points if hi is not None] + [max(values)])
    low, high = lows[len(lows) // 20], highs[-1 - len(highs) // 20]
    low, high = min(low, min(values), 0.0), max(high, max(values), 0.0)
    margin = 0.05 * ((high - low) or reach)
    return low - margin, high + margin


def _zero(y: Callable[[float], float], low: float, high: float) -> Html | None:
    if not low < 0 < high:
        return None
    return el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(0), y2=y(0), class_="zero")


def _y_axis(y: Callable[[float], float], low: float, high: float, name: str) -> Html:
    parts = []
    for tick in ticks(low, high):
        parts.append(el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick), class_="axis"))
        parts.append(el("text", number(tick), x=LEFT - 5, y=y(tick) + 4, text_anchor="end", class_="soft"))
    middle = (y(low) + y(high)) / 2
    turned = f"rotate(-90 11 {middle:g})"
    parts.append(el("text", name, x=11, y=middle, text_anchor="middle", transform=turned, class_="soft"))
    return _group(parts)


def _group(parts: Sequence[Html | None]) -> Html:
    return el("g", *parts)

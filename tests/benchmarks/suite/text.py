"""Figures as a table."""

from __future__ import annotations

from collections.abc import Iterable

from tests.benchmarks.suite.measuring import Figure

HEAD = ("benchmark", "value (runs)", "unit", "of the limit", "of the reference", "ratio (runs)", "target")


def figures_table(figures: Iterable[Figure]) -> str:
    """Format as Markdown, a line per figure.

    >>> of = Figure(name="copy", value=9.5, low=9, high=10, unit="GB / s", runs=5, command="exfm bench machine")
    >>> print(figures_table([of]).splitlines()[-1])
    | copy | 9.5 (9 to 10) | GB / s |  |  |  |  |
    """
    lines = [HEAD, ("---",) * len(HEAD), *map(_cells, figures)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(figure: Figure) -> tuple[str, ...]:
    of_reference = "" if figure.of_reference is None else f"{figure.of_reference:.2f} ({figure.reference_is})"
    ratio = ""
    if figure.ratio is not None and figure.ratio_low is not None and figure.ratio_high is not None:
        ratio = f"{figure.ratio:.2f} ({figure.ratio_low:.2f} to {figure.ratio_high:.2f})"
    target = "" if figure.target is None else f"{figure.target:.2f} {'met' if figure.met else 'missed'}"
    return (
        figure.name,
        f"{_short(figure.value)} ({_short(figure.low)} to {_short(figure.high)})",
        figure.unit,
        "" if figure.of_limit is None else f"{figure.of_limit:.2f}",
        of_reference,
        ratio,
        target,
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

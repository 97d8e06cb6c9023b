"""Sections that are pictures: gains over event time and by segment, calibration, cost. Gains are in % of the baseline's
NE, above 0 is better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.lab.page.charts import Bar, Line, Spot, figure, forest, legend, lines, reliability, scatter
from pipelines.lab.page.marks import signed, when
from pipelines.lab.page.markup import Html, el, folded, joined, section, table
from pipelines.lab.page.reading import GAIN, Report, Seen, arms_of, compared_arms, each_student, interval, times

MOST_ARMS = 4
"""Lines in one picture; the arms that gain most, the tables have all."""


def over_time(report: Report) -> Html:
    shown = [part for student, task, seen in each_student(report) for part in _over_time(report, student, task, seen)]
    said = (
        "Left: the gain in 24 windows of the student's life, with the interval of each; the dotted line is where "
        "judging begins. Right: what was known after so many judged rows; one may stop as soon as a band leaves 0, "
        "whenever one looks. It speaks of these models on such rows; of other seeds the intervals of the verdict do."
    )
    return section("time", "Over event time", el("p", said), _legend(report), el("div", *shown, class_="charts"))


def _legend(report: Report) -> Html:
    return legend({arm: k for arm, k in arms_of(report).items() if arm not in report["sweep"]["baselines"]})


def _over_time(report: Report, student: str, task: str, seen: Seen) -> Iterator[Html]:
    of = f"{student} · {task}"
    named = [arm for arm in compared_arms(report, seen) if seen["arms"][arm].get("by_window", {}).get("windows")]
    numbers = arms_of(report)
    if named:
        windows = {arm: seen["arms"][arm]["by_window"]["windows"] for arm in named}
        some = next(iter(windows.values()))
        span = some[-1]["to_ms"] - some[0]["from_ms"]
        shown = [
            Line(
                arm,
                numbers[arm],
                [((w["from_ms"] + w["to_ms"]) / 2, w["value"], w["low"], w["high"]) for w in windows[arm]],
            )
            for arm in named[:MOST_ARMS]
        ]
        begins = [w["from_ms"] for w in some if w["share"] >= report["sweep"]["judged_from"]][:1]
        drawing, height = lines(shown, lambda ms: when(ms, span), GAIN, [(ms, "judged") for ms in begins])
        flips = [
            f"{arm}: {'+' if f['sign'] > 0 else '−'} from {when(f['before_ms'], span)}"
            for arm in named for f in seen["arms"][arm]["by_window"]["flips"]
        ]  # fmt: skip
        says = f"The sign flips ({'; '.join(flips)})." if flips else "The sign flips nowhere for sure."
        rows = [
            [arm, when(w["from_ms"], span), when(w["to_ms"], span), f"{w['rows']:,}", interval(w)]
            for arm in named for w in windows[arm]
        ]  # fmt: skip
        behind = table(f"{of}, by window", ["arm", "from", "to", "rows", GAIN], rows)
        yield figure(f"time-{student}-{task}", f"{of}, over event time.", says, drawing, height, behind)
    yield from _watched(named, numbers, student, task, seen)


def _watched(named: Sequence[str], numbers: Mapping[str, int], student: str, task: str, seen: Seen) -> Iterator[Html]:
    of, watched = f"{student} · {task}", {arm: seen["arms"][arm].get("watched") for arm in named}
    known = {arm: w for arm, w in watched.items() if w}
    if not known:
        return
    shown = [
        Line(arm, numbers[arm], _settled(list(zip(w["rows"], w["difference"], w["low"], w["high"], strict=True))))
        for arm, w in list(known.items())[:MOST_ARMS]
    ]
    stops = [(float(w["stopped_at"]), arm) for arm, w in known.items() if w["stopped_at"] is not None][:MOST_ARMS]
    drawing, height = lines(shown, lambda rows: f"row {rows:,.0f}", GAIN, stops)
    says = "Bands hold at all rows at once. " + (
        "; ".join(f"{arm} could have stopped at row {at:,.0f}" for at, arm in stops) + "."
        if stops
        else "None leaves 0."
    )
    rows = [
        [arm, signed(w["difference"][-1]), f"[{signed(w['low'][-1])}, {signed(w['high'][-1])}]", _e(w["log_e"]),
         "yes" if w["found"] else "no", f"{w['stopped_at']:,}" if w["stopped_at"] else "–",
         f"{w['rows_to_stop']:,}" if w["rows_to_stop"] else "–"]
        for arm, w in known.items()
    ]  # fmt: skip
    head = ["arm", "difference, %", "holds at any time", "e-value", "e-BH", "stopped at row", "rows for 0.2 %"]
    yield figure(
        f"rows-{student}-{task}", f"{of}, by rows.", says, drawing, height, table(f"{of}, watched", head, rows)
    )


def _e(log_e: float) -> str:
    """
    >>> _e(0.0), _e(25.0)
    ('1', '7.2e+10')
    """
    return f"{2.718281828459045 ** min(log_e, 690):.2g}"


def segments(report: Report) -> Html:
    found = report["comparisons"]
    said = (
        f"Each segment by itself. A star marks what e-BH finds among all {found['count']:,} comparisons of arms, "
        f"conditions, students and segments, {found['found']:,} of them; at most 5 % of what it finds is expected to "
        "be false."
    )
    first, *others = report["conditions"]
    parts = []
    for k, condition in enumerate(others, start=1):
        drawn = _all_segments(report, condition, f"-{k}")
        parts.append(folded(f"{condition}: by segment", el("div", *drawn, class_="charts")))
    under = el("h3", f"Under the condition {first}") if others else None
    charts = el("div", *_all_segments(report, first, ""), class_="charts")
    return section("segments", "By segment", el("p", said), under, charts, *parts)


def _all_segments(report: Report, condition: str, ident: str) -> list[Html]:
    """The forests of a condition; `ident` makes their ids its own."""
    return [
        part
        for student, task, seen in each_student(report, condition)
        for part in _segments(report, student, task, seen, ident)
    ]


def _segments(report: Report, student: str, task: str, seen: Seen, ident: str) -> Iterator[Html]:
    for arm in compared_arms(report, seen)[:MOST_ARMS]:
        of, by = seen["arms"][arm], seen["arms"][arm].get("segments")
        if not by:
            continue
        number_of = arms_of(report)[arm]
        whole = of["gain"]
        bars = [_bar("all rows", number_of, whole, found=bool((of.get("watched") or {}).get("found")))]
        bars += [_bar(name, number_of, one["gain"], found=one["found"]) for name, one in by.items()]
        drawing, height = forest(bars, GAIN)
        against = [n for n, s in by.items() if s["found"] and s["gain"] and s["gain"]["value"] * whole["value"] < 0]
        says = f"Against the whole: {', '.join(against)}." if against else "No segment is for sure against the whole."
        rows = [
            [name, f"{s['rows']:,}", f"{s['positives']:,}", interval(s["gain"]), _parts(s["gain"], "of_rows"),
             _parts(s["gain"], "of_seeds"), _e(s["log_e"]), "yes" if s["found"] else "no",
             s["calibration"] and f"{s['calibration']:.3f}"]
            for name, s in by.items()
        ]  # fmt: skip
        head = ["segment", "rows", "positives", GAIN, "other rows", "other seeds", "e-value", "e-BH", "calibration"]
        title = f"{student} · {task} · {arm}"
        behind = table(f"{title}, by segment", head, rows)
        yield figure(f"forest-{student}-{task}-{number_of}{ident}", f"{title}.", says, drawing, height, behind)


def _bar(name: str, arm: int, gain: Mapping[str, Any] | None, *, found: bool) -> Bar:
    if gain is None:
        return Bar(name, arm, None, None, None, "undefined")
    if gain["too_few"]:
        return Bar(name, arm, None, None, None, f"too few {gain['too_few']}")
    return Bar(name, arm, gain["value"], gain["low"], gain["high"], strong=found)


def _parts(gain: Mapping[str, Any] | None, which: str) -> str | None:
    if gain is None or gain[which]["low"] is None:
        return None
    return f"[{signed(gain[which]['low'])}, {signed(gain[which]['high'])}]"


def calibration(report: Report) -> Html:
    parts = []
    for student, task, seen in each_student(report):
        base = report["sweep"]["best_twins"].get(student, report["sweep"]["baselines"][0])
        named = [*compared_arms(report, seen)[: MOST_ARMS - 1], base]
        known = {arm: seen["arms"][arm].get("reliability") for arm in named}
        bins = {arm: (arms_of(report)[arm], of["bins"]["quantile"]) for arm, of in known.items() if of}
        if not bins:
            continue
        drawing, height = reliability(bins)
        wrong = {arm: of["first_miscalibrated"] for arm, of in known.items() if of and of["first_miscalibrated"]}
        faults = [
            f"{arm} is known to predict too {'low' if of['sign'] > 0 else 'high'} from row {of['row']:,} on"
            for arm, of in wrong.items() if of["row"] is not None
        ]  # fmt: skip
        says = "; ".join(faults) + "." if faults else "No model is known to be miscalibrated."
        rows = [
            [arm, f"{b['above']:.4g} to {b['upto']:.4g}", f"{b['rows']:,}", f"{b['predicted']:.4f}",
             f"{b['observed']:.4f}", f"[{b['low']:.4f}, {b['high']:.4f}]"]
            for arm, (_, some) in bins.items() for b in some
        ]  # fmt: skip
        head = ["arm", "probability", "rows", "predicted", "observed", "95 %"]
        clipped = [
            [arm, f"{of['expected_error']:.4f}", f"{of['clipped']['share']:.4%}", f"{of['clipped']['cut']:.2g}"]
            for arm, of in known.items() if of
        ]  # fmt: skip
        heads = ["arm", "error", "clipped rows", "nats cut off"]
        errors = table("expected calibration error, and logits clipped at ±13.8", heads, clipped)
        title = f"{student} · {task}"
        behind = joined([table(f"{title}, bins of equally many rows", head, rows), errors])
        parts.append(figure(f"bins-{student}-{task}", f"{title}.", says, drawing, height, behind))
    said = "Observed rates over predicted probabilities, of the first seed, in ten bins. The line: a calibrated model."
    return section(
        "calibration", "Calibration", el("p", said), legend(arms_of(report)), el("div", *parts, class_="charts")
    )


def cost(report: Report) -> Html:
    """Gain over the time of training a row, and what is served."""
    parts, numbers = [], arms_of(report)
    for student, task, seen in each_student(report):
        spots, rows = [], []
        for arm, of in seen["arms"].items():
            gain = of.get("gain") or (
                {"value": 0.0, "low": None, "high": None} if arm in report["sweep"]["baselines"] else None
            )
            serving = report["chosen"][student][arm]["serving"]
            flops = None if serving["flops"] is None else f"{serving['flops']:,}"
            speed = of["rows_per_s"] and f"{of['rows_per_s']:,.0f}"
            rows.append(
                [arm, interval(of.get("gain")), times(of["cost_ratio"]), speed, flops, f"{serving['parameters']:,}"]
            )
            if gain is not None and of["cost_ratio"] and not gain.get("too_few"):
                spots.append(Spot(arm, numbers[arm], of["cost_ratio"], gain["value"], gain["low"], gain["high"]))
        if not spots:
            continue
        drawing, height = scatter(spots, "training time of a row, × the baseline's", GAIN)
        best = max(spots, key=lambda spot: spot.y)
        says = f"The largest gain, of {best.name}, takes {best.x:.2f} × the baseline's time."
        head = ["arm", GAIN, "× training", "rows/s of a core", "FLOPs served", "parameters served"]
        title = f"{student} · {task}"
        parts.append(figure(f"cost-{student}-{task}", f"{title}.", says, drawing, height, table(title, head, rows)))
    return section("cost", "Cost against gain", el("div", *parts, class_="charts"))


def _settled(points: list[tuple[float, float, float, float]]) -> list[tuple[float, float, float, float]]:
    """Without the first tenth, whose bands are so wide that they hide the rest."""
    return points[len(points) // 10 :]

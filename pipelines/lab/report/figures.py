"""The pictures of a replay's report, as data: gains over event time, by rows and by segment, calibration, cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pipelines.lab.judging.evidence import flips
from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.report.tables import speed
from pipelines.report.cells import MEAN, Cell, Figures
from pipelines.report.figure import Figure, Point, Series
from pipelines.report.table import Entry, TextTable
from pipelines.report.words import count, fixed, interval, when

GAIN = "gain, % of NE"
MOST_ARMS = 4
"""Arms in one picture, those that gain most; the tables have all."""
WORST_NE = 1.3
"""What is worse lies outside the picture: in its first rows a model can be many times as bad as the base rate."""


def looks(report: ReplayReport) -> dict[str, int]:
    """Every arm and the number of its colour and marker, the baselines last."""
    names = [arm for arm in report.spec.arms if arm not in report.spec.baselines]
    return {arm: number for number, arm in enumerate([*names, *report.spec.baselines])}


def compared(report: ReplayReport, condition: str, student: str, task: str) -> dict[str, Figures]:
    """Arms with a gain, those that gain most first."""
    arms = report.table.arms(condition, student, task)
    gains = {arm: of for arm, of in arms.items() if arm in report.spec.arms and "gain" in of}
    return dict(sorted(gains.items(), key=lambda item: -(item[1].value("gain") or 0.0)))


def point(x: float, cell: Cell) -> Point:
    assert cell.value is not None
    return Point(x, cell.value, cell.low, cell.high)


def over_time(report: ReplayReport) -> Iterator[Figure]:
    """Gains in windows of each student's life, and what was known after so many judged rows."""
    first = report.spec.tuned_under
    for student, task in report.table.students(first):
        arms = compared(report, first, student, task)
        if any(of.below("gain/window") for of in arms.values()):
            yield _by_window(report, f"{student} · {task}", arms)
        if any(of.below("gain/after") for of in arms.values()):
            yield _by_rows(report, f"{student} · {task}", arms)


def _by_window(report: ReplayReport, name: str, arms: dict[str, Figures]) -> Figure:
    number = looks(report)
    series, rows, changes = [], [], []
    times = [cell for of in arms.values() for cell in _times(of).values()]
    span = max(cell.high or 0 for cell in times) - min(cell.low or 0 for cell in times)
    for arm, of in arms.items():
        windows, at = of.below("gain/window"), _times(of)
        points = [point(at[k].value or 0.0, cell) for k, cell in windows.items()]
        series.append(Series(arm, number[arm], points))
        rows += [
            [arm, when(at[k].low or 0, span), when(at[k].high or 0, span), count(cell.n),
             interval(cell.value, cell.low, cell.high)]
            for k, cell in windows.items()
        ]  # fmt: skip
        signs = [(cell.value or 0.0, of.value(f"gain/window/{k}/p")) for k, cell in windows.items()]
        ordered = list(windows)
        for _, after in flips(signs):
            sign = "+" if signs[after][0] > 0 else "−"
            changes.append(f"{arm}: {sign} from {when(at[ordered[after]].low or 0, span)}")
    begins = [cell.low or 0.0 for of in arms.values() for k, cell in _times(of).items()
              if (of.value(f"window/{k}/share") or 0.0) >= report.spec.judged_from][:1]  # fmt: skip
    return Figure(
        title=f"{name}, over event time.",
        shows=f"The sign flips ({'; '.join(changes)})." if changes else "The sign flips nowhere for sure.",
        series=series[:MOST_ARMS],
        x_name="",
        y_name=GAIN,
        x_scale="time",
        marks=dict.fromkeys(begins, "judged"),
        level=0.0,
        behind=TextTable(f"{name}, by window", ["arm", "from", "to", "rows", GAIN], rows),
    )


def _times(of: Figures) -> dict[str, Cell]:
    cells = {k: of.cell(f"window/{k}/times") for k in of.below("gain/window")}
    return {k: cell for k, cell in cells.items() if cell is not None}


def _by_rows(report: ReplayReport, name: str, arms: dict[str, Figures]) -> Figure:
    number, series, rows, stops = looks(report), [], [], {}
    for arm, of in arms.items():
        after = list(of.below("gain/after").values())
        if not after:
            continue
        settled = after[len(after) // 10 :]  # the first bands are so wide that they hide the rest
        series.append(Series(arm, number[arm], [point(cell.n or 0, cell) for cell in settled]))
        last, stopped = after[-1], of.value("watched/stopped_at")
        if stopped is not None:
            stops[stopped] = arm
        rows.append(
            [arm, interval(last.value, last.low, last.high), e_value(of.value("watched/log_e")),
             "yes" if of.value("watched/found") else "no", count(stopped), count(of.value("watched/rows_to_stop"))]
        )  # fmt: skip
    says = "; ".join(f"{arm} could have stopped at row {at:,.0f}" for at, arm in stops.items())
    head = ["arm", "difference, %, holds at any time", "e-value", "e-BH", "stopped at row", "rows for 0.2 %"]
    return Figure(
        title=f"{name}, by rows.",
        shows=f"Bands hold at all rows at once. {says or 'None leaves 0'}.",
        series=series[:MOST_ARMS],
        x_name="judged rows",
        y_name=GAIN,
        marks=stops,
        level=0.0,
        behind=TextTable(f"{name}, watched", head, rows),
    )


def segments(report: ReplayReport, condition: str) -> Iterator[Figure]:
    """Gains by segment, of all rows first; a star marks what e-BH finds of an arm in the picture."""
    for student, task in report.table.students(condition):
        arms = compared(report, condition, student, task)
        names = list(dict.fromkeys(name for of in arms.values() for name in of.below("gain/segment")))
        if names:
            yield _forest(report, f"{student} · {task}", names, arms)


def _forest(report: ReplayReport, name: str, names: list[str], arms: dict[str, Figures]) -> Figure:
    number, series, rows, starred, against = looks(report), [], [], set(), []
    for arm, of in arms.items():
        gains = {0: of.cell("gain")} | {n: of.cell(f"gain/segment/{s}") for n, s in enumerate(names, start=1)}
        metrics = ["gain", *(f"gain/segment/{s}" for s in names)]
        shown = [point(n, c) for n, c in gains.items() if c is not None and of.lacking(metrics[n]) is None]
        series.append(Series(arm, number[arm], shown, "points"))
        for n, segment in enumerate(names, start=1):
            found, cell = bool(of.value(f"segment/{segment}/found")), gains[n]
            starred |= {n} if found else set()
            if found and cell and (cell.value or 0.0) * (of.value("gain") or 0.0) < 0:
                against.append(f"{segment} ({arm})")
            rows.append(_segment_row(arm, segment, of, found=found))
    head = ["arm", "segment", "rows", "positives", GAIN, "other rows", "other seeds", "e-value", "e-BH", "calibration"]
    return Figure(
        title=f"{name}.",
        shows=f"Against the whole: {', '.join(against)}." if against else "No segment is for sure against the whole.",
        series=series[:MOST_ARMS],
        rows=["all rows", *names],
        starred=frozenset(starred),
        x_name=GAIN,
        y_name="",
        level=0.0,
        behind=TextTable(f"{name}, by segment", head, rows, names=2),
    )


def _segment_row(arm: str, segment: str, of: Figures, *, found: bool) -> list[Entry]:
    metric, start = f"gain/segment/{segment}", f"segment/{segment}"
    cell = of.cell(metric)
    return [
        arm,
        segment,
        count(None if cell is None else cell.n),
        count(of.value(f"{start}/positives")),
        *(of.interval(name) for name in (metric, f"{metric}/rows", f"{metric}/seeds")),
        e_value(of.value(f"{start}/log_e")),
        "yes" if found else "no",
        fixed(of.value(f"{start}/calibration"), 3),
    ]


def e_value(log_e: float | None) -> str:
    """
    >>> e_value(0.0), e_value(25.0)
    ('1', '7.2e+10')
    """
    return f"{math.exp(min(log_e or 0.0, 690.0)):.2g}"


def calibration(report: ReplayReport) -> Iterator[Figure]:
    """Observed rates of bins over predicted ones, of the arms that gain most and of the best twin."""
    first = report.spec.tuned_under
    for student, task in report.table.students(first):
        base = report.about.best_twins.get(student, report.spec.baselines[0])
        names = [*list(compared(report, first, student, task))[: MOST_ARMS - 1], base]
        arms = {arm: report.table.of(first, student, task, arm) for arm in names}
        arms = {arm: of for arm, of in arms.items() if of.below("bin")}
        if arms:
            yield _reliability(report, f"{student} · {task}", arms)


def _reliability(report: ReplayReport, name: str, arms: dict[str, Figures]) -> Figure:
    number, series, rows, faults = looks(report), [], [], []
    for arm, of in arms.items():
        bins = {k: (cell, of.cell(f"bin/{k}/predicted")) for k, cell in of.below("bin").items()}
        points = [point(p.value or 0.0, cell) for cell, p in bins.values() if p is not None]
        series.append(Series(arm, number[arm], points, "points"))
        for cell, predicted in bins.values():
            assert predicted is not None
            rows.append(
                [arm, f"{predicted.low:.4g} to {predicted.high:.4g}", count(cell.n), fixed(predicted.value),
                 interval(cell.value, cell.low, cell.high, digits=4, sign="")]
            )  # fmt: skip
        cut = f"{of.value('clipped/share') or 0:.4%} clipped, {of.value('clipped/cut') or 0:.2g} nats cut off"
        rows.append([arm, f"all: {cut}", None, None, f"error {fixed(of.value('calibration/error'))}"])
        if (row := of.value("calibration/wrong_from")) is not None:
            sign = "low" if (of.value("calibration/sign") or 0.0) > 0 else "high"
            faults.append(f"{arm} is known to predict too {sign} from row {row:,.0f} on")
    return Figure(
        title=f"{name}.",
        shows="; ".join(faults) + "." if faults else "No model is known to be miscalibrated.",
        series=series,
        x_name="predicted probability",
        y_name="observed rate",
        diagonal=True,
        low=0.0,
        behind=TextTable(
            f"{name}, bins of equally many rows", ["arm", "probability", "rows", "predicted", "observed, 95 %"], rows,
            names=2,
        ),
    )  # fmt: skip


def cost(report: ReplayReport) -> Iterator[Figure]:
    """Gain over the time of training a row."""
    first = report.spec.tuned_under
    for student, task in report.table.students(first):
        series, rows, number = [], [], looks(report)
        arms = {arm: report.table.of(first, student, task, arm) for arm in report.spec.arms}
        for arm, of in arms.items():
            gain, ratio = of.cell("gain"), of.value("cost_ratio")
            if arm in report.spec.baselines and ratio:
                series.append(Series(arm, number[arm], [Point(ratio, 0.0)], "points"))
            elif gain is not None and ratio and of.lacking("gain") is None:
                series.append(Series(arm, number[arm], [point(ratio, gain)], "points"))
            served = count(of.value("serving/flops")), count(of.value("serving/parameters"))
            per_second, times = speed(of)
            rows.append([arm, of.interval("gain"), times, per_second, *served])
        if series:
            best = max(series, key=lambda one: one.points[0].y)
            head = ["arm", GAIN, "× training", "rows/s of a core", "FLOPs served", "parameters served"]
            yield Figure(
                title=f"{student} · {task}.",
                shows=f"The largest gain, of {best.name}, takes {best.points[0].x:.2f} × the baseline's time.",
                series=series,
                x_name="training time of a row, × the baseline's",
                y_name=GAIN,
                level=0.0,
                named_points=True,
                behind=TextTable(f"{student} · {task}: cost", head, rows),
            )


def gains(report: ReplayReport) -> Iterator[Figure]:
    """A forest for every condition and task: students, and the mean over them."""
    for condition in report.spec.conditions:
        students = report.table.students(condition)
        for task in dict.fromkeys(task for _, task in students):
            rows = [student for student, of_task in students if of_task == task] + [MEAN]
            series = []
            for arm, look in looks(report).items():
                figures = [report.table.of(condition, student, task, arm) for student in rows]
                cells = {n: of.cell("gain") for n, of in enumerate(figures) if of.lacking("gain") is None}
                points = [point(n, cell) for n, cell in cells.items() if cell is not None]
                if points:
                    series.append(Series(arm, look, points, "points"))
            if series:
                yield Figure(f"{condition} · {task}", series, GAIN, "", rows=rows, level=0.0)


def by_tenth(report: ReplayReport) -> Iterator[Figure]:
    """NE of every arm and model by tenth of the stream, under the first condition."""
    first = report.spec.tuned_under
    for student, task in report.table.students(first):
        series = []
        for arm, of in report.table.arms(first, student, task).items():
            tenths = of.below("ne/tenth")
            points = [point(10 * int(k) + 5, cell) for k, cell in tenths.items() if cell.value is not None]
            plain = [p._replace(low=None, high=None) for p in points]
            series.append(Series(arm, looks(report).get(arm), plain))
        name = f"{student} · {task}"
        yield Figure(name, series, "per cent of the stream", "NE", level=1.0, high=WORST_NE)

"""A replay's report as one page, and two finished replays side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.replay.verdict import SHIP, STAY, Verdict
from pipelines.lab.report import figures, tables
from pipelines.lab.report.curves import curves
from pipelines.report import page as document
from pipelines.report.cells import MEAN, Figures
from pipelines.report.page import Block, Card, Code, Facts, Folded, Section, Words
from pipelines.report.table import TextTable
from pipelines.report.words import counts, when

KINDS = {SHIP: "good", STAY: "bad"}
FOOT = (
    "Each row is predicted when it was shown, by what had settled by then. Gains are in % of the baseline's NE; above "
    "0 is better."
)


def page_of(report: ReplayReport) -> str:
    """A document that is whole by itself."""
    return document.page(f"Replay of {report.about.config}, {report.about.date}", list(_sections(report)), FOOT)


def _sections(report: ReplayReport) -> Iterator[Section]:
    yield Section(
        "Verdict", "The verdict", [*_data_problems(report), *(_verdict(report, of) for of in report.verdicts)]
    )
    if over_time := list(figures.over_time(report)):
        yield Section("Over time", "Over event time", [Words(
            "Over event time: the gain in 24 windows of the student's life, with the interval of each; the dotted line "
            "is where judging begins. By rows: what was known after so many judged rows; one may stop as soon as a "
            "band leaves 0, whenever one looks. It speaks of these models on such rows; of other seeds the intervals "
            "of the verdict do."
        ), document.PageFigures(over_time)])  # fmt: skip
    if found := list(curves(report)):
        yield Section("Curves", "What moves the gain", [Words(
            "Gains over the best twin, means over students, under the first condition but for what the curve is over. "
            "Rows: one pass, judged as if it had ended there."
        ), document.PageFigures(found)])  # fmt: skip
    if any(True for condition in report.spec.conditions for _ in figures.segments(report, condition)):
        yield Section("Segments", "By segment", list(_segments(report)))
    yield Section("Calibration", "Calibration", [Words(
        "Observed rates over predicted probabilities, of the first seed, in ten bins. The line: a calibrated model."
    ), document.PageFigures(list(figures.calibration(report)))])  # fmt: skip
    yield Section("Cost", "Cost against gain", [document.PageFigures(list(figures.cost(report)))])
    yield Section("Decisions", "Decisions", list(_decisions(report)))
    yield Section("Figures", "Every figure", list(_figures(report)))
    yield Section("Data", "Data checks", list(_data(report)))
    yield Section("What was run", "What was run", list(_run(report)))


def _data_problems(report: ReplayReport) -> Iterator[Card]:
    """The gravest findings about the data, which come before any verdict."""
    findings = [f for f in (report.data or {}).get("findings", ()) if f["severity"] != "note"]
    for f in findings[:3]:
        grave = f["severity"] == "stop"
        word = "Look at the data first" if grave else "Mind the data"
        yield Card("bad" if grave else "warn", word, f"{f['where']}: {f['seen']}")


def _verdict(report: ReplayReport, of: Verdict) -> Card:
    word = f"{of.decision.upper()} · {of.task}"
    if of.arm is None:
        return Card("warn", word, of.words)
    gained = report.table.of(report.spec.tuned_under, MEAN, of.task, of.arm)
    stops = [row for row in of.stopped_at.values() if row is not None]
    p = gained.value("gain/p")
    facts = {
        f"gain over {of.baseline}": f"{gained.value('gain'):+.2f} % of NE",
        "95 %, other rows and seeds": _reach(gained, "gain"),
        "… other rows alone": _reach(gained, "gain/rows"),
        "… other seeds alone": _reach(gained, "gain/seeds"),
        f"p, among {of.arms} arm{'s' * (of.arms != 1)}": "unknown" if p is None else f"{min(1.0, p * of.arms):.2g}",
        "could have stopped at row": f"{max(stops):,}" if len(stops) == len(of.stopped_at) and stops else "not yet",
        "training, × the baseline": _times(of.cost["training"]),
        "serving FLOPs, ×": _times(of.cost["flops"]),
        "parameters served, ×": _times(of.cost["parameters"]),
    }
    return Card(KINDS.get(of.decision, "warn"), word, of.words, facts)


def _reach(of: Figures, metric: str) -> str:
    cell = of.cell(metric)
    return "unknown" if cell is None or cell.low is None else f"{cell.low:+.2f} to {cell.high:+.2f} %"


def _times(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f}"


def _segments(report: ReplayReport) -> Iterator[Block]:
    tested = [cell for cell in report.cells if cell.metric.endswith("/found")]
    yield Words(
        f"Each segment by itself. A star marks what e-BH finds among all {len(tested):,} comparisons of arms, "
        f"conditions, students and segments, {sum(bool(cell.value) for cell in tested):,} of them; at most 5 % of what "
        "it finds is expected to be false."
    )
    first, *others = report.spec.conditions
    yield document.PageFigures(list(figures.segments(report, first)))
    for condition in others:
        yield Folded(f"{condition}: by segment", [document.PageFigures(list(figures.segments(report, condition)))])


def _decisions(report: ReplayReport) -> Iterator[Block]:
    yield Words(
        "What every model would have shown of the logged rows: those with the largest predictions, up to a share of "
        "all. Rows that were not logged are not known; what other choices are worth is told where propensities are."
    )
    for n, (student, task) in enumerate(report.table.students(report.spec.tuned_under)):
        yield Folded(f"{student} · {task}", tables.decisions(report, student, task), open=n == 0)
    if choices := tables.choices(report):
        yield choices


def _figures(report: ReplayReport) -> Iterator[Block]:
    opened = False
    for condition in report.spec.conditions:
        for task in tables.tasks(report, condition):
            made = [tables.mean_over_students(report, condition, task), tables.by_student(report, condition, task)]
            yield Folded(f"{condition} · {task}", made, open=not opened)
            opened = True
    yield from (table for table in (tables.labels(report), tables.teachers(report)) if table)


def _data(report: ReplayReport) -> Iterator[Block]:
    if report.data is None:
        yield Words("The data were not checked.")
        return
    yield Words(f"{report.data['rows']:,} rows were looked at before anything was trained.")
    kinds = {"stop": "bad", "warn": "warn"}
    for f in report.data["findings"]:
        yield Card(
            kinds.get(f["severity"], "soft"), f"{f['severity'].upper()} {f['where']}", f["seen"], more=f["remedy"]
        )
    if not report.data["findings"]:
        yield Words("Nothing was found.")
    for made in report.data.get("tables", ()):
        rows = [[str(entry) for entry in row] for row in made["rows"]]
        yield Folded(made["caption"], [TextTable(made["caption"], made["head"], rows)])


def _run(report: ReplayReport) -> Iterator[Block]:
    about, spec = report.about, report.spec
    events = about.events_ms
    yield Facts({
        "config": f"{about.config} ({about.config_hash})",
        "rows from": f"{about.source}, {'one stream for all seeds' if about.one_stream else 'a stream per seed'}",
        "event times, UTC": f"{when(events[0], 1e12)} to {when(events[1], 1e12)}" if events else "unknown",
        "rows": counts(list(about.rows.values())),
        "judged": f"after {spec.judged_from:.0%} of the stream, each row as predicted when it was shown",
        "seeds": ", ".join(map(str, spec.seeds)),
        "tuned with seeds": ", ".join(map(str, spec.tuned_with)),
        "errors": about.errors,
        "code": ", ".join(about.code),
        "date": about.date,
    })  # fmt: skip
    yield Words("The command that runs it again", soft=True)
    yield Code(about.command or "unknown")
    yield Folded("The spec", [Code(json.dumps(spec.model_dump(mode="json"), indent=1, ensure_ascii=False))])
    yield Folded("Settings chosen", [tables.settings(report)])
    yield Folded("Versions", [TextTable("versions", ["package", "version"], [list(v) for v in about.versions.items()])])
    yield from (Words(note, soft=True) for note in report.notes)

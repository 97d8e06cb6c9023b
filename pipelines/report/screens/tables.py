"""Tables of a finished run, each as wide as 80 columns allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipelines.report.cells import Figures
from pipelines.report.results.cells import ALL, WHOLE
from pipelines.report.results.figures import MODELS
from pipelines.report.results.summary import Summary
from pipelines.report.results.verdict import JUDGED, NO_ROW, Outcome, saw_no_row
from pipelines.report.screens.screen import duration
from pipelines.report.table import DASH, Entry, TextTable, Toned
from pipelines.report.words import count, fixed

HEADS = {
    "student": "student",
    "no_teacher": "twin",
    "teacher": "teacher",
    "optimum": "optimum",
    "ftrl": "FTRL",
    "constant": "rate",
}
BASELINES = ("ftrl", "constant")
COMPARED = ("student", "no_teacher", "teacher")
COLOURS = {Outcome.GAINED: "green", Outcome.LOST: "red", Outcome.UNDECIDED: "yellow", Outcome.EQUAL: "yellow"}
WINDOWS = {JUDGED: "last half of the stream", WHOLE: WHOLE}


class Results:
    """The figures of a run, by student and task, in one window."""

    def __init__(self, summary: Summary, window: str = JUDGED) -> None:
        self.students, self.window, self.group_by = summary.students, window, summary.run.group_by
        self._cells = summary.cells

    def of(self, student: str, task: str, model: str) -> Figures:
        return self._cells.of(self.window, student, task, model)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Students that saw a row, and their tasks."""
        for student, tasks in self.students.items():
            if not saw_no_row(tasks):
                yield from ((student, task) for task in tasks)

    def figure(self, student: str, task: str, model: str, metric: str, digits: int = 4) -> str | None:
        """A figure of a model; None where it is undefined, or of too few rows to mean anything."""
        if self.of(student, task, ALL).lacking("rows") is not None:
            return None
        return fixed(self.of(student, task, model).value(metric), digits)

    def table(self, title: str, head: Sequence[str], entries: Callable[[str, str], Sequence[Entry]]) -> TextTable:
        """A row for each student and task; how many positives its figures are of comes first."""
        rows = [
            [student, task, count(self.of(student, task, ALL).value("positives")), *entries(student, task)]
            for student, tasks in self.students.items()
            for task in tasks
            if not saw_no_row(tasks)
        ]
        return TextTable(f"{WINDOWS[self.window]}: {title}", ["student", "task", "positives", *head], rows, names=2)


def ne_table(results: Results) -> TextTable:
    """NE of every model, and the student's gain over its twin with its 95 % interval."""
    there = {m for pair in results.pairs() for m in MODELS if results.of(*pair, m).cell("ne") is not None}
    models = [model for model in MODELS if model in there and model not in BASELINES]  # which have a line of their own

    def entries(student: str, task: str) -> list[Entry]:
        gain = results.of(student, task, "student").interval("gain")
        shown = Toned(gain, "warn") if isinstance(gain, str) else gain  # undecided, or too few to tell
        return [*(results.figure(student, task, model, "ne") for model in models), shown]

    title = "NE as learned (lower is better); gain in % of twin's NE"
    table = results.table(title, [*(HEADS[model] for model in models), "gain, 95 %"], entries)
    quiet = [(student, list(tasks) or [DASH]) for student, tasks in results.students.items() if saw_no_row(tasks)]
    empty = [[student, task, "0", *(None for _ in models), NO_ROW] for student, tasks in quiet for task in tasks]
    return TextTable(table.title, table.head, [*table.rows, *empty], names=2)


def baselines_text(results: Results) -> str | None:
    """NE of a logistic regression and of the label rate so far, in one sentence each; None without them."""
    words = {"ftrl": "FTRL (a logistic regression)", "constant": "the label rate so far"}
    sentences = []
    for model, name in words.items():
        ne = [f"{s} {t} {results.figure(s, t, model, 'ne') or DASH}" for s, t in results.pairs()
              if results.of(s, t, model).cell("ne") is not None]  # fmt: skip
        if ne:
            sentences.append(f"of {name}: {', '.join(ne)}")
    return "NE " + "; ".join(sentences) if sentences else None


def auc_table(results: Results) -> TextTable:
    """AUC and calibration."""
    columns = [(metric, model) for metric in ("auc", "calibration") for model in COMPARED]
    names = {"auc": "AUC", "calibration": "cal."}
    return results.table(
        "AUC (higher is better), calibration (1 is right)",
        [f"{names[metric]}\n{HEADS[model]}" for metric, model in columns],
        lambda s, t: [results.figure(s, t, model, metric, 4 if metric == "auc" else 3) for metric, model in columns],
    )


def teaching_table(results: Results) -> TextTable:
    """The teacher's lead over the twin and the share of it that the student got; where rows have groups, also the gain
    with groups as clusters."""
    by_group = [] if results.group_by is None else [f"gain, 95 %\nby {results.group_by}"]

    def entries(student: str, task: str) -> list[Entry]:
        own, teacher = (results.of(student, task, model) for model in ("student", "teacher"))
        gain = [own.interval("gain/by group") for _ in by_group]
        return [teacher.interval("gain"), fixed(own.value("transfer/teacher"), 2), *gain]

    title = "the teacher's lead, in % of the twin's NE, and the student's share of it"
    return results.table(title, ["lead, 95 %", "share", *by_group], entries)


def gauc_table(results: Results) -> TextTable:
    """AUC within groups, and how many groups and rows have both labels."""

    def entries(student: str, task: str) -> list[Entry]:
        groups = results.of(student, task, ALL).cell("gauc/groups")
        counts = [None, None] if groups is None else [count(groups.value), count(groups.n)]
        return [*counts, *(results.figure(student, task, model, "gauc") for model in COMPARED)]

    head = ["groups", "rows", *(HEADS[model] for model in COMPARED)]
    return results.table(f"AUC within {results.group_by} (GAUC)", head, entries)


def tenths_table(summary: Summary) -> TextTable:
    """NE of every model by tenth of the stream."""
    results, rows = Results(summary, WHOLE), []
    for student, task in results.pairs():
        names = [student, task]
        for model in MODELS:
            of = results.of(student, task, model)
            if of.below("ne/tenth"):
                rows.append([*names, HEADS[model], *(_four_wide(of.value(f"ne/tenth/{n}")) for n in range(10))])
                names = ["", ""]
    head = ["student", "task", "model", *(f"{10 * (n + 1)}" for n in range(10))]
    return TextTable("NE by tenth of the stream: 10 is its first 10 % (lower is better)", head, rows, names=3)


def _four_wide(ne: float | None) -> str | None:
    """A figure in 4 places.

    >>> _four_wide(0.81234), _four_wide(1.11), _four_wide(57.12)
    ('.812', '1.11', '57.1')
    """
    if ne is None:
        return None
    return f"{ne:.3f}"[1:] if ne < 0.9995 else f"{ne:.2f}" if ne < 9.995 else f"{ne:.1f}" if ne < 99.95 else f"{ne:.0f}"


def workers_table(summary: Summary) -> TextTable:
    """Time of each worker by phase."""
    rows = []
    for name, worker in summary.workers.items():
        phases = sorted(worker.phases_s.items(), key=lambda item: -item[1])
        total_s = sum(worker.phases_s.values()) or 1.0
        shares = ", ".join(f"{seconds / total_s:.0%} {phase}" for phase, seconds in phases[:5])
        memory = count(worker.peak_rss_bytes / 2**20)
        rows.append([name, count(worker.rows), duration(worker.busy_s), count(worker.rows_per_s), memory, shares])
    head = ["worker", "rows", "busy", "rows/s", "MB", "of its time"]
    return TextTable("where the time went, by worker", head, rows)

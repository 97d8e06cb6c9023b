"""The tables of a replay's report, the same on a terminal, in Markdown and on its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.spec.conditions import Condition
from pipelines.report.cells import MEAN, Figures
from pipelines.report.table import Entry, TextTable
from pipelines.report.words import billions, count, counts, fixed, p_value

FIGURES = {
    "ne": "NE",
    "ne/calibration_free": "NE calibration-free",
    "log_loss": "log-loss",
    "brier": "Brier",
    "auc": "AUC",
    "gauc": "GAUC",
    "calibration": "calibration",
    "ne/as_learned": "NE as learned",
}
COUNTS = ("rows", "positives")
GAIN = "gain %, 95 %"
TRAINING = {"training_flops": "training GFLOP", "training_flops_with_teacher": "with the teacher"}
LOST = {"fresh": "gain lost to the fault", "as mature": "gain lost to age"}


def every_table(report: ReplayReport) -> Iterator[TextTable]:
    """All tables in the order in which a reader needs them."""
    for condition in report.spec.conditions:
        yield from (mean_over_students(report, condition, task) for task in tasks(report, condition))
        yield from (by_student(report, condition, task) for task in tasks(report, condition))
    yield from (table for table in (labels(report), found_segments(report), choices(report), teachers(report)) if table)
    if report.chosen:
        yield settings(report)


def tasks(report: ReplayReport, condition: str) -> list[str]:
    return list(dict.fromkeys(task for _, task in report.table.students(condition)))


def mean_over_students(report: ReplayReport, condition: str, task: str) -> TextTable:
    """Every arm, in the mean over students, and the student that gains least."""
    spec, table = report.spec, report.table
    students = [student for student, of in table.students(condition) if of == task]
    controls = list(spec.controls_of(condition))
    over = _further_baselines(report)
    head = ["arm", *COUNTS, *_gain_heads(report), "p", "transfer", "first 5 %", *(LOST[kind] for kind in controls),
            *TRAINING.values()]  # fmt: skip
    rows = []
    for arm in spec.arms:
        of = table.of(condition, MEAN, task, arm)
        each = {student: table.of(condition, student, task, arm) for student in students}
        if arm in spec.baselines and not over:
            continue
        rows.append(
            [
                arm,
                *_counts(list(each.values())),
                *_gains(of, report),
                *_significance(of),
                *(of.interval(f"lost/{kind}", digits=0, sign="", percent=True) for kind in controls),
                *_training(of),
                _worst(each),
            ]
        )
    title = f"{condition} · {task}: mean over students{_explained(spec.conditions[condition])}"
    return TextTable(title, [*head, "worst student, 95 %"], rows)


def by_student(report: ReplayReport, condition: str, task: str) -> TextTable:
    """Every student with every arm, and the models it is compared with."""
    head = ["student", "arm", *COUNTS, *FIGURES.values(), *_gain_heads(report), "p", "transfer", "first 5 %", "rows/s",
            "cost ×", *TRAINING.values()]  # fmt: skip
    rows = []
    for student, of_task in report.table.students(condition):
        if of_task == task:
            for arm, of in report.table.arms(condition, student, task).items():
                rows.append([student, arm, *_counts([of]), *_figures(of), *_gains(of, report), *_significance(of),
                             *speed(of), *_training(of)])  # fmt: skip
    return TextTable(f"{condition} · {task}: by student", head, rows, names=2)


def speed(of: Figures) -> tuple[Entry, Entry]:
    """Rows per second of a core, and the cost of training a row as a multiple of the baseline's."""
    seconds = of.value("seconds_per_row")
    return count(None if seconds is None else 1 / seconds), fixed(of.value("cost_ratio"), 2)


def _training(of: Figures) -> list[Entry]:
    return [billions(of.value(metric)) for metric in TRAINING]


def labels(report: ReplayReport) -> TextTable | None:
    """Table of the labels that students learn, where these are not the logged ones."""
    rows = []
    for condition in report.spec.conditions:
        for task in tasks(report, condition):
            of = report.table.of(condition, "", task, "")
            if of:
                positives, learned = (of.value(f"labels/{what}") or 0.0 for what in ("positives", "learned"))
                share = f" ({learned / positives:.0%})" if positives else ""
                more = (count(of.value(f"labels/{what}")) for what in ("labels", "gone"))
                rows.append([condition, task, count(positives), f"{learned:,.0f}{share}", *more])
    head = ["condition", "task", "positives logged", "learned", "labels logged", "unknown"]
    return TextTable("What students learn of the labels", head, rows, names=2) if rows else None


def found_segments(report: ReplayReport) -> TextTable | None:
    """Table of the segments whose gain is more than luck."""
    rows = []
    tested = 0
    for condition in report.spec.conditions:
        for student, task in report.table.students(condition):
            for arm, of in report.table.arms(condition, student, task).items():
                tested += "watched/log_e" in of
                for name, cell in of.below("gain/segment").items():
                    tested += 1
                    if of.value(f"segment/{name}/found"):
                        figures = count(cell.n), count(of.value(f"segment/{name}/positives"))
                        gain = of.interval(f"gain/segment/{name}")
                        rows.append([f"{condition} · {student} · {task}", arm, name, *figures, gain])
    title = f"Segments that e-BH finds among {tested:,} comparisons (all: report.html)"
    return TextTable(title, ["where", "arm", "segment", *COUNTS, GAIN], rows, names=3) if rows else None


CHOICES = {
    "logged": "logged", "ips": "IPS", "snips": "SNIPS", "dr": "doubly robust", "effective": "effective requests",
    "agreement": "agreement", "mean_weight": "mean weight",
}  # fmt: skip


def choices(report: ReplayReport) -> TextTable | None:
    """Table of what arms' choices are worth, by seed, where propensities were logged."""
    rows: list[list[Entry]] = []
    first = report.spec.tuned_under
    for student, task in report.table.students(first):
        for arm, of in report.table.arms(first, student, task).items():
            for seed in of.below("choices"):
                at = f"choices/{seed}"
                values = (of.interval(f"{at}/{way}", digits=4, sign="") for way in ("logged", "ips", "snips", "dr"))
                effective = of.cell(f"{at}/effective")
                assert effective is not None
                many = f"{effective.value:,.0f} of {effective.n:,}"
                agreement = f"{of.value(f'{at}/agreement'):.0%}"
                refused = ", ".join(of.below(f"{at}/refused")) or None
                weight = fixed(of.value(f"{at}/mean_weight"), 3)
                rows.append([f"{student} · {task}", arm, seed, *values, many, agreement, weight, refused])
    head = ["where", "arm", "seed", *CHOICES.values(), "refused"]
    return TextTable("What choices are worth, by request", head, rows, names=2) if rows else None


def teachers(report: ReplayReport) -> TextTable | None:
    """Teachers by what they cost, cheapest first, and what their students get; nothing where there is one alone."""
    rows: list[tuple[str, str, str, float, list[Entry]]] = []
    for condition in report.spec.conditions if report.spec.teachers else ():
        for student, task in report.table.students(condition):
            teacher = report.table.of(condition, student, task, "(teacher)")
            flops = teacher.value("flops")
            for arm in report.spec.arms:
                of = report.table.of(condition, student, task, arm)
                if "gain" in of and flops is not None:
                    gained = of.interval("gain"), of.interval("transfer/teacher", sign="")
                    entries = [student, task, arm, condition, count(flops), teacher.interval("gain"), *gained]
                    rows.append((student, task, arm, flops, entries))
    head = ["student", "task", "arm", "teacher of", "FLOPs/row", "lead %", "gain %", "transfer"]
    ordered = [entries for *_, entries in sorted(rows, key=lambda row: row[:4])]
    return TextTable("Teachers by what they cost", head, ordered, names=4) if ordered else None


def settings(report: ReplayReport) -> TextTable:
    """The setting that every arm is judged with."""
    rows = []
    for choice in report.chosen:
        tuned = [f"{path} {value}{' (edge)' * (path in choice.at_the_edge)}" for path, value in choice.tuned.items()]
        rows.append([choice.student, choice.arm, ", ".join(tuned) or "as it is", str(len(choice.ne_of_trials))])
    return TextTable("The settings chosen", ["student", "arm", "setting", "of"], rows, names=3)


def decisions(report: ReplayReport, student: str, task: str) -> list[TextTable]:
    """Table of what every model would have shown of the logged rows, and of what its bids would have been worth."""
    rows, bids = [], []
    valued = report.spec.value is not None
    for arm, of in report.table.arms(report.spec.tuned_under, student, task).items():
        for rule, words in [*((f"top/{x:g}", f"top {x:.0%}") for x in report.spec.top),
                            *((f"threshold/{x:g}", f"p ≥ {x:g}") for x in report.spec.thresholds)]:  # fmt: skip
            if f"{rule}/shown" in of:
                recall = of.value(f"{rule}/recall")
                value = [count(of.value(f"{rule}/value"))] if valued else []
                shown = [count(of.value(f"{rule}/shown")), count(of.value(f"{rule}/clicks")), f"{recall or 0:.1%}"]
                more = of.interval(f"{rule}/more_clicks")
                rows.append([arm, words, *shown, fixed(of.value(f"{rule}/rate")), *value, more])
        if "utility" in of:
            bids.append([arm, fixed(of.value("utility")), of.interval("utility/gain", digits=4)])
    value_head = ["value"] if valued else []
    head = ["arm", "rule", "shown", "clicks", "of all clicks", "rate", *value_head, "more clicks, %"]
    title = f"{student} · {task}: "
    tables = [TextTable(f"{title}decisions, means over seeds", head, rows, names=2)]
    if bids:
        of_bids = ["arm", "per row", "more than the baseline"]
        tables.append(TextTable(f"{title}expected utility of bids", of_bids, bids))
    return tables


def _further_baselines(report: ReplayReport) -> Sequence[str]:
    return report.spec.baselines if len(report.spec.baselines) > 1 else ()


def _gain_heads(report: ReplayReport) -> list[str]:
    return [GAIN, "sd of seeds", "calibration-free %", *(f"over {name} %" for name in _further_baselines(report))]


def _gains(of: Figures, report: ReplayReport) -> list[Entry]:
    """Over the best twin, how much that differs from seed to seed, without calibration, and over each baseline."""
    over = [of.interval(f"gain/over/{name}") for name in _further_baselines(report)]
    free = of.interval("gain/calibration_free")
    return [of.interval("gain"), fixed(of.value("gain/seed_sd"), 2), free, *over]


def _significance(of: Figures) -> list[Entry]:
    """The p-value, the shares of teachers' leads, and the gain on a student's first rows."""
    shares = []
    for name, cell in of.below("transfer").items():
        error = of.value(f"transfer/{name}/se")
        more = "" if error is None else f" ± {error:.2f}"
        shares.append(f"{'' if name == 'teacher' else name + ' '}{cell.value:.2f}{more}")
    return [p_value(of.value("gain/p")), ", ".join(shares) or None, of.interval("gain/early")]


def _figures(of: Figures) -> list[Entry]:
    """FIGURES; dashes where rows are too few for them to mean anything."""
    few = of.lacking("rows") is not None
    return [None if few else fixed(of.value(metric)) for metric in FIGURES]


def _counts(each: Sequence[Figures]) -> list[Entry]:
    """Rows and positives, over seeds and students."""
    return [counts([cell.value or 0 for of in each for cell in of.below(what).values()] or [0]) for what in COUNTS]


def _worst(each: dict[str, Figures]) -> Entry:
    """The student whose gain's lower bound is lowest."""
    gains = {s: of.cell("gain") for s, of in each.items() if of.lacking("gain") is None}
    bounds = {s: c.value if c.low is None else c.low for s, c in gains.items() if c is not None and c.value is not None}
    if not bounds:
        return None
    worst = min(bounds, key=lambda student: bounds[student])
    gain = each[worst].interval("gain")
    return f"{worst} {gain if isinstance(gain, str) else gain and gain.text}"


def _explained(setting: Condition) -> str:
    parts = []
    if setting.teacher is not None:
        parts.append(f"teacher: {setting.teacher}")
    if setting.born:
        parts.append(f"the teacher begins {setting.born} blocks later")
    if setting.behind:
        parts.append(f"scored by snapshots {setting.behind} blocks older")
    if not setting.honest:
        parts.append(f"students see {setting.scale:g} · logit {setting.shift:+g}")
    shares = {"missing": "logits missing of", "lost": "feedback lost of", "unknown": "labels unknown of"}
    parts += [f"{words} {getattr(setting, name):.0%}" for name, words in shares.items() if getattr(setting, name)]
    if setting.window_s:
        parts.append(f"feedback counts within {setting.window_s:g} s")
    if setting.late_s:
        parts.append(f"students learn rows {setting.late_s:g} s later")
    if setting.start:
        parts.append(f"students are born at {setting.start:.0%} of the stream")
    return f" ({', '.join(parts)})" if parts else ""

"""Whether there is something to learn: label rates, and how much feedback comes within its window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipelines.core.config.sections import LossLimits
from pipelines.core.config.settings import Config
from pipelines.data.checks.rows import severity_of
from pipelines.data.checks.sample import LabelSeen, Sample
from pipelines.data.profile.finding import Finding, Severity, note, percent, stop, warn
from pipelines.report.results.losses import MOST_EARLY_MS
from streaming.schema import Task

FEW_POSITIVES = 100
MOSTLY = 0.5


def judge_labels(config: Config, sample: Sample) -> Iterator[Finding]:
    tasks = {task.name: task for task in config.rows.tasks}
    labels = {name: seen for name, seen in sample.labels.items() if name in tasks}
    for name in tasks.keys() - labels.keys():
        yield warn(
            f"rows.tasks.{name}",
            f"nothing says where the labels of task `{name}` are: every one of them will be 0",
            f"add it to source.labels, or take it out; labels are given for {', '.join(labels) or 'none'}",
        )
    yield from _rates(labels, sample.whole)
    yield from _unmet(labels, tasks, config.losses)
    for name, seen in labels.items():
        yield from judge_delays(tasks[name], seen.delays_s, config.losses)
        yield from judge_early(tasks[name], seen.delays_s, config.settlement.early_ms, config.losses)
    feedback = sample.matched + sample.unmatched
    severity = severity_of(sample.unmatched, feedback, config.losses)
    if sample.whole and severity is not Severity.NOTE:
        yield Finding(
            severity,
            "feedback",
            f"{percent(sample.unmatched / feedback)} of feedback ({sample.unmatched:,} of {feedback:,}) belongs to no "
            "impression that is there",
            "see that both carry the same impression_id",
        )


def _unmet(labels: Mapping[str, LabelSeen], tasks: Mapping[str, Task], limits: LossLimits) -> Iterator[Finding]:
    for name, seen in labels.items():
        if not seen.unmet:
            continue
        given, share = tasks[name].given, percent(seen.unmet / seen.positives)
        say = note if severity_of(seen.unmet, seen.positives, limits) is Severity.NOTE else warn
        yield say(
            f"rows.tasks.{name}.given",
            f"{share} of rows with `{name}` ({seen.unmet:,} of {seen.positives:,}) have no `{given}`, which it is "
            "given: they count as not applicable",
            f"take `given` off the task if it happens without `{given}`",
        )


def _rates(labels: Mapping[str, LabelSeen], whole: bool) -> Iterator[Finding]:
    known = {name: seen for name, seen in labels.items() if seen.rows - seen.unknown > 0}
    for name in labels.keys() - known.keys():
        if labels[name].rows:
            yield warn(f"task {name}", "its label is null in every row: unknown", "name another column")
    constant = [name for name, seen in known.items() if seen.rate in (0.0, 1.0)]
    for name, seen in known.items():
        rows = seen.rows - seen.unknown
        if name in constant:
            every = "positive" if seen.rate else "negative"
            kind = stop if whole and len(constant) == len(labels) else warn
            yield kind(
                f"task {name}",
                f"every label is {every} ({seen.positives:,} positives in {rows:,} rows): nothing can be learned",
                "check the label's column, and `at_least` or `values`",
            )
        elif seen.rate > MOSTLY:
            yield warn(
                f"task {name}",
                f"{percent(seen.rate)} of labels are positive ({seen.positives:,} of {rows:,})",
                "that is much for clicks: check `at_least` or `values`",
            )
        elif whole and seen.positives < FEW_POSITIVES:
            yield warn(
                f"task {name}",
                f"{seen.positives:,} positives in {rows:,} rows are too few to tell models apart",
                "use a longer stream",
            )
        if seen.between:
            yield warn(
                f"task {name}",
                f"{percent(seen.between / rows)} of labels ({seen.between:,} of {rows:,}) lie between 0 and 1, and a "
                "value above 0 is positive",
                "set `at_least` of the label to where a positive begins; shares and scores are no labels as they are",
            )
        if seen.unknown:
            yield note(f"task {name}", f"{percent(seen.unknown / seen.rows)} of labels are null: unknown, not learned")


def judge_delays(task: Task, delays_s: np.ndarray, limits: LossLimits) -> Iterator[Finding]:
    """Feedback counts only up to the end of its window.

    >>> (found,) = judge_delays(Task(name="ctr", window_s=600), np.array([60.0, 3000, 4000, 5000]), LossLimits())
    >>> print(found.seen)
    75 % of the ctr feedback (3 of 4) comes later than its window of 600 s, and would not count
    >>> print(found.remedy)
    window_s: 5000 catches 99 % of it (half of it comes within 3,500 s)
    """
    late = int((delays_s > task.window_s).sum())
    if not late:
        return
    enough = np.quantile(delays_s, 0.99, method="higher")
    yield Finding(
        severity_of(late, len(delays_s), limits),
        f"rows.tasks.{task.name}.window_s",
        f"{percent(late / len(delays_s))} of the {task.name} feedback ({late:,} of {len(delays_s):,}) comes later than "
        f"its window of {task.window_s:,g} s, and would not count",
        f"window_s: {np.ceil(enough):.0f} catches 99 % of it (half of it comes within {np.median(delays_s):,.0f} s)",
    )


def judge_early(task: Task, delays_s: np.ndarray, early_ms: int, limits: LossLimits) -> Iterator[Finding]:
    """Feedback counts only from its impression on, or from `early_ms` before it.

    >>> (found,) = judge_early(Task(name="ctr", window_s=600), np.array([-0.05, -0.02, 3, 40]), 0, LossLimits())
    >>> print(found.seen)
    50 % of the ctr feedback (2 of 4) lies before its impression, and would not count
    >>> print(found.remedy)
    settlement.early_ms: 50 takes 99 % of it
    """
    before_ms = np.rint(-1000 * delays_s[delays_s < -early_ms / 1000])
    if not len(before_ms):
        return
    enough = int(np.quantile(before_ms, 0.99, method="higher"))
    near = enough <= MOST_EARLY_MS
    yield Finding(
        severity_of(len(before_ms), len(delays_s), limits),
        "settlement.early_ms" if near else f"task {task.name}",
        f"{percent(len(before_ms) / len(delays_s))} of the {task.name} feedback ({len(before_ms):,} of "
        f"{len(delays_s):,}) lies before its impression, and would not count",
        f"settlement.early_ms: {enough} takes 99 % of it"
        if near
        else f"most lies within {enough / 1000:,.0f} s before it: check the clocks of both producers",
    )

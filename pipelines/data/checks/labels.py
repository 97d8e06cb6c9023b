"""Rules of labels: whether there is something to learn, and how much feedback comes within its window."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipelines.core.config.sections import LossLimits
from pipelines.core.config.settings import Config
from pipelines.data.checks.rows import severity_of
from pipelines.data.findings import Finding, Rules, Severity, percent
from pipelines.data.profile.profile import LabelProfile, Profile
from pipelines.report.results.losses import MOST_EARLY_MS
from streaming.schema import Task

RULES = Rules("""
warn  label.absent  rows.tasks.{task}
    nothing says where the labels of task `{task}` are: every one of them will be 0
    -> add it to source.labels, or take it out; labels are given for {labels}
warn|stop  label.unmatched  feedback
    {share} of feedback ({rows:,} of {of:,}) belongs to no impression that is there
    -> see that both carry the same impression_id
note|warn  label.unmet  rows.tasks.{task}.given
    {share} of rows with `{task}` ({rows:,} of {of:,}) have no `{given}`, which it is given: they count as not
    applicable
    -> take `given` off the task if it happens without `{given}`
warn  label.null  task {task}
    its label is null in every row: unknown
    -> name another column
warn|stop  label.constant  task {task}
    every label is {every} ({positives:,} positives in {rows:,} rows): nothing can be learned
    -> check the label's column, and `at_least` or `values`
warn  label.often  task {task}
    {share} of labels are positive ({positives:,} of {rows:,})
    -> that is much for clicks: check `at_least` or `values`
warn  label.rare  task {task}
    {positives:,} positives in {rows:,} rows are too few to tell models apart
    -> use a longer stream
warn  label.between  task {task}
    {share} of labels ({between:,} of {rows:,}) lie between 0 and 1, and a value above 0 is positive
    -> set `at_least` of the label to where a positive begins; shares and scores are no labels as they are
note  label.unknown  task {task}
    {share} of labels are null: unknown, not learned
note|warn|stop  label.late  rows.tasks.{task}.window_s
    {share} of the {task} feedback ({late:,} of {rows:,}) comes later than its window of {window_s:,g} s, and would not
    count
    -> window_s: {enough:.0f} catches 99 % of it (half of it comes within {half:,.0f} s)
note|warn|stop  label.early  settlement.early_ms
    {share} of the {task} feedback ({early:,} of {rows:,}) lies before its impression, and would not count
    -> settlement.early_ms: {enough} takes 99 % of it
note|warn|stop  label.much-too-early  task {task}
    {share} of the {task} feedback ({early:,} of {rows:,}) lies before its impression, and would not count
    -> most lies within {seconds:,.0f} s before it: check the clocks of both producers
""")

FEW_POSITIVES = 100
MOSTLY = 0.5


def judge_labels(config: Config, profile: Profile) -> Iterator[Finding]:
    tasks, limits = {task.name: task for task in config.rows.tasks}, config.losses
    labels = {name: seen for name, seen in profile.labels.items() if name in tasks}
    for name in tasks.keys() - labels.keys():
        yield RULES("label.absent", task=name, labels=", ".join(labels) or "none")
    yield from _rates(labels, profile.whole)
    for name, seen in labels.items():
        if seen.unmet:
            grave = severity_of(seen.unmet, seen.positives, limits) is not Severity.NOTE
            counts = {"share": percent(seen.unmet / seen.positives), "rows": seen.unmet, "of": seen.positives}
            severity = Severity.WARN if grave else Severity.NOTE
            yield RULES("label.unmet", severity, task=name, given=tasks[name].given, **counts)
    for name, seen in labels.items():
        yield from judge_delays(tasks[name], seen.delays_s, limits)
        yield from judge_early(tasks[name], seen.delays_s, config.settlement.early_ms, limits)
    feedback = profile.matched + profile.unmatched
    severity = severity_of(profile.unmatched, feedback, limits)
    if profile.whole and severity is not Severity.NOTE:
        share = percent(profile.unmatched / feedback)
        yield RULES("label.unmatched", severity, share=share, rows=profile.unmatched, of=feedback)


def _rates(labels: Mapping[str, LabelProfile], whole: bool) -> Iterator[Finding]:
    for name, seen in labels.items():
        if seen.rows and not seen.known:
            yield RULES("label.null", task=name)
    constant = [name for name, seen in labels.items() if seen.known and seen.rate in (0.0, 1.0)]
    for name, seen in labels.items():
        if not seen.known:
            continue
        about = {"task": name, "positives": seen.positives, "rows": seen.known}
        if name in constant:
            severity = Severity.STOP if whole and len(constant) == len(labels) else Severity.WARN
            yield RULES("label.constant", severity, **about, every="positive" if seen.rate else "negative")
        elif seen.rate > MOSTLY:
            yield RULES("label.often", **about, share=percent(seen.rate))
        elif whole and seen.positives < FEW_POSITIVES:
            yield RULES("label.rare", **about)
        if seen.between:
            yield RULES("label.between", **about, share=percent(seen.between / seen.known), between=seen.between)
        if seen.unknown:
            yield RULES("label.unknown", task=name, share=percent(seen.unknown / seen.rows))


def judge_delays(task: Task, delays_s: np.ndarray, limits: LossLimits) -> Iterator[Finding]:
    """Check delays of feedback, which counts only up to the end of its window.

    >>> (late,) = judge_delays(Task(name="ctr", window_s=600), np.array([60.0, 3000, 4000, 5000]), LossLimits())
    >>> print(late.seen)
    75 % of the ctr feedback (3 of 4) comes later than its window of 600 s, and would not count
    >>> print(late.remedy)
    window_s: 5000 catches 99 % of it (half of it comes within 3,500 s)
    """
    late, rows = int((delays_s > task.window_s).sum()), len(delays_s)
    if late:
        enough, half = np.ceil(np.quantile(delays_s, 0.99, method="higher")), np.median(delays_s)
        about = {"task": task.name, "window_s": task.window_s, "enough": enough, "half": half}
        yield RULES(
            "label.late", severity_of(late, rows, limits), share=percent(late / rows), late=late, rows=rows, **about
        )


def judge_early(task: Task, delays_s: np.ndarray, early_ms: int, limits: LossLimits) -> Iterator[Finding]:
    """Check for early feedback, which counts only from its impression on, or from `early_ms` before it.

    >>> (early,) = judge_early(Task(name="ctr", window_s=600), np.array([-0.05, -0.02, 3, 40]), 0, LossLimits())
    >>> print(early.seen)
    50 % of the ctr feedback (2 of 4) lies before its impression, and would not count
    >>> print(early.remedy)
    settlement.early_ms: 50 takes 99 % of it
    """
    before_ms = np.rint(-1000 * delays_s[delays_s < -early_ms / 1000])
    if not (early := len(before_ms)):
        return
    enough, rows = int(np.quantile(before_ms, 0.99, method="higher")), len(delays_s)
    rule = "label.early" if enough <= MOST_EARLY_MS else "label.much-too-early"
    about = {"task": task.name, "share": percent(early / rows), "early": early, "rows": rows}
    yield RULES(rule, severity_of(early, rows, limits), **about, enough=enough, seconds=enough / 1000)

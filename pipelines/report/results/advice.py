"""Advice after a run: the one change that would tell most."""

from __future__ import annotations

from collections.abc import Mapping

from exfm.distillation.arm import Arm
from pipelines.live.status.counts import Counts
from pipelines.report.results.figures import TaskFigures, WindowFigures
from pipelines.report.results.verdict import GainInterval, Outcome, interval_of, outcome_of, saw_no_row

WARM_IMPRESSIONS = 300_000
"""On a shorter generated stream teacher and students are still cold at the end: it shows that everything runs."""

LOST_FEEDBACK = 0.1
"""Above this share of feedback that set no label, labels are wrong before anything is learned from them."""

LONGEST = 20
"""A stream more times as long than this is not suggested."""


def next_step(
    students: Mapping[str, Mapping[str, TaskFigures]], arms: Mapping[str, Arm], lost_feedback: float
) -> str | None:
    """The most useful next step in words, to go after `try`; None if no student saw a row.

    students       figures by student and task
    arms           by student
    lost_feedback  the share of feedback that set no label, as `lost_share` has it

    >>> from exfm.metrics.paired import PairedGain
    >>> def after(gain, lead, follows="advantage"):
    ...     half = WindowFigures(rows=90_000, positives=4_000, gain=gain, lead=lead)
    ...     students = {"feed": {"ctr": TaskFigures(rows=180_000, positives=8_000, last_half=half)}}
    ...     return next_step(students, {"feed": Arm(follows=follows)}, 0.01)
    >>> good, bad, open_, equal = (
    ...     PairedGain((low + high) / 2, low, high, 0.1, clusters=90, rows=90_000, positives=4_000, too_few=None)
    ...     for low, high in ((1.0, 3.0), (-3.0, -1.0), (-0.2, 0.6), (0.0, 0.0)))
    >>> after(good, good)
    'another seed: its gains show what one seed cannot'
    >>> after(bad, good, follows="nothing")
    'the recommended arm for feed (model: {arm: recommended}): its weight follows what the teacher was measured to know'
    >>> after(open_, good)
    'a stream about 4 times as long: it would decide, if the gain of feed on ctr stays as it is'
    >>> after(open_, bad)  # doctest: +NORMALIZE_WHITESPACE
    'labels of all verticals without a teacher (label_rows: all, model.arm.kind: none), or a longer stream or a
    larger teacher (docs/guides/how-large-a-teacher.md): this one does not lead anywhere'
    >>> after(equal, good)  # doctest: +NORMALIZE_WHITESPACE
    'another arm for feed: it equals its twin on ctr, though the teacher leads, since the factor on its weight
    (follows: advantage) stayed 0: on earlier rows the teacher showed nothing that the student did not know (model:
    {arm: {preset: recommended, follows: nothing}} teaches all the same)'
    >>> after(None, None)
    'a twin (student_defaults: {twin: true}): the same student without a teacher shows what the teacher is worth'
    """
    halves = {
        (student, task): result.last_half
        for student, tasks in students.items()
        if not saw_no_row(tasks)
        for task, result in tasks.items()
    }
    if not halves:
        return None
    if lost_feedback >= LOST_FEEDBACK:
        return f"a longer window (window_s under rows.tasks): {lost_feedback:.0%} of the feedback set no label"
    outcomes = {pair: outcome_of(half.gain) for pair, half in halves.items()}
    if set(outcomes.values()) == {Outcome.NO_TWIN}:
        return (
            "a twin (student_defaults: {twin: true}): the same student without a teacher shows what the teacher is "
            "worth"
        )
    for (student, task), half in halves.items():
        if half.gain is not None and outcomes[student, task] is Outcome.TOO_FEW:
            return f"a longer stream: {student} has too few {half.gain.too_few} to tell on {task}"
    losers = list(dict.fromkeys(student for (student, _), outcome in outcomes.items() if outcome is Outcome.LOST))
    for student in losers:
        if arms[student].follows == "nothing":
            return (
                f"the recommended arm for {student} (model: {{arm: recommended}}): its weight follows what the teacher "
                "was measured to know"
            )
    if Outcome.GAINED not in {outcome_of(half.lead) for half in halves.values()}:
        return (
            "labels of all verticals without a teacher (label_rows: all, model.arm.kind: none), or a longer stream or "
            "a larger teacher (docs/guides/how-large-a-teacher.md): this one does not lead anywhere"
        )
    if losers:
        return f"a sweep of arms and weights (docs/guides/choose-an-arm.md): {', '.join(losers)} lost with this one"
    for (student, task), half in halves.items():
        if outcomes[student, task] is Outcome.EQUAL:
            return f"another arm for {student}: it equals its twin on {task}, {_untaught(half, arms[student])}"
        if outcomes[student, task] is Outcome.UNDECIDED and (gain := interval_of(half.gain)) is not None:
            return _until_decided(student, task, gain)
    return "another seed: its gains show what one seed cannot"


def lost_share(counts: Counts) -> float:
    """The share of feedback that came too late or for no impression."""
    lost = counts.late_feedback + counts.unmatched_feedback
    return lost / counts.feedback_read if counts.feedback_read else 0.0


def _untaught(half: WindowFigures, arm: Arm) -> str:
    """Reason why nothing of the teacher is in a student's predictions, from its arm.

    >>> _untaught(WindowFigures(rows=900, positives=90), Arm(kind="none"))
    'since its arm `none` uses no teacher (model: {arm: recommended} does)'
    """
    though = "though the teacher leads, " if outcome_of(half.lead) is Outcome.GAINED else ""
    if not arm.distils:
        why = "its arm `none` uses no teacher (model: {arm: recommended} does)"
    elif arm.follows == "advantage":
        why = (
            "the factor on its weight (follows: advantage) stayed 0: on earlier rows the teacher showed nothing that "
            "the student did not know (model: {arm: {preset: recommended, follows: nothing}} teaches all the same)"
        )
    elif arm.gradient_scale == 0:
        why = "gradient_scale 0 in its arm lets nothing of the teacher reach what the student predicts with"
    elif arm.weight == 0:
        why = "the weight of the teacher's term in its arm is 0"
    else:
        why = "nothing that it learned from the teacher reached the logit that it serves"
    return f"{though}since {why}"


def _until_decided(student: str, task: str, gain: GainInterval) -> str:
    """An interval narrows with the root of the rows."""
    reach, value = (gain.high - gain.low) / 2, abs(gain.value)
    if reach**2 <= LONGEST * value**2:
        times = max(2, round((reach / value) ** 2))
        return (
            f"a stream about {times} times as long: it would decide, if the gain of {student} on {task} stays as it is"
        )
    return (
        f"a sweep of arms and weights (docs/guides/choose-an-arm.md): with this one {student} is as good as its twin "
        f"on {task}"
    )

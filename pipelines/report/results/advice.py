"""Advice after a run: the one change that would tell most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.report.results.verdict import JUDGED, Outcome, outcome_of, saw_no_row

WARM_IMPRESSIONS = 300_000
"""On a shorter generated stream teacher and students are still cold at the end: it shows that everything runs."""

LOST_FEEDBACK = 0.1
"""Above this share of feedback that set no label, labels are wrong before anything is learned from them."""

LONGEST = 20
"""A stream more times as long than this is not suggested."""


def next_step(summary: Mapping[str, Any]) -> str | None:
    """The most useful next step in words, to go after `try`; None if no student saw a row.

    >>> def after(gain, lead, follows="advantage"):
    ...     half = {"rows": 90_000, "positives": 4_000, "gain": gain, "lead": lead}
    ...     counts = {"feedback_read": 100, "late_feedback": 1, "unmatched_feedback": 0}
    ...     run = {"arms": {"feed": {"follows": follows}}}
    ...     return next_step({"run": run, "counts": counts, "students": {"feed": {"ctr": half | {"last_half": half}}}})
    >>> good, bad, open_ = ({"difference": (low + high) / 2, "low": low, "high": high} for low, high in
    ...                     ((1.0, 3.0), (-3.0, -1.0), (-0.2, 0.6)))
    >>> after(good, good)
    'another seed: its gains show what one seed cannot'
    >>> after(bad, good, follows="nothing")
    'the recommended arm for feed (model: {arm: recommended}): its weight follows what the teacher was measured to know'
    >>> after(open_, good)
    'a stream about 4 times as long: it would decide, if the gain of feed on ctr stays as it is'
    >>> after(open_, bad)
    'a longer stream or a larger teacher (docs/guides/how-large-a-teacher.md): this one does not lead anywhere'
    >>> equal = {"difference": 0.0, "low": 0.0, "high": 0.0}
    >>> after(equal, good)  # doctest: +NORMALIZE_WHITESPACE
    'another arm for feed: it equals its twin on ctr, though the teacher leads, since the factor on its weight
    (follows: advantage) stayed 0: on earlier rows the teacher showed nothing that the student did not know (model:
    {arm: {preset: recommended, follows: nothing}} teaches all the same)'
    >>> after(None, None)
    'a twin (student_defaults: {twin: true}): the same student without a teacher shows what the teacher is worth'
    """
    cells = list(_cells(summary))
    if not cells:
        return None
    lost = _lost_feedback(summary["counts"])
    if lost >= LOST_FEEDBACK:
        return f"a longer window (window_s under rows.tasks): {lost:.0%} of the feedback set no label"
    outcomes = {(student, task): outcome_of(half["gain"]) for student, task, half in cells}
    if set(outcomes.values()) == {Outcome.NO_TWIN}:
        return (
            "a twin (student_defaults: {twin: true}): the same student without a teacher shows what the teacher is "
            "worth"
        )
    for student, task, half in cells:
        if outcomes[student, task] is Outcome.TOO_FEW:
            return f"a longer stream: {student} has too few {half['gain']['too_few']} to tell on {task}"
    losers = list(dict.fromkeys(student for (student, _), outcome in outcomes.items() if outcome is Outcome.LOST))
    arms = summary["run"].get("arms", {})
    for student in losers:
        if arms.get(student, {}).get("follows") == "nothing":
            return (
                f"the recommended arm for {student} (model: {{arm: recommended}}): its weight follows what the teacher "
                "was measured to know"
            )
    if Outcome.GAINED not in {outcome_of(half["lead"]) for _, _, half in cells}:
        return (
            "a longer stream or a larger teacher (docs/guides/how-large-a-teacher.md): this one does not lead anywhere"
        )
    if losers:
        return f"a sweep of arms and weights (docs/guides/choose-an-arm.md): {', '.join(losers)} lost with this one"
    for student, task, half in cells:
        if outcomes[student, task] is Outcome.EQUAL:
            return f"another arm for {student}: it equals its twin on {task}, {_untaught(half, arms.get(student, {}))}"
        if outcomes[student, task] is Outcome.UNDECIDED:
            return _until_decided(student, task, half["gain"])
    return "another seed: its gains show what one seed cannot"


def _cells(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for student, tasks in summary["students"].items():
        if not saw_no_row(tasks):
            for task, result in tasks.items():
                yield student, task, result[JUDGED]


def _lost_feedback(counts: Mapping[str, Any]) -> float:
    """The share of feedback that came too late or for no impression."""
    lost = counts["late_feedback"] + counts["unmatched_feedback"]
    return float(lost / counts["feedback_read"]) if counts["feedback_read"] else 0.0


def _untaught(half: Mapping[str, Any], arm: Mapping[str, Any]) -> str:
    """Reason why nothing of the teacher is in a student's predictions, from its arm.

    >>> _untaught({"lead": None}, {"kind": "none"})
    'since its arm `none` uses no teacher (model: {arm: recommended} does)'
    """
    though = "though the teacher leads, " if outcome_of(half["lead"]) is Outcome.GAINED else ""
    if arm.get("kind") == "none":
        why = "its arm `none` uses no teacher (model: {arm: recommended} does)"
    elif arm.get("follows") == "advantage":
        why = (
            "the factor on its weight (follows: advantage) stayed 0: on earlier rows the teacher showed nothing that "
            "the student did not know (model: {arm: {preset: recommended, follows: nothing}} teaches all the same)"
        )
    elif arm.get("gradient_scale") == 0:
        why = "gradient_scale 0 in its arm lets nothing of the teacher reach what the student predicts with"
    elif arm.get("weight") == 0:
        why = "the weight of the teacher's term in its arm is 0"
    else:
        why = "nothing that it learned from the teacher reached the logit that it serves"
    return f"{though}since {why}"


def _until_decided(student: str, task: str, gain: Mapping[str, Any]) -> str:
    """An interval narrows with the root of the rows."""
    reach, value = (gain["high"] - gain["low"]) / 2, abs(gain["difference"])
    if reach**2 <= LONGEST * value**2:
        times = max(2, round((reach / value) ** 2))
        return (
            f"a stream about {times} times as long: it would decide, if the gain of {student} on {task} stays as it is"
        )
    return (
        f"a sweep of arms and weights (docs/guides/choose-an-arm.md): with this one {student} is as good as its twin "
        f"on {task}"
    )

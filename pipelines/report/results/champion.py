"""Champion after a run: a student or its twin."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pipelines.report.results.figures import TaskFigures
from pipelines.report.results.verdict import JUDGED, Outcome, interval_of, outcome_of


class Champion(StrEnum):
    """The model behind `@champion` after a run."""

    STUDENT = "student"
    TWIN = "twin"
    NONE = "none"


def champion_of(outcomes: Mapping[str, Outcome], *, twin: bool) -> Champion:
    """The champion of a student whose tasks have these outcomes. It is never significantly worse than its twin.

    student  it lost no task: each was gained, is undecided or equal, has too few positives to tell, or there is no twin
    twin     the student lost a task, and gained none
    none     the student lost a task and gained another: each of the two models is worse than the other somewhere, and
             no rule knows which task matters more. Also where the twin would be champion and none was exported
             (`twin`), and where the student learned no row: it has no outcomes.

    >>> gained, lost, undecided, too_few = Outcome.GAINED, Outcome.LOST, Outcome.UNDECIDED, Outcome.TOO_FEW
    >>> str(champion_of({"ctr": undecided, "cvr": too_few}, twin=True))
    'student'
    >>> str(champion_of({"ctr": lost, "cvr": undecided}, twin=True))
    'twin'
    >>> str(champion_of({"ctr": lost, "cvr": gained}, twin=True))
    'none'
    >>> str(champion_of({"ctr": lost}, twin=False)), str(champion_of({}, twin=True))
    ('none', 'none')
    """
    all_outcomes = set(outcomes.values())
    if not all_outcomes:
        return Champion.NONE
    if Outcome.LOST not in all_outcomes:
        return Champion.STUDENT
    return Champion.TWIN if twin and Outcome.GAINED not in all_outcomes else Champion.NONE


def outcomes_of(tasks: Mapping[str, TaskFigures]) -> dict[str, Outcome]:
    """The outcome of each task of one student."""
    return {task: outcome_of(figures.last_half.gain) for task, figures in tasks.items()}


def gain_tags(tasks: Mapping[str, TaskFigures]) -> dict[str, str]:
    """Tags of a registered model for each task: the student's gain over its twin in % of the twin's NE, its 95 %
    interval, and the rows and positives behind it.

    >>> from exfm.metrics.paired import PairedGain
    >>> from pipelines.report.results.figures import WindowFigures
    >>> gain = PairedGain(-2.0, -3.0, -1.0, 0.5, clusters=50, rows=9000, positives=120, too_few=None)
    >>> half = WindowFigures(rows=9000, positives=120, gain=gain)
    >>> tags = gain_tags({"ctr": TaskFigures(rows=18_000, positives=250, last_half=half)})
    >>> tags["ctr/outcome"], tags["ctr/gain"], tags["ctr/positives"]
    ('lost', '-2.0000', '120')
    """
    tags = {"window": f"{JUDGED.replace('_', ' ')} of the stream"}
    for task, outcome in outcomes_of(tasks).items():
        half = tasks[task].last_half
        tags |= {f"{task}/outcome": str(outcome), f"{task}/rows": str(half.rows)}
        tags[f"{task}/positives"] = str(half.positives)
        if (gain := interval_of(half.gain)) is not None:
            figures = {"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high}
            tags |= {f"{task}/{tag}": f"{figure:.4f}" for tag, figure in figures.items()}
    return tags

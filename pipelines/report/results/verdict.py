"""Verdict on a student's gain over its twin: gained, lost, undecided or equal; and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from exfm.metrics.paired import PairedGain
from pipelines.report.results.figures import TaskFigures, WindowFigures

JUDGED = "last_half"
"""The window, by its key in summary.json, on which a student is judged wherever one window is shown."""

NO_ROW = "saw no row"


class Outcome(StrEnum):
    """The verdict on one student and task. The first two say that its difference from the twin is more than noise."""

    GAINED = "gained"
    LOST = "lost"
    UNDECIDED = "undecided"
    EQUAL = "equal"
    TOO_FEW = "too few"
    NO_TWIN = "no twin"


class GainInterval(NamedTuple):
    """A gain with its 95 % interval, in % of the twin's NE; above 0 is good."""

    value: float
    low: float
    high: float


def interval_of(gain: PairedGain | None) -> GainInterval | None:
    """Interval of a gain; None without a twin, and where there is too little to tell."""
    if gain is None or gain.difference is None or gain.low is None or gain.high is None:
        return None
    return GainInterval(gain.difference, gain.low, gain.high)


def outcome_of(gain: PairedGain | None) -> Outcome:
    """Outcome of a gain; None where there is no twin. An interval of no width at 0 is of two models that predict the
    same.

    >>> intervals = (0.2, 1.4), (-2.0, -0.1), (-1.0, 1.0), (0.0, 0.0), (None, None)
    >>> [str(outcome_of(PairedGain(0.5, *interval, 0.1, 50, 9000, 120, None))) for interval in intervals]
    ['gained', 'lost', 'undecided', 'equal', 'too few']
    >>> str(outcome_of(None))
    'no twin'
    """
    if gain is None:
        return Outcome.NO_TWIN
    interval = interval_of(gain)
    if interval is None:
        return Outcome.TOO_FEW
    if interval.low > 0:
        return Outcome.GAINED
    if interval.high < 0:
        return Outcome.LOST
    return Outcome.EQUAL if interval.low == interval.high == 0 else Outcome.UNDECIDED


def saw_no_row(tasks: Mapping[str, TaskFigures]) -> bool:
    """True if no row of the stream passed a student's filter."""
    return all(result.rows == 0 for result in tasks.values())


def verdict_on(tasks: Mapping[str, TaskFigures]) -> str:
    """The verdict on one student in words, from the last half of the stream.

    >>> gain = PairedGain(2.1, 1.8, 2.4, 0.15, clusters=900, rows=99_999, positives=12_345, too_few=None)
    >>> half = WindowFigures(rows=99_999, positives=12_345, gain=gain, lead=gain._replace(difference=3.6))
    >>> verdict_on({"ctr": TaskFigures(rows=200_000, positives=25_000, last_half=half)})
    'the teacher leads by 3.6 %; this student gained 2.1 % [1.8, 2.4] on ctr (12,345 positives)'
    >>> unknown = PairedGain(2.1, None, None, None, clusters=9, rows=450, positives=9, too_few="positives (9)")
    >>> half = WindowFigures(rows=450, positives=9, gain=unknown, lead=unknown)
    >>> verdict_on({"cvr": TaskFigures(rows=900, positives=9, last_half=half)})
    'this student has too few positives (9) to tell on cvr'
    >>> nothing = WindowFigures(rows=0, positives=0)
    >>> verdict_on({"ctr": TaskFigures(rows=0, positives=0, last_half=nothing)})
    'saw no row'
    """
    if saw_no_row(tasks):
        return NO_ROW
    halves = {task: result.last_half for task, result in tasks.items()}
    leads = [_lead(half.lead, f" on {task}" if len(halves) > 1 else "") for task, half in halves.items()]
    lead = _joined([lead for lead in leads if lead is not None])
    own = _joined([_own(task, half) for task, half in halves.items()])
    better = [words for task, half in halves.items() if (words := _better(task, half)) is not None]
    return "; ".join([*([f"the teacher {lead}"] if lead else []), f"this student {own}", *better])


def _better(task: str, half: WindowFigures) -> str | None:
    """The baseline that does better than the student, if one does; the simplest one.

    >>> from pipelines.report.results.figures import ModelFigures
    >>> models = {"student": ModelFigures(ne=0.96), "ftrl": ModelFigures(ne=0.94), "constant": ModelFigures(ne=1.0)}
    >>> _better("ctr", WindowFigures(rows=9000, positives=120, **models))
    'a logistic regression does better on ctr: NE 0.9400, this student 0.9600'
    """
    if half.too_few is not None or half.student is None or half.student.ne is None:
        return None
    own = half.student.ne
    for baseline, name in ((half.constant, "the label rate alone"), (half.ftrl, "a logistic regression")):
        if baseline is not None and baseline.ne is not None and baseline.ne < own:
            return f"{name} does better on {task}: NE {baseline.ne:.4f}, this student {own:.4f}"
    return None


class _Clause(NamedTuple):
    verb: str
    rest: str


def _joined(clauses: Sequence[_Clause]) -> str:
    """A verb is said once for the clauses in a row that share it.

    >>> _joined([_Clause("gained", "2 %"), _Clause("gained", "3 %"), _Clause("lost", "1 %")])
    'gained 2 %, 3 %, lost 1 %'
    """
    before = [None, *(clause.verb for clause in clauses)]
    pairs = zip(before, clauses, strict=False)
    return ", ".join(rest if verb == last else f"{verb} {rest}" for last, (verb, rest) in pairs)


def _lead(lead: PairedGain | None, where: str) -> _Clause | None:
    """Standing of the teacher beside the twin; None if it is not known."""
    outcome, interval = outcome_of(lead), interval_of(lead)
    if interval is None:
        return None
    if outcome in (Outcome.UNDECIDED, Outcome.EQUAL):
        return _Clause("is", f"level with the twin{where}")
    verb = "leads by" if outcome is Outcome.GAINED else "trails by"
    return _Clause(verb, f"{abs(interval.value):.1f} %{where}")


def _own(task: str, half: WindowFigures) -> _Clause:
    gain, outcome, interval = half.gain, outcome_of(half.gain), interval_of(half.gain)
    positives = f"({half.positives:,} positives)"
    if gain is None:
        return _Clause("has", f"no twin to be compared with on {task} {positives}")
    if interval is None:
        return _Clause("has", f"too few {gain.too_few} to tell on {task}")
    if outcome is Outcome.EQUAL:
        return _Clause("equals", f"its twin on {task} {positives}")
    value, low, high = interval
    digits = 1 if high - low >= 0.3 else 2
    if outcome is Outcome.UNDECIDED:
        figures = f"{value:+.{digits}f} % [{low:+.{digits}f}, {high:+.{digits}f}]"
        return _Clause("is", f"undecided on {task}: {figures} {positives}")
    if outcome is Outcome.LOST:
        value, low, high = -value, -high, -low
    return _Clause(outcome, f"{value:.{digits}f} % [{low:.{digits}f}, {high:.{digits}f}] on {task} {positives}")

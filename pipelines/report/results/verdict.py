"""Verdict on a student's gain over its twin: gained, lost, undecided or equal; and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

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


def outcome_of(gain: Mapping[str, Any] | None) -> Outcome:
    """Outcome of a `gain` of summary.json: {low, high, …} in % of the twin's NE, above 0 is good.

    `low` is None where there is too little to tell; the gain itself is None where there is no twin. An interval of no
    width at 0 is of two models that predict the same.

    >>> intervals = (0.2, 1.4), (-2.0, -0.1), (-1.0, 1.0), (0.0, 0.0)
    >>> [str(outcome_of({"low": low, "high": high})) for low, high in intervals]
    ['gained', 'lost', 'undecided', 'equal']
    >>> str(outcome_of({"low": None, "high": None})), str(outcome_of(None))
    ('too few', 'no twin')
    """
    if gain is None:
        return Outcome.NO_TWIN
    if gain["low"] is None:
        return Outcome.TOO_FEW
    if gain["low"] > 0:
        return Outcome.GAINED
    if gain["high"] < 0:
        return Outcome.LOST
    return Outcome.EQUAL if gain["low"] == gain["high"] == 0 else Outcome.UNDECIDED


def saw_no_row(tasks: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if no row of the stream passed a student's filter."""
    return all(result["rows"] == 0 for result in tasks.values())


def verdict_on(tasks: Mapping[str, Mapping[str, Any]]) -> str:
    """The verdict on one student in words, from its part of summary.json: {task: {`last_half`: figures, …}}.

    >>> gain = {"difference": 2.1, "low": 1.8, "high": 2.4, "too_few": None}
    >>> half = {"rows": 99999, "positives": 12345, "gain": gain, "lead": gain | {"difference": 3.6}}
    >>> verdict_on({"ctr": {"rows": 200000, "last_half": half}})
    'the teacher leads by 3.6 %; this student gained 2.1 % [1.8, 2.4] on ctr (12,345 positives)'
    >>> unknown = {"low": None, "high": None, "too_few": "positives (9)"}
    >>> verdict_on({"cvr": {"rows": 900, "last_half": {"positives": 9, "gain": unknown, "lead": unknown}}})
    'this student has too few positives (9) to tell on cvr'
    >>> verdict_on({"ctr": {"rows": 0}})
    'saw no row'
    """
    if saw_no_row(tasks):
        return NO_ROW
    halves = {task: result[JUDGED] for task, result in tasks.items()}
    leads = [_lead(half["lead"], f" on {task}" if len(halves) > 1 else "") for task, half in halves.items()]
    lead = _joined([lead for lead in leads if lead is not None])
    own = _joined([_own(task, half) for task, half in halves.items()])
    better = [words for task, half in halves.items() if (words := _better(task, half)) is not None]
    return "; ".join([*([f"the teacher {lead}"] if lead else []), f"this student {own}", *better])


def _better(task: str, half: Mapping[str, Any]) -> str | None:
    """The baseline that does better than the student, if one does; the simplest one.

    >>> _better("ctr", {"too_few": None, "student": {"ne": 0.96}, "ftrl": {"ne": 0.94}, "constant": {"ne": 1.0}})
    'a logistic regression does better on ctr: NE 0.9400, this student 0.9600'
    """
    if half.get("too_few") is not None or not half.get("student"):
        return None
    own = half["student"]["ne"]
    for model, name in (("constant", "the label rate alone"), ("ftrl", "a logistic regression")):
        ne = (half.get(model) or {}).get("ne")
        if ne is not None and own is not None and ne < own:
            return f"{name} does better on {task}: NE {ne:.4f}, this student {own:.4f}"
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


def _lead(lead: Mapping[str, Any] | None, where: str) -> _Clause | None:
    """Standing of the teacher beside the twin; None if it is not known."""
    outcome = outcome_of(lead)
    if lead is None or outcome is Outcome.TOO_FEW:
        return None
    if outcome in (Outcome.UNDECIDED, Outcome.EQUAL):
        return _Clause("is", f"level with the twin{where}")
    verb = "leads by" if outcome is Outcome.GAINED else "trails by"
    return _Clause(verb, f"{abs(lead['difference']):.1f} %{where}")


def _own(task: str, half: Mapping[str, Any]) -> _Clause:
    gain, outcome = half["gain"], outcome_of(half["gain"])
    positives = f"({half['positives']:,} positives)"
    if outcome is Outcome.NO_TWIN:
        return _Clause("has", f"no twin to be compared with on {task} {positives}")
    if outcome is Outcome.TOO_FEW:
        return _Clause("has", f"too few {gain['too_few']} to tell on {task}")
    if outcome is Outcome.EQUAL:
        return _Clause("equals", f"its twin on {task} {positives}")
    digits = 1 if gain["high"] - gain["low"] >= 0.3 else 2
    value, low, high = (gain[key] for key in ("difference", "low", "high"))
    if outcome is Outcome.UNDECIDED:
        figures = f"{value:+.{digits}f} % [{low:+.{digits}f}, {high:+.{digits}f}]"
        return _Clause("is", f"undecided on {task}: {figures} {positives}")
    if outcome is Outcome.LOST:
        value, low, high = -value, -high, -low
    return _Clause(outcome, f"{value:.{digits}f} % [{low:.{digits}f}, {high:.{digits}f}] on {task} {positives}")

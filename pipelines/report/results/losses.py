"""Losses of a run, in words: refused impressions, feedback without a label, students without a row.

    feedback_read = joined + duplicate + late + unmatched + refused (+ waiting, while the run lives)

Everything here is a function of counts, so that the live screen, `exfm status`, the closing screen and the end of a run
say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import PlainSerializer

from pipelines.core.config.sections import LossLimits
from pipelines.core.config.settings import Config
from pipelines.live.rules.shares import sure_share
from pipelines.live.status.counts import UNMATCHED, Counts, counts_of
from pipelines.live.status.losses import Losses, LossSeverity
from pipelines.live.training.live_metrics import HEAVY
from pipelines.report.results.figures import TaskFigures
from pipelines.report.results.remedies import remedy_of
from streaming.messages.dead_letters import TOMBSTONE
from streaming.settlement.settlement import OTHER_VERTICALS

MOST_REASONS = 5
"""Reasons of dead letters that are listed, the most common first."""
REPEATED = 0.03
"""The share of impressions dropped as repeats above which that is said: what is sent twice is less."""
ROWS_BEFORE_STUDENTS = 1000
"""While a run lives, a student that lacks its verticals is reported once the lake has this many rows."""


MOST_EARLY_MS = 60_000
"""Feedback that lies further before its impression is not of a clock that is a little off: no tolerance is proposed."""


class TaskFeedback(NamedTuple):
    """Feedback of one task in a finished run, by the reason why it set no label.

    joined     it is a label
    beyond     it came, in event time, after its window
    in_time    inside its window, and was read after the impression had settled
    before     before its impression
    unknown    of an impression that never came
    within_s   [(share, seconds)], rising: within this time after its impression, that share of all feedback has come
    early_ms   by how much 99 % of those before their impression lie before it, at most
    """

    task: str
    window_s: float
    joined: int
    beyond: int
    in_time: int
    before: int
    unknown: int
    within_s: Sequence[tuple[float, float]]
    early_ms: int = 0

    @property
    def lost(self) -> int:
        return self.beyond + self.in_time + self.before + self.unknown


StoredFeedback = Annotated[TaskFeedback, PlainSerializer(TaskFeedback._asdict)]
"""Feedback of a task, by its fields in summary.json."""


def losses_of(
    counts: Counts,
    limits: LossLimits,
    *,
    examples: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    wanted: Mapping[str, Sequence[str]] | None = None,
    feedback: Sequence[TaskFeedback] = (),
    unmet: Mapping[str, Sequence[int]] | None = None,
    ended: bool = False,
) -> Losses:
    """The losses of a run with these `counts` (as in summary.json, and in status.json while it lives).

    examples  by kind and reason: a dead letter's topic, partition, offset, row and detail
    wanted    by student: the verticals it learns
    feedback  of a finished run: why feedback set no label
    unmet     by conditional task: impressions with feedback, first those whose condition did not come, then all
    ended     the run is over: a lake without rows is a failure

    >>> counters = {
    ...     "impressions_read": 8000, "settled": {"ctr": 127}, "not_applicable": {"ctr": 0}, "pending": {"ctr": 0},
    ...     "unknown_labels": {}, "dead_letters": {"impression": {"null:bid": 7873}, "feedback": {}},
    ...     "duplicates_dropped": 0, "lake_rows": 127, "verticals": {"feed": 127}, "teacher_inferences": 127,
    ...     "feedback_read": 0, "matched_feedback": 0, "late_feedback": 0, "duplicate_feedback": 0,
    ...     "waiting_feedback": 0}
    >>> counts = counts_of(counters)
    >>> letter = {"topic": "impressions", "partition": 0, "offset": 17, "row": 3, "detail": "`bid` is null"}
    >>> losses = losses_of(counts, LossLimits(), examples={"impression": {"null:bid": letter}})
    >>> losses.severity, losses.lines[1]
    (<LossSeverity.FAIL: 'fail'>, 'dead letters 7,873 of 8,000 impressions')
    >>> losses.lines[2]
    '  null:bid 7,873, e.g. impressions/0 offset 17 row 3: `bid` is null'
    """
    examples, wanted = examples or {}, wanted or {}
    problems = [
        *_empty(counts, ended),
        *_impressions(counts, limits, examples),
        *_feedback(counts, limits, examples, feedback, ended),
        *_students(counts, wanted, ended),
        *_repeats(counts),
        *_unmet(unmet or {}, limits),
        *((LossSeverity.WARN, words) for words in counts.warnings),
    ]
    problems.sort(key=lambda problem: problem[0] is not LossSeverity.FAIL)
    severity = problems[0][0] if problems else LossSeverity.FINE
    lines = (*_feedback_line(counts), *_unmet_lines(unmet or {}), *_letters(counts, examples))
    return Losses(severity, lines, tuple(words for _, words in problems))


@dataclass(frozen=True)
class LossEvidence:
    """Evidence of a run's losses beside its counts, as `losses_of` takes it."""

    examples: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    feedback: Sequence[StoredFeedback] = ()
    unmet_conditions: Mapping[str, Sequence[int]] = field(default_factory=dict)


def final_losses(
    counts: Counts, evidence: LossEvidence, students: Mapping[str, Mapping[str, TaskFigures]], config: Config
) -> Losses:
    """Losses of a finished run, under the current limits of `config`."""
    losses = losses_of(
        counts,
        config.losses,
        examples=evidence.examples,
        wanted={student.name: student.row_filter for student in config.students},
        feedback=evidence.feedback,
        unmet=evidence.unmet_conditions,
        ended=True,
    )
    heavy = tuple(_heavy(students))
    severity = LossSeverity.WARN if heavy and losses.severity is LossSeverity.FINE else losses.severity
    return Losses(severity, losses.lines, losses.words + heavy)


def _heavy(students: Mapping[str, Mapping[str, TaskFigures]]) -> Iterator[str]:
    """Rows that weigh so much that a window's figures are theirs, each once."""
    named = set()
    for tasks in students.values():
        for task, result in tasks.items():
            for window, words in ((result, "the whole stream"), (result.last_half, "its last half")):
                row = window.heaviest
                if row and row.share > HEAVY and not window.too_few and (task, row.lake_seq) not in named:
                    named.add((task, row.lake_seq))
                    yield (
                        f"one of {window.rows:,} rows (lake_seq {row.lake_seq}) has {100 * row.share:.0f} % of the "
                        f"`sample_weight` of {words} for `{task}`: figures and models follow this row. See "
                        "whether its weight is right; a `maximum` of the column refuses larger ones"
                    )


def losses_now(counters: Mapping[str, Any], config: Config) -> tuple[Counts, Losses]:
    """Counts and losses of a live run, from the counters of the worker that writes its lake."""
    counts = counts_of(counters)
    wanted = {student.name: student.row_filter for student in config.students}
    examples, unmet = counters["dead_letter_examples"], counters.get("unmet_conditions")
    return counts, losses_of(counts, config.losses, examples=examples, wanted=wanted, unmet=unmet)


Problem = tuple[LossSeverity, str]


def judged(part: int, whole: int, limits: LossLimits) -> LossSeverity:
    """Severity of losing a part of all rows, or of feedback."""
    share = sure_share(part, whole)
    return (
        LossSeverity.FAIL
        if share > limits.fail_share
        else LossSeverity.WARN
        if share > limits.warn_share
        else LossSeverity.FINE
    )


def _empty(counts: Counts, ended: bool) -> Iterator[Problem]:
    if not ended or counts.lake_rows:
        return
    _, read = _rows_lost(counts, "impression")
    if not read:
        yield LossSeverity.FAIL, "the stream held no impression: the lake is empty, and no model has learned anything"
    elif counts.dead_letters < counts.impressions_read:
        yield LossSeverity.FAIL, f"no row of {read:,} impressions reached the lake, and no model has learned anything"


def _impressions(counts: Counts, limits: LossLimits, examples: Mapping[str, Any]) -> Iterator[Problem]:
    lost, read = _rows_lost(counts, "impression")
    severity = LossSeverity.FAIL if read and lost == read else judged(lost, read, limits)
    if severity is LossSeverity.FINE:
        return
    why = _most_common(_without(counts, "impression", TOMBSTONE), examples.get("impression", {}), counts.warnings)
    yield severity, f"{lost:,} of {read:,} impressions ({_percent(lost, read)}) are dead letters{why}"


def _feedback(
    counts: Counts,
    limits: LossLimits,
    examples: Mapping[str, Any],
    tasks: Sequence[TaskFeedback],
    ended: bool,
) -> Iterator[Problem]:
    if ended and counts.lake_rows and not counts.feedback_read:
        yield (
            LossSeverity.WARN,
            "no feedback was read: every label is 0. Check kafka.feedback.topic, or the label columns",
        )
    late, unmatched = counts.late_feedback, counts.unmatched_feedback
    refused, read = _rows_lost(counts, "feedback")
    lost, read = late + unmatched + refused, read - counts.waiting_feedback
    severity = judged(lost, read, limits)
    if severity is LossSeverity.FINE:
        return
    said = f"{lost:,} of {read:,} rows of feedback ({_percent(lost, read)}) set no label"
    worst = max(tasks, key=lambda task: task.lost, default=None)
    if refused >= late + unmatched:
        reasons = _without(counts, "feedback", UNMATCHED, TOMBSTONE)
        yield severity, f"{said}: {refused:,} were refused{_most_common(reasons, examples.get('feedback', {}))}"
    elif worst is not None and worst.lost:
        yield severity, f"{said}: {_why_lost(worst, examples)}"
        for task in tasks:
            if task.before and task.before < _most(task) and judged(task.before, read, limits) is not LossSeverity.FINE:
                yield LossSeverity.WARN, _before(task)
    else:
        early = counts.early_feedback
        before = f"{early:,} lie before their impression (settlement.early_ms), " if early else ""
        yield (
            severity,
            f"{said}: {late - early:,} came after the window of their task, {before}{unmatched:,} met no impression, "
            "which is forgotten some time after its window. If feedback comes later, lengthen rows.tasks.*.window_s; "
            "if ids differ, give both topics the same impression_id",
        )


def _without(counts: Counts, kind: str, *reasons: str) -> dict[str, int]:
    """Dead letters of a kind by reason, without some."""
    found = counts.dead_letters_by_reason.get(kind, {})
    return {reason: number for reason, number in found.items() if reason not in reasons}


def _rows_lost(counts: Counts, kind: str) -> tuple[int, int]:
    """Count of the rows of a kind that were refused, and of those that were read. A tombstone is no row."""
    tombstones = counts.dead_letters_by_reason.get(kind, {}).get(TOMBSTONE, 0)
    if kind == "impression":
        return counts.dead_letters - tombstones, counts.impressions_read - tombstones
    return counts.feedback_dead_letters - tombstones, counts.feedback_read - tombstones


def _why_lost(found: TaskFeedback, examples: Mapping[str, Any]) -> str:
    """The most common reason, and what to change.

    >>> late = TaskFeedback("ctr", 60.0, 14, beyond=920, in_time=8, before=0, unknown=0, within_s=[(0.95, 3540.0)])
    >>> print(_why_lost(late, {}).replace(": ", ":\\n"))
    920 of 942 `ctr` rows came later than the window of 60 s:
    95 % come within 3,540 s; set rows.tasks.ctr.window_s=3540
    """
    rows = f"of {found.joined + found.lost:,} `{found.task}` rows"
    most = _most(found)
    if most == found.beyond:
        share, seconds = next((each for each in found.within_s if each[1] > found.window_s), found.within_s[-1])
        return (
            f"{most:,} {rows} came later than the window of {found.window_s:,g} s: {100 * share:g} % come within "
            f"{seconds:,.0f} s; set rows.tasks.{found.task}.window_s={seconds:.0f}"
        )
    if most == found.in_time:
        return (
            f"{most:,} {rows} came inside their window, and were read after it had closed; raise settlement.lateness_s "
            "by as much as feedback is read behind event time"
        )
    if most == found.before:
        return _before(found)
    letter = examples.get("feedback", {}).get(UNMATCHED)
    return (
        f"{most:,} {rows} name an impression that never came{f', e.g. {_place(letter)}' if letter else ''}; give both "
        "topics the same impression_id"
    )


def _most(found: TaskFeedback) -> int:
    return max(found.beyond, found.in_time, found.before, found.unknown)


def _before(found: TaskFeedback) -> str:
    """Feedback from before its impression, and what to change."""
    of = f"{found.before:,} of {found.joined + found.lost:,} `{found.task}` rows"
    words = f"{of} have event times before their impression's"
    if 0 < found.early_ms <= MOST_EARLY_MS:
        return f"{words}, 99 % of them by at most {found.early_ms:,} ms; set settlement.early_ms={found.early_ms}"
    return f"{words}; check the clocks of both producers"


def _students(counts: Counts, wanted: Mapping[str, Sequence[str]], ended: bool) -> Iterator[Problem]:
    there = counts.verticals
    counted = sum(there.values())
    known = counted and OTHER_VERTICALS not in there and counted == sum(counts.settled.values())
    if not (known and (ended or counted >= ROWS_BEFORE_STUDENTS)):
        return
    for name, verticals in wanted.items():
        if verticals and not any(vertical in there for vertical in verticals):
            asked = ", ".join(f"`{vertical}`" for vertical in verticals)
            found = ", ".join(f"{vertical} {rows:,}" for vertical, rows in _by_count(there)[:10])
            more = f" and {len(there) - 10} more" if len(there) > 10 else ""
            yield LossSeverity.WARN, f"student `{name}` has no row: none is of {asked}; rows by vertical: {found}{more}"


def _repeats(counts: Counts) -> Iterator[Problem]:
    repeats, read = counts.duplicates_dropped, counts.impressions_read
    if sure_share(repeats, read) > REPEATED:
        yield (
            LossSeverity.WARN,
            f"{repeats:,} of {read:,} impressions ({_percent(repeats, read)}) carry the impression_id of an earlier "
            "one and were dropped as repeats. If they are other rows (candidates of one request), give each an id of "
            "its own: exfm check names columns that make a key with it; if they were sent twice, all is well",
        )


def _unmet(unmet: Mapping[str, Sequence[int]], limits: LossLimits) -> Iterator[Problem]:
    for task, (without, came) in unmet.items():
        if judged(without, came, limits) is not LossSeverity.FINE:
            share = _percent(without, came)
            yield (
                LossSeverity.WARN,
                f"{without:,} of {came:,} impressions with `{task}` feedback ({share}) have no positive label of the "
                f"task that it is given, and count as not applicable: take `given` off rows.tasks.{task} if it happens "
                "without, or have that task's feedback sent, too",
            )


# --- the account ---------------------------------------------------------------------------------------------------


def _feedback_line(counts: Counts) -> Iterator[str]:
    parts = {
        "joined": counts.joined_feedback,
        "late": counts.late_feedback - counts.early_feedback,
        "unmatched": counts.unmatched_feedback,
        "duplicate": counts.duplicate_feedback,
        "dead letters": counts.feedback_dead_letters,
    }
    if early := counts.early_feedback:
        parts["before its impression"] = early
    waiting = counts.waiting_feedback
    said = " + ".join(f"{number:,} {name}" for name, number in parts.items())
    yield f"feedback {counts.feedback_read:,} read = {said}" + (f" + {waiting:,} waiting" if waiting else "")


def _unmet_lines(unmet: Mapping[str, Sequence[int]]) -> Iterator[str]:
    for task, (without, came) in unmet.items():
        if without:
            yield f"`{task}` feedback without what it is given: {without:,} of {came:,} impressions, not applicable"


def _letters(counts: Counts, examples: Mapping[str, Any]) -> Iterator[str]:
    if counts.unmatched_feedback and (letter := examples.get("feedback", {}).get(UNMATCHED)):
        yield f"  unmatched, e.g. {_place(letter)}"
    for kind, name in (("impression", "impressions"), ("feedback", "rows of feedback")):
        found = counts.dead_letters_by_reason.get(kind, {})
        reasons = _by_count({reason: number for reason, number in found.items() if reason != UNMATCHED})
        if not reasons:
            continue
        read = counts.impressions_read if kind == "impression" else counts.feedback_read
        yield f"dead letters {sum(n for _, n in reasons):,} of {read:,} {name}"
        for reason, number in reasons[:MOST_REASONS]:
            letter = examples.get(kind, {}).get(reason)
            yield f"  {reason} {number:,}" + (f", e.g. {_place(letter)}" if letter else "")
        if rest := reasons[MOST_REASONS:]:
            yield f"  {len(rest):,} more reasons {sum(n for _, n in rest):,}"


def _most_common(reasons: Mapping[str, int], examples: Mapping[str, Any], warnings: Sequence[str] = ()) -> str:
    if not reasons:
        return ""
    reason, number = _by_count(reasons)[0]
    letter = examples.get(reason)
    remedy = remedy_of(reason, letter, warnings)
    said = f", most for `{reason}` ({number:,})"
    said += f", e.g. {_place(letter)}" if letter else ""
    return said + (f". {remedy}" if remedy else "")


def _place(letter: Mapping[str, Any]) -> str:
    return "{topic}/{partition} offset {offset} row {row}: {detail}".format_map(letter)


def _by_count(numbers: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(numbers.items(), key=lambda item: (-item[1], item[0]))


def _percent(part: int, whole: int) -> str:
    """
    >>> _percent(7873, 8000), _percent(8000, 8000), _percent(1, 8000)
    ('98.4 %', '100 %', '0.013 %')
    """
    if part >= whole:
        return "100 %"
    share = 100 * part / whole
    return f"{min(share, 99.9):.1f} %" if share >= 1 else f"{share:.2g} %"

"""Compares what a history left behind with what the oracle says, and says the first thing that is wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.simulation.config import LAG
from tests.simulation.history import ADS, Settings
from tests.simulation.oracle import Expected, Model, Place, settled_apart
from tests.simulation.outcome import Outcome
from tests.simulation.promises import broken_promises, sent_rows


def verdict(settings: Settings, outcome: Outcome) -> str | None:
    """None where everything is as it has to be."""
    return next(_faults(settings, outcome), None)


def _faults(settings: Settings, outcome: Outcome) -> Iterator[str]:
    if outcome.fault is not None:
        yield outcome.fault
    if outcome.gave_up is not None and not outcome.lost:
        yield f"it gave up, and no message was lost: {outcome.gave_up}"
    if outcome.unnoticed:
        yield "messages that it had committed were replaced by others, and it went on"
    logs = outcome.logs.values()
    undone = outcome.replaced or any(log.undone for log in logs)
    if not undone and (outcome.gave_up is None or not any(log.epoch for log in logs)):
        of_pace = _settled if settings.pace == "lockstep" else _promised
        yield from of_pace(settings, outcome)  # else what it had read is not there to compare with
    yield from _published(settings, outcome)
    yield from _letters(outcome)


def _settled(settings: Settings, outcome: Outcome) -> Iterator[str]:
    model = Model(settings)
    apart = settings.workers > 0
    expected = settled_apart(settings, outcome.logs) if apart else model.settle(outcome.logs, outcome.taken_in)
    wanted = model.lake_rows(expected, LAG)
    finished = outcome.gave_up is None
    yield from _lake(outcome.lake, wanted, finished)
    late, dead = [_late(row) for row in outcome.late], [_dead(row) for row in outcome.dead]
    yield from _side("late feedback", late, expected.late, finished, ordered=not apart)
    yield from _side("dead letters", dead, expected.dead, finished, ordered=not apart)
    if finished:
        yield from _counts(settings, outcome, expected, model)


def _promised(settings: Settings, outcome: Outcome) -> Iterator[str]:
    """In free pace."""
    yield from broken_promises(settings, outcome.lake, outcome.late, outcome.logs, outcome.outages)
    expected = Model(settings).settle(outcome.logs)
    rows = [sent for sent in sent_rows(outcome.logs, settings) if not sent.refused]
    shown = {sent.row.id for sent in rows if sent.place[0] == ADS}
    refused = [letter for letter in expected.dead if letter[2] not in ("too_old", "unknown_impression")]
    strays = [Place(*sent.place) for sent in rows if sent.row.id not in shown]
    refused += [(place, "feedback", "unknown_impression") for place in strays]
    yield from _side("dead letters", [_dead(row) for row in outcome.dead], refused, finished=True, ordered=False)
    yield from _offsets(outcome, expected)
    counts = outcome.counts or {}
    dead = {kind: sum(reasons.values()) for kind, reasons in counts["dead_letters"].items()}
    for group, settled in counts["settled"].items():
        rest = counts["not_applicable"][group] + counts["duplicates_dropped"] + dead["impression"]
        if settled + rest != counts["impressions_read"] or counts["pending"][group]:
            yield f"the counts of impressions for `{group}` do not add up: {counts}"
    ways = ("matched_feedback", "duplicate_feedback", "late_feedback")
    if sum(counts[way] for way in ways) + dead["feedback"] != counts["feedback_read"]:
        yield f"the counts of feedback do not add up: {counts}"
    positive = sum(row[f"label_{name}"] == 1 for row in outcome.lake for name, _, _ in settings.tasks)
    if counts["matched_feedback"] != positive and not any(given for _, _, given in settings.tasks):
        yield f"{counts['matched_feedback']} labels are counted, and the lake has {positive}"
    if (counts["late_feedback"], counts["lake_rows"]) != (len(outcome.late), len(outcome.lake)):
        yield f"late feedback or rows are counted wrongly: {counts}"


def _lake(rows: list[dict[str, Any]], wanted: list[dict[str, Any]], finished: bool) -> Iterator[str]:
    for number, (row, want) in enumerate(zip(rows, wanted, strict=False)):
        if not finished:  # its last block may have been cut short
            want = want | {"block": row["block"], "scored_at_ms": row["scored_at_ms"]}
        if row != want:
            differing = {name: (row.get(name), want.get(name)) for name in want if row.get(name) != want.get(name)}
            yield f"row {number} of the lake is wrong, (found, wanted): {differing}"
    if len(rows) > len(wanted) or (finished and len(rows) < len(wanted)):
        yield f"the lake has {len(rows)} rows, wanted: {len(wanted)}"


def _side(name: str, found: list[Any], wanted: list[Any], finished: bool, *, ordered: bool = True) -> Iterator[str]:
    if finished and ordered and found != wanted and sorted(found) == sorted(wanted):
        at = next(n for n, (row, want) in enumerate(zip(found, wanted, strict=True)) if row != want)
        yield f"{name}: in another order; row {at} is {found[at]}, wanted: {wanted[at]}"
    there, right = Counter(found), Counter(wanted)
    if more := there - right:
        yield f"{name}: too many, or wrong: {dict(more)}; wanted and not there: {dict(right - there)}"
    if finished and (less := right - there):
        yield f"{name}: missing: {dict(less)}"


def _place(row: dict[str, Any]) -> Place:
    return Place(*(row[f"source_{name}"] for name in Place._fields))


def _late(row: dict[str, Any]) -> tuple[Any, ...]:
    return (_place(row), row["reason"], row["late_by_ms"], row["impression_event_time_ms"], row["deadline_ms"])


def _dead(row: dict[str, Any]) -> tuple[Any, ...]:
    return (_place(row), row["kind"], row["reason"])


def _letters(outcome: Outcome) -> Iterator[str]:
    """The dead-letter topic: what the table holds, each once by the name that its headers give it."""
    named: dict[Any, Any] = {}
    for record in outcome.letters:
        letter = json.loads(record.value)
        place = Place(*(letter[f"source_{name}"] for name in Place._fields))
        name = tuple(sorted(record.headers))
        if name in named and (named[name] != place or not outcome.stops):
            yield f"the dead letter {place} is in its topic twice, or another one under its name: {name}"
        named[name] = place
    there, table = Counter(named.values()), Counter(_place(row) for row in outcome.dead)
    finished = outcome.gave_up is None and outcome.fault is None
    if there - table or (finished and table - there):
        yield f"the dead-letter topic has {dict(there - table)} too many, {dict(table - there)} too few"


def _published(settings: Settings, outcome: Outcome) -> Iterator[str]:
    """The examples topic, as its reader takes it: blocks in order, each once, their rows those of the lake."""
    rows: list[tuple[int, Any]] = []
    for partition, messages in outcome.examples.items():
        newest = -1
        cuts: dict[tuple[str, int], dict[int, Any]] = {}
        for header, batch in messages:
            block, part, count = (int(header[name]) for name in ("block", "part", "parts"))
            if block <= newest:
                if not outcome.stops:
                    yield f"block {block} was published again to partition {partition}, which had the whole of it"
                continue
            if block != newest + 1:
                yield f"block {block} follows block {newest} in partition {partition} of the examples topic"
            parts = cuts.setdefault((header["cut"], count), {})
            parts.setdefault(part, batch)
            if len(parts) == count:
                newest = block
                rows += [(row["lake_seq"], row["impression_id"]) for each in parts.values() for row in each]
                cuts = {}
    there = sorted(rows)
    lake = [(row["lake_seq"], row["impression_id"]) for row in outcome.lake]
    finished = outcome.gave_up is None and outcome.fault is None
    if there != lake[: len(there)] or (finished and len(there) < len(lake)):
        yield f"the examples topic has {len(there)} rows, and they are not the {len(lake)} of the lake"


def _counts(settings: Settings, outcome: Outcome, expected: Expected, model: Model) -> Iterator[str]:
    counts, found = outcome.counts or {}, expected.counts
    first = {window: next(n for n, w, _ in settings.tasks if w == window) for window in model.groups}
    settled = Counter(group for _, group in expected.lake)
    dead: dict[str, Counter[str]] = {"impression": Counter(), "feedback": Counter()}
    for _, kind, reason in expected.dead:
        dead[kind][reason] += 1
    names = [first[window] for window in model.groups]
    wanted = {
        "settled": {name: settled[g] for g, name in enumerate(names)},
        "not_applicable": {name: expected.not_applicable[g] for g, name in enumerate(names)},
        "pending": dict.fromkeys(names, 0),
        "unknown_labels": {name: expected.unknown[name] for name, _, _ in settings.tasks},
        "impressions_read": found["impressions read"],
        "feedback_read": found["feedbacks read"],
        "duplicates_dropped": found["duplicates"],
        "matched_feedback": found["labels"],
        "duplicate_feedback": found["repeats"],
        "late_feedback": len(expected.late),
        "unmatched_feedback": found["unmatched"],
        "waiting_feedback": 0,
        "lake_rows": len(expected.lake),
        "teacher_inferences": max(0, len(expected.lake) - LAG * settings.block_rows),
        "verticals": dict(Counter(impression.row.what for impression, _ in expected.lake)),
        "dead_letters": {kind: dict(reasons) for kind, reasons in dead.items()},
    }
    for name, want in wanted.items():
        if counts.get(name) != want:
            yield f"the count `{name}` is {counts.get(name)}, wanted: {want}"
    yield from _offsets(outcome, expected)


def _offsets(outcome: Outcome, expected: Expected) -> Iterator[str]:
    counts = outcome.counts or {}
    for kind, offsets in expected.offsets.items():
        there = counts.get("offsets", {}).get(kind, {})
        if wrong := {name: (there.get(name), n) for name, n in offsets.items() if there.get(name, 0) != n}:
            yield f"offsets of {kind} topics, (found, wanted): {wrong}"

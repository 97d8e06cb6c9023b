"""What holds in free pace, whenever partitions were idle: no row is lost or repeated, and a label is 0 only where no
feedback came in time.

    in time   no row beyond the deadline was there before the feedback was, in any partition: what is written before the
              rows that move event time is read before they move it
              or the feedback was held back while the broker was away, as were those rows, and came within `idle_s` of
              its return
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.simulation.history import ADS, EVENTS, Row, Settings, belongs_elsewhere, identity

NOTICED_S = 3.0
"""So long an outage is noticed, whatever the service is doing."""
MARGIN_S = 0.3


class Sent(NamedTuple):
    """A row as a reader sees it: where it lies, and when it was there."""

    place: tuple[str, int, int, int]
    row: Row
    refused: bool
    order: int
    at_s: float


def sent_rows(logs: dict[tuple[str, int], Any], settings: Settings) -> list[Sent]:
    found = []
    for place, log in logs.items():
        for record in log.visible():
            if record.truth != "end":
                for number, row in enumerate(record.truth.rows):
                    where = (*place, record.offset, number)
                    refused = row.fault is not None or belongs_elsewhere(row, place[1], settings)
                    found.append(Sent(where, row, refused, record.seen, record.seen_s))
    return found


def broken_promises(
    settings: Settings, lake: list[dict[str, Any]], late: list[dict[str, Any]], logs: Any, outages: list[Any]
) -> Iterator[str]:
    rows = [sent for sent in sent_rows(logs, settings) if not sent.refused]
    shown = {sent.place: sent for sent in rows if sent.place[0] == ADS}
    feedback = [sent for sent in rows if sent.place[0] == EVENTS]
    yield from _emitted(settings, lake, shown)
    windows = {name: window for name, window, _ in settings.tasks}
    for number, stored in enumerate(lake):
        about = shown[_place(stored)]
        for task, window in windows.items():
            label, name = stored[f"label_{task}"], f"label_{task} of row {number} ({about.row})"
            inside = [
                f
                for f in feedback
                if (f.row.id, f.row.what) == (about.row.id, task) and 0 <= f.row.time - about.row.time <= window
            ]
            if label == 1 and not inside:
                yield f"{name} is 1, and there is no feedback in its window"
            deadline = about.row.time + window + settings.lateness
            if label == 0 and (missed := [f for f in inside if _in_time(f, deadline, rows, outages, settings.idle_s)]):
                yield f"{name} is 0, and its feedback came in time: {missed[0]}"
    places = Counter(_place(row) for row in late)
    if wrong := [place for place, count in places.items() if count > 1 or place not in {f.place for f in feedback}]:
        yield f"late feedback twice, or that nobody sent: {wrong}"


def _place(row: dict[str, Any]) -> tuple[str, int, int, int]:
    return (row["source_topic"], row["source_partition"], row["source_offset"], row["source_row"])


def _emitted(settings: Settings, lake: list[dict[str, Any]], shown: dict[Any, Sent]) -> Iterator[str]:
    """Every id once for each group, as one of its copies, with the columns that were sent."""
    groups: dict[int, list[tuple[str, str | None]]] = {}
    for name, window, given in settings.tasks:
        groups.setdefault(window, []).append((name, given))
    there: dict[tuple[Any, str], dict[str, Any]] = {}
    for number, row in enumerate(lake):
        if row["lake_seq"] != number:
            yield f"row {number} of the lake has lake_seq {row['lake_seq']}"
        sent = shown.get(_place(row))
        if sent is None:
            yield f"row {number} of the lake was never sent: {row}"
            continue
        found = (row["impression_id"], row["event_time_ms"], row["vertical"], row["age"])
        if found != (identity(sent.row, settings.string_ids), sent.row.time, sent.row.what, sent.row.age):
            yield f"row {number} of the lake is not what was sent: {found}, {sent.row}"
        key = (row["impression_id"], row["settlement"])
        if key in there:
            yield f"impression {key[0]} is in the lake twice for `{key[1]}`"
        there[key] = row
    for name in {identity(sent.row, settings.string_ids) for sent in shown.values()}:
        for tasks in groups.values():
            row_there = there.get((name, tasks[0][0]))
            if row_there is None and any(given is None for _, given in tasks):
                yield f"impression {name} is not in the lake for `{tasks[0][0]}`"


def _in_time(feedback: Sent, deadline: int, rows: list[Sent], outages: list[Any], idle_s: float) -> bool:
    ahead = [row for row in rows if row.row.time > deadline]
    if any(row.place[:2] == feedback.place[:2] and row.place < feedback.place for row in ahead):
        return False
    before = [row for row in ahead if row.order < feedback.order]
    return not before or any(
        end - start >= NOTICED_S
        and all(row.at_s >= start for row in before)
        and feedback.at_s <= end + idle_s - MARGIN_S
        for start, end in outages
    )

"""Records that are no row of the lake: dead letters, late feedback, and what waits in the last committed state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.commit import folder_of_state
from pipelines.why.answer import SourceRecord, place_of
from streaming.delivery.requeue import REPLAYED, SCHEMA
from streaming.errors import StreamingError
from streaming.lake.reader import LakeReader
from streaming.lake.side_tables import DEAD_LETTERS, LATE_FEEDBACK, side_rows
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from streaming.position import NOTHING_YET, SourcePosition
from streaming.schema import POSITION_FIELDS
from streaming.settlement.label_join import late_schema
from streaming.settlement.saved.waiting import Held, held_of

LOOKS = 3
"""A live run may replace a state while it is read: how often the newest one is tried."""


def refused(run_dir: RunDir, impression_id: int | str) -> Iterator[SourceRecord]:
    """Dead letters whose message has this id, by their place."""
    text = str(impression_id)
    found = side_rows(
        run_dir.side_tables, DEAD_LETTERS, DEAD_LETTER_SCHEMA, filter=pc.match_substring(pc.field("payload"), text)
    )
    rows = [row for row in found.to_pylist() if has_id(row["payload"], impression_id)]
    back = set(map(_place, side_rows(run_dir.side_tables, REPLAYED, SCHEMA).to_pylist())) if rows else set()
    for row in sorted(rows, key=_place):
        again = "; it was put back since (exfm dead-letters replay)" if _place(row) in back else ""
        yield SourceRecord(_place(row), row["kind"], "refused", f"{row['reason']}: {row['detail']}{again}")


def has_id(payload: bytes, impression_id: int | str) -> bool:
    """True if a refused message has this id: as a value, where it is JSON, else as a word of its text.

    >>> has_id(b'{"impression_id": 12, "age": null}', 12), has_id(b'{"impression_id": 123}', 12)
    (True, False)
    >>> has_id(b'{"impression_id": 12, "ag', 12), has_id(b'{"impression_id": 120, "ag', 12)
    (True, False)
    """
    try:
        return any(value in (impression_id, str(impression_id)) for value in _values(json.loads(payload)))
    except (ValueError, RecursionError):
        word = re.escape(str(impression_id).encode())
        return re.search(rb"(?<![\w-])" + word + rb"(?!\w)", payload) is not None


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _values(each)
    elif isinstance(value, list):
        for each in value:
            yield from _values(each)
    else:
        yield value


def late(run_dir: RunDir, config: Config, impression_id: int | str) -> Iterator[SourceRecord]:
    """Feedback that came and is no label, with its reason."""
    rows = side_rows(
        run_dir.side_tables, LATE_FEEDBACK, late_schema(config.rows), filter=pc.field("impression_id") == impression_id
    )
    for row in sorted(rows.to_pylist(), key=_place):
        words = {
            "after_settlement": f"it came {row['late_by_ms']:,} ms after the label was final (deadline: merge time "
            f"{row['deadline_ms']})",
            "outside_window": f"it happened {row['late_by_ms']:,} ms after the window's end",
            "before_impression": f"it happened {-row['late_by_ms']:,} ms before its impression",
        }[row["reason"]]
        yield SourceRecord(
            _place(row), "feedback", "late", f"{row['reason']}: {words}", row["task"], row["event_time_ms"]
        )


def held(run_dir: RunDir, config: Config, lake: LakeReader, impression_id: int | str) -> Held:
    """Rows of this id in the last committed state. Raises StreamingError where the state cannot be read."""
    for attempt in range(LOOKS):
        if lake.state == NOTHING_YET:
            break
        try:
            return held_of(folder_of_state(run_dir.leader, lake.state), lake.state, impression_id, config.rows)
        except StreamingError:
            if attempt == LOOKS - 1 or not lake.refresh():
                raise
    return Held([], [], None)


def _place(row: dict[str, Any]) -> str:
    topic, partition, offset, number = (row[field.name] for field in POSITION_FIELDS)
    return place_of(topic, partition, SourcePosition(offset, number))

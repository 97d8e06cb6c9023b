"""Runs that hold a person, and what of the person is left in their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.config.settings import Config
from streaming.kafka.topics import ensure_topics
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import send

PERSON = "u-7f3a91-planted"
MARK = "7f3a91"
"""In every value that is the person's: the id, and the ids of the impressions."""
BEGIN_MS = 1_790_000_000_000
STEP_MS = 10_000
EVERY = 9
"""Each so many-th impression is the person's."""


def of_topics(servers: str, **changes: Any) -> Config:
    """A run on topics that others feed, of text ids, with as-of features, two students and a twin."""
    config = small(
        servers,
        source=None,
        rows={
            "impression_id": "string",
            "columns": [
                {"name": "user_id", "type": "string"},
                {"name": "ad_id", "minimum": 0},
                {"name": "bid", "type": "float32"},
                {"name": "interest_0", "minimum": 0, "maximum": 4},
            ],
            "tasks": [{"name": "ctr", "window_s": 60}, {"name": "cvr", "window_s": 300, "given": "ctr"}],
        },
        features__asof=[
            {"name": "met_user", "by": "user_id", "rate": "ctr"},
            {"name": "met_both", "by": ["user_id", "ad_id"], "rate": "ctr"},
            {"name": "seen", "by": "user_id", "last": 3, "of": ["ad_id", "gap_s"], "having": "ctr"},
        ],
        pace={"mode": "lockstep", "block_rows": 64, "lag": 2},
        settlement={"dedup_horizon_s": 1200, "max_future_skew_s": 1e12},
        kafka__impressions__codec="json",
        kafka__feedback__codec="json",
        kafka__impressions__partitions=1,
        kafka__feedback__partitions=1,
        teacher__batch_rows=64,
        **changes,
    )
    students = [student.model_copy(update={"batch_rows": 50}) for student in config.students[:2]]
    return config.model_copy(update={"students": tuple(students)})


def feed(config: Config, first: int, last: int) -> None:
    """Impressions `first` to `last`, every `EVERY`-th the person's, and their feedback: clicks, conversions, some of it
    late, some before anything it could belong to; and rows that are refused."""
    impressions, feedback = [], []
    for number in range(first, last + 1):
        own = number % EVERY == 4
        at, id = BEGIN_MS + STEP_MS * number, f"i-{MARK}-{number}" if own else f"i-{number}"
        user = PERSON if own else f"u-{number % 23}"
        row = {"impression_id": id, "event_time_ms": at, "vertical": ("feed", "video")[number % 2]}
        row |= {"user_id": user, "ad_id": number % 11, "bid": 0.5 + number % 3, "interest_0": number % 5}
        impressions.append(row)
        if number % 7 == 4:
            impressions.append(row | {"impression_id": f"{id}-odd", "interest_0": "much"})
            feedback.append({"impression_id": f"{id}-odd", "event_time_ms": at, "task": "ctr"})
        if number % 3 != 2:
            feedback.append({"impression_id": id, "event_time_ms": at + 7_000, "task": "ctr"})
            feedback.append({"impression_id": id, "event_time_ms": at + 20_000 * (1 + number % 20), "task": "cvr"})
        if number % 11 == 4:  # of an impression that never comes: nobody knows whose
            feedback.append({"impression_id": f"i-{number}-never", "event_time_ms": at, "task": "ctr"})
    feedback.sort(key=lambda row: row["event_time_ms"])
    kafka = config.kafka
    ensure_topics(kafka, {kafka.impressions.topic: 1, kafka.feedback.topic: 1})
    lines = [(kafka.impressions.topic, 0, json.dumps(row).encode()) for row in impressions]
    lines += [(kafka.impressions.topic, 0, f"{PERSON} is no JSON".encode())]
    lines += [(kafka.feedback.topic, 0, json.dumps(row).encode()) for row in feedback]
    send(str(kafka.bootstrap_servers), lines)


def traces(root: Path, text: str = MARK) -> dict[str, str]:
    """Files below `root` that hold the text, as bytes or in what is decoded of them, with where."""
    found = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        if text in name or text.encode() in path.read_bytes():
            found[name] = "bytes"
        for table in _decoded(path):
            for column in table.column_names:
                if text in repr(table[column].to_pylist()):
                    found[name] = column
    return found


def _decoded(path: Path) -> Iterator[pa.Table]:
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            yield file.read()
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path)) as file:
            yield pa.ipc.open_file(file).read_all()

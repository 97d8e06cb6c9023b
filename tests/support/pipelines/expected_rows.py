"""The rows that a lake must hold, worked out one at a time from the input topics."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.core.config.settings import Config
from tests.support.pipelines.topics import messages_of


def _records(config: Config) -> Iterator[tuple[tuple[Any, ...], str, dict[str, Any]]]:
    """((key time, topic, partition, offset, row), kind, record) of both input topics."""
    for kind, topic in (("impression", config.kafka.impressions), ("feedback", config.kafka.feedback)):
        running: dict[int, int] = defaultdict(lambda: -1)
        for message in messages_of(config.kafka.bootstrap_servers, topic.topic):
            if not message.value:
                continue
            if topic.codec == "json":
                rows = [json.loads(message.value)]
            else:
                with pa.ipc.open_stream(message.value) as reader:
                    rows = reader.read_all().to_pylist()
            for number, row in enumerate(rows):
                running[message.partition] = max(running[message.partition], row["event_time_ms"])
                key = (running[message.partition], message.topic, message.partition, message.offset, number)
                yield key, kind, row


def expected_rows(config: Config, *, until_known: bool = False) -> list[tuple[Any, ...]]:
    """(impression_id, settlement, label_ctr, label_cvr) in the order of the lake, worked out row by row from what
    stands in the input topics. For streams without broken records.

    until_known: only rows whose window has closed while none of the partitions is known to have ended.
    """
    tasks = config.rows.tasks
    window = {task.name: task.window_ms for task in tasks}
    horizon = 2 * max(window.values())
    records = sorted(_records(config), key=lambda record: record[0])
    watermark = float("inf")
    if until_known:
        newest: dict[tuple[str, int], int] = {}
        for key, *_ in records:
            newest[key[1:3]] = key[0]
        records = [record for record in records if record[0][0] < min(newest.values())]
        watermark = records[-1][0][0]
    shown: dict[Any, tuple[int, int, int]] = {}
    for number, (key, kind, row) in enumerate(records):
        if kind == "impression" and (row["impression_id"] not in shown):
            shown[row["impression_id"]] = (key[0], row["event_time_ms"], number)
        elif kind == "impression":
            assert key[0] - shown[row["impression_id"]][0] <= horizon
    labels: set[tuple[Any, str]] = set()
    for key, kind, row in records:
        if kind == "feedback" and row["impression_id"] in shown:
            admitted, happened, _ = shown[row["impression_id"]]
            in_window = happened <= row["event_time_ms"] <= happened + window[row["task"]]
            if in_window and key[0] <= admitted + window[row["task"]]:
                labels.add((row["impression_id"], row["task"]))
    found: list[tuple[Any, ...]] = []
    for impression, (admitted, _, number) in shown.items():
        clicked = (impression, "ctr") in labels
        found.append((admitted + window["ctr"], 0, number, (impression, "ctr", int(clicked), None)))
        if clicked:
            converted = int((impression, "cvr") in labels)
            found.append((admitted + window["cvr"], 1, number, (impression, "cvr", None, converted)))
    return [row for deadline, *_, row in sorted(found, key=lambda entry: entry[:3]) if deadline < watermark]


def lake_rows(lake: pa.Table) -> list[tuple[Any, ...]]:
    names = ("impression_id", "settlement", "label_ctr", "label_cvr")
    return list(zip(*(lake[name].to_pylist() for name in names), strict=True))


def own_logits(lake: pa.Table, tasks: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Masks (N,) of the rows of a lake with a logit for the task that they settle, and of those that should have one:
    scored by a snapshot that had learned a label of that task."""
    found, wanted = np.zeros((2, lake.num_rows), dtype=bool)
    version, block = lake["teacher_version"].fill_null(0).to_numpy(), lake["block"].to_numpy()
    for task in tasks:
        settles = np.array(lake["settlement"].to_pylist()) == task
        first = block[lake[f"label_{task}"].is_valid().to_numpy()].min()
        found |= settles & lake[f"teacher_logit_{task}"].is_valid().to_numpy()
        wanted |= settles & (version > first)  # version v has learned the blocks before v
    return found, wanted

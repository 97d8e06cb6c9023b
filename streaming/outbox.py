"""What a commit leaves behind beside the lake: late feedback and dead letters, each delivered once.

Rows that settle nothing are kept with the settlement state of the commit that made them (`CommitRecord`), and
delivered after that commit: to their tables beside the lake, and dead letters to their topic. Tables and topic remember
the number of the last state delivered, so delivering a record again after a crash changes nothing, and a record whose
commit never happened is never delivered.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming.dead_letters import DEAD_LETTER_SCHEMA, from_batch, to_json
from streaming.kafka import KafkaSettings, TopicWriter, last_message
from streaming.label_join import late_schema
from streaming.position import NOTHING_YET
from streaming.schema import RowSchema
from streaming.side_tables import DEAD_LETTERS, LATE_FEEDBACK, SideTable


@dataclass(frozen=True)
class CommitRecord:
    """Beside the settlement state `number`: where reading goes on, and what is to be delivered."""

    number: int
    meta: dict[str, Any]
    late: pa.Table
    dead: pa.Table

    def save(self, root: Path) -> None:
        """Under `root/<number>`, whole or not at all. A number is written again only if its commit never happened."""
        staging, target = root / f".record-{self.number}", root / f"record-{self.number:012d}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        for name, table in (("late", self.late), ("dead", self.dead)):
            with pa.OSFile(str(staging / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        (staging / "meta.json").write_text(json.dumps(self.meta))
        shutil.rmtree(target, ignore_errors=True)
        os.rename(staging, target)

    @classmethod
    def load(cls, root: Path, number: int) -> CommitRecord:
        directory = root / f"record-{number:012d}"
        tables = {}
        for name in ("late", "dead"):
            with pa.ipc.open_file(str(directory / f"{name}.arrow")) as reader:
                tables[name] = reader.read_all()
        return cls(number, json.loads((directory / "meta.json").read_text()), tables["late"], tables["dead"])

    @staticmethod
    def prune(root: Path, before: int) -> None:
        for directory in root.glob("record-*"):
            if int(directory.name.removeprefix("record-")) < before:
                shutil.rmtree(directory)


class Outbox:
    """Delivers commit records, in order of their numbers, each once.

    Several runs may share a dead-letter topic: every letter names its run's table, state and part in its headers. Then
    a crash can repeat the letters of one record there, under the same headers; never in the table.
    """

    def __init__(self, folder: Path, settings: KafkaSettings, topic: str, schema: RowSchema) -> None:
        self._late = SideTable(folder, LATE_FEEDBACK, late_schema(schema))
        self._dead = SideTable(folder, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
        self._topic = TopicWriter(settings, topic)
        newest = last_message(settings, topic, 0)
        headers = dict(newest.headers) if newest is not None else {}
        ours = headers.get("table") == self._dead.id.encode()
        self._published = (int(headers["state"]), int(headers["part"])) if ours else (NOTHING_YET, 0)

    def deliver(self, record: CommitRecord) -> None:
        self._late.append(record.late, number=record.number)
        self._dead.append(record.dead, number=record.number)
        letters = to_json(from_batch(record.dead))
        for part, letter in enumerate(letters):
            if (record.number, part) > self._published:
                place = {"table": self._dead.id, "state": str(record.number), "part": str(part)}
                self._topic.write(0, [letter], headers=[(name, value.encode()) for name, value in place.items()])
        self._topic.flush()
        if letters:
            self._published = max(self._published, (record.number, len(letters) - 1))

    def close(self) -> None:
        self._topic.close()

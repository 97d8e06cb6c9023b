"""Exactly-once delivery of late feedback and dead letters.

Rows that do not enter the lake are stored with the settlement state of the commit that produced them (`CommitRecord`)
and delivered after that commit: to the side tables of the lake, and dead letters to their topic too. Tables and topic
hold the number of the last state delivered, so delivering a record again after a crash changes nothing, and a record
whose commit never happened is never delivered.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming.errors import DataLost
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import last_message
from streaming.kafka.writer import TopicWriter
from streaming.lake.side_tables import DEAD_LETTERS, LATE_FEEDBACK, SideTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, letters_to_json
from streaming.position import NOTHING_YET
from streaming.schema import RowSchema
from streaming.settlement.label_join import late_schema
from streaming.store.files import disk_full_named, replacing_folder, sync_all
from streaming.store.seal import sealed, unsealed

LETTERS_AT_A_TIME = 512
"""Dead letters that are held as messages at a time; each may have 64 KiB."""

HEADER_BYTES = 256
"""Left for the headers of a dead letter in its message: its table, state and part."""

_TABLES = ("late.arrow", "dead.arrow")


@dataclass(frozen=True)
class CommitRecord:
    """Record stored with the settlement state `number`: read positions, and rows to deliver."""

    number: int
    meta: dict[str, Any]
    late: pa.Table
    dead: pa.Table

    def save(self, root: Path) -> None:
        """Store the record under `root`, atomically and durably: a commit may name it once this returns. Raises
        DiskFull.

        A number is written again only if its commit never happened.
        """
        with replacing_folder(_folder(root, self.number)) as folder:
            for name, table in zip(_TABLES, (self.late, self.dead), strict=True):
                with (
                    disk_full_named(folder / name),
                    (folder / name).open("wb") as file,
                    pa.ipc.new_file(file, table.schema) as writer,
                ):
                    writer.write_table(table)
            record = sealed({"meta": self.meta, "files": {name: _sha256(folder / name) for name in _TABLES}})
            with disk_full_named(folder / "meta.json"):
                (folder / "meta.json").write_bytes(json.dumps(record).encode())
            sync_all([folder / name for name in (*_TABLES, "meta.json")])

    @classmethod
    def load(cls, root: Path, number: int) -> CommitRecord:
        """Load a record; raises StreamingError if it is missing or damaged."""
        folder, tables = _folder(root, number), {}
        try:
            text = (folder / "meta.json").read_bytes()
            record = unsealed(text)
            for name in _TABLES:
                if _sha256(folder / name) != record["files"][name]:
                    raise ValueError(f"{name} was altered: its checksum differs")
            for name in _TABLES:
                with pa.memory_map(str(folder / name)) as file:
                    tables[name] = pa.ipc.open_file(file).read_all()
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise DataLost(
                f"the record of commit {number}, {folder}, cannot be read: {error}. Without it reading "
                "cannot continue: put it back from a copy of the run directory, or start a new run"
            ) from error
        return cls(number, record["meta"], *(tables[name] for name in _TABLES))

    @staticmethod
    def prune(root: Path, before: int) -> None:
        for directory in root.glob("record-*"):
            if int(directory.name.removeprefix("record-")) < before:
                shutil.rmtree(directory)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder(root: Path, number: int) -> Path:
    return root / f"record-{number:012d}"


class Outbox:
    """Delivers commit records exactly once, in order of their numbers.

    Several runs may share a dead-letter topic: every letter names its run's table, state and part in its headers. In
    that case a crash can repeat the letters of one record in the topic, under the same headers, but never in the table.
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
        part = 0
        for batch in record.dead.to_batches(max_chunksize=LETTERS_AT_A_TIME):
            for letter in letters_to_json(batch, self._topic.payload_bytes - HEADER_BYTES):
                if (record.number, part) > self._published:
                    place = {"table": self._dead.id, "state": str(record.number), "part": str(part)}
                    self._topic.write(0, [letter], headers=[(name, value.encode()) for name, value in place.items()])
                part += 1
        self._topic.flush()
        if part:
            self._published = max(self._published, (record.number, part - 1))

    def close(self) -> None:
        self._topic.close()

    def abandon(self) -> None:
        self._topic.abandon()

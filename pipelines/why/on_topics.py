"""An impression's records on the topics themselves: duplicates, and the feedback that became its label.

Both input topics are read from their beginning, and decoded as augmentation does, so that the merge keys of their rows
are known. What a topic has deleted since cannot be found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.cli.tools.feeding import reached
from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Kafka
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.commit import committed_meta
from pipelines.why.answer import SourceRecord, place_of
from streaming.kafka.reader import TopicReader
from streaming.messages.codecs import make_codec
from streaming.messages.dead_letters import Kind
from streaming.position import Partition, SourcePosition
from streaming.schema import UNKNOWN


class _Found(NamedTuple):
    """A row of the id on a topic, in merge order: key time, place."""

    key_time_ms: int
    partition: Partition
    at: SourcePosition
    kind: Kind
    event_time_ms: int
    task: str | None

    @property
    def place(self) -> str:
        return place_of(*self.partition, self.at)


class TopicSearch:
    """Looks for an id on a run's input topics, at the broker of this address; None: at the run's own, which is started
    where it does not run, or at the configured one."""

    def __init__(self, run_dir: RunDir, servers: str | None = None) -> None:
        self._run_dir, self._servers = run_dir, servers

    def __call__(
        self, config: Config, impression_id: int | str, known: Sequence[SourceRecord], positives: Collection[str]
    ) -> list[SourceRecord]:
        """All records of the id: those `known`, and those that stand on the topics besides. `positives`: tasks whose
        label its feedback set. Raises BadInput, BrokerAway or DataLost where the topics cannot be read."""
        at = (
            config.kafka
            if self._servers is None
            else config.kafka.model_copy(update={"bootstrap_servers": self._servers})
        )
        kafka = reached(at, self._run_dir)
        meta = committed_meta(self._run_dir.leader) or {}
        partitions = (meta.get("merge") or {}).get("partitions") or ()
        read = {Partition(name, number): SourcePosition(offset, row) for name, number, offset, row, *_ in partitions}
        known_places = {record.place for record in known}
        rows = sorted(
            row for kind in get_args(Kind) for row in _rows_of(kafka, config, kind, impression_id)
            if row.place not in known_places
        )  # fmt: skip
        records, admitted = list(known), [r.place for r in known if r.kind == "impression" and r.outcome == "admitted"]
        labelled: set[str] = set()
        for row in rows:
            outcome, words = self._outcome(row, read, admitted, labelled, positives, config)
            records.append(SourceRecord(row.place, row.kind, outcome, words, row.task, row.event_time_ms))
        return records

    def _outcome(
        self,
        row: _Found,
        read: dict[Partition, SourcePosition],
        admitted: Sequence[str],
        labelled: set[str],
        positives: Collection[str],
        config: Config,
    ) -> tuple[Any, str]:
        if row.partition in read and row.at >= read[row.partition]:
            return "not read", "the last commit does not cover it yet"
        if row.kind == "impression":
            if admitted:
                return "duplicate", f"it was dropped: the impression of this id is {admitted[0]}"
            return "unaccounted", "it was read, and the run keeps nothing of it any more"
        task = str(row.task)
        if task in labelled:
            return "repeat", f"the label of {task} was known already"
        labelled.add(task)
        if task in positives or task.startswith(UNKNOWN):
            return "label", f"it came at merge time {row.key_time_ms}, and set the label of {task}"
        given = config.rows.given.get(task)
        if given is not None and given not in positives:
            return "unaccounted", f"`{task}` is given `{given}`, whose feedback did not come: it does not apply"
        return "unaccounted", "it was read, and the run keeps nothing of it any more"


def _rows_of(kafka: Kafka, config: Config, kind: Kind, impression_id: int | str) -> Iterator[_Found]:
    """Rows of the id on one topic, with their merge keys."""
    topic = kafka.impressions if kind == "impression" else kafka.feedback
    codec = make_codec(
        topic.codec,
        kind,
        config.rows,
        max_message_bytes=kafka.max_message_bytes,
        limits=config.limits,
        avro_schemas=topic.avro_schemas,
        unwrap=topic.unwrap,
        id_of_key=topic.impression_id == "key",
    )
    partitions = [Partition(topic.topic, number) for number in range(topic.partitions)]
    greatest = dict.fromkeys(partitions, np.iinfo(np.int64).min)
    reader = TopicReader(kafka, partitions, markers_end=False)
    try:
        reader.open()
        ends = reader.end_offsets()
        while any(reader.position()[partition].offset < ends[partition] for partition in partitions):
            batch = codec.decode(reader.next_batch(1.0) or ()).batch
            places = batch["source_partition"].to_numpy()
            for number in np.unique(places).tolist():
                partition = partitions[number]
                rows = batch.filter(pa.array(places == number))
                keys = np.maximum.accumulate(np.maximum(rows["event_time_ms"].to_numpy(), greatest[partition]))
                greatest[partition] = keys[-1]
                same = pc.equal(rows["impression_id"], pa.scalar(impression_id, config.rows.id_type))
                for at in np.flatnonzero(same.to_numpy(zero_copy_only=False)).tolist():
                    row = rows.slice(at, 1).to_pylist()[0]
                    position = SourcePosition(row["source_offset"], row["source_row"])
                    yield _Found(int(keys[at]), partition, position, kind, row["event_time_ms"], row.get("task"))
    finally:
        reader.close()

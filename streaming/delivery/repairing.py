"""Repair of torn lake files from the examples topic, which holds the same rows block by block."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streaming.delivery.header import Header
from streaming.errors import DataLost, StreamingError
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.lake.compaction import ROW_GROUP_ROWS
from streaming.lake.delta.files import TableFiles, write_file
from streaming.lake.delta.lock import in_flight_lock
from streaming.lake.delta.torn import TornFile, torn_files
from streaming.lake.erasure.holes import Holes
from streaming.messages.examples import ExamplesCodec
from streaming.position import Partition
from streaming.schema import RowSchema

log = logging.getLogger(__name__)


def repair(lake: Path, schema: RowSchema, settings: KafkaSettings, topic: str, partitions: int) -> list[str]:
    """Rebuild torn files of the lake; returns a sentence for each. Nothing is read where all are whole.

    The lake's one writer calls this before it writes. Raises DataLost where the topic no longer holds the rows, with
    the file, block and rows, and then changes nothing.
    """
    table = TableFiles(lake)
    torn = torn_files(table)
    if not torn:
        return []
    log.warning("torn: %s", "; ".join(map(str, torn)))
    held = _from_topic(torn, schema, settings, topic, partitions)
    held = held.filter(pa.array(~Holes.of(lake.parent).mask(held["lake_seq"].to_numpy())))  # erased, and there still
    remade = [_rows_of(each, held) for each in torn]
    lost = [each for each, rows in zip(torn, remade, strict=True) if rows.num_rows != each.file.rows]
    if lost:
        raise DataLost(
            f"the lake {lake} has lost rows, and topic `{topic}` does not hold all of them any more: "
            f"{'; '.join(map(str, lost))}. Put {'this file' if len(lost) == 1 else 'these files'} back from a copy of "
            "the run directory; without one, start a new run (another --run-dir) on the input topics. Nothing was "
            "changed"
        )
    _replace(table, torn, remade)
    return [f"made again from topic `{topic}`: {each}" for each in torn]


def _from_topic(
    torn: Sequence[TornFile], schema: RowSchema, settings: KafkaSettings, topic: str, partitions: int
) -> pa.Table:
    """The topic's rows whose `lake_seq` a torn file may have had, in order, each once."""
    codec, ranges = ExamplesCodec(schema), [(each.file.first, each.file.last) for each in torn]
    all_partitions = [Partition(topic, number) for number in range(partitions)]
    tables: list[pa.Table] = [schema.augmented.empty_table()]
    reader = TopicReader(settings, all_partitions)
    try:
        reader.open()
        ends = reader.end_offsets()
        while any(reader.position()[p].offset < ends[p] for p in all_partitions):
            for message in reader.next_batch(1.0) or ():
                header = Header.decode(message)
                if any(header.first_seq <= last and header.last_seq >= first for first, last in ranges):
                    tables.append(pa.Table.from_batches([codec.decode(message)]))
    finally:
        reader.close()
    rows = pa.concat_tables(tables)
    _, first = np.unique(rows["lake_seq"].to_numpy(), return_index=True)  # a restarted publisher repeats itself
    return rows.take(pa.array(first))


def _rows_of(torn: TornFile, held: pa.Table) -> pa.Table:
    """Rows that the torn file had, of these."""
    inside = (pc.field("lake_seq") >= torn.file.first) & (pc.field("lake_seq") <= torn.file.last)
    for name, value in torn.file.partition:
        inside &= pc.field(name) == pa.scalar(value, pa.string())
    return held.filter(inside)


def _replace(table: TableFiles, torn: Sequence[TornFile], remade: Sequence[pa.Table]) -> None:
    with in_flight_lock(table.path):
        added = []
        for each, rows in zip(torn, remade, strict=True):
            whole, name = rows.drop_columns([*table.partition_by]), table.new_place(each.file)
            file = write_file(
                table.path, name, each.file.partition, [whole], table.statistics, group_rows=ROW_GROUP_ROWS
            )
            added += [] if file is None else [file]
        if not table.replace([each.file for each in torn], added, {}, rows_change=False):
            raise StreamingError(
                f"torn files of {table.path} were made again, and another commit came first; the next start tries again"
            )

"""A block whose rows stay with the ranks that settled them: each writes its own part, rank 0 commits the whole.

    rank 0, the committer                      all ranks
    asks    write, with the lake_seqs ───────► its rows to flushed files, in no commit yet
    checks  ◄─ the files, how many messages ──
    commits all files at once
    asks    publish ──────────────────────► its messages to the examples topic
    writes  the last part, when all are acknowledged

A rank that dies before the commit leaves files that vacuum deletes, and the block is made again. After the commit, the
next start publishes the block from the lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.live.workers.augmentation.shards import ShardGroup
from streaming.delivery.header import Header
from streaming.delivery.publisher import ExamplesPublisher
from streaming.errors import StreamingError
from streaming.lake.delta.files import DataFile
from streaming.lake.writer import LakeWriter


class SharedBlock:
    """The block that all ranks took last. `rows`: columns `FACTS` of all of it; `how`: for `augment`."""

    def __init__(self, group: ShardGroup, rows: pa.RecordBatch, how: Mapping[str, Any]) -> None:
        self._group, self._how = group, how
        first, count = how["first_seq"], rows.num_rows
        numbers, counts = np.unique(rows["settled_by"].to_numpy(), return_counts=True)
        self._rows = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        self.facts = pa.table(
            {
                "lake_seq": np.arange(first, first + count),
                "block": np.full(count, how["block"]),
                "event_time_ms": rows["event_time_ms"],
                "vertical": rows["vertical"],
            }
        )
        self._parts: list[list[int]] = []  # messages of each rank in each partition of the examples topic

    def files(self, by: Sequence[str], statistics: Sequence[str]) -> list[DataFile]:
        """Let all ranks write their rows; gives the files. Raises StreamingError where one of them wrote others."""
        first_seqs, seq = {}, self._how["first_seq"]
        for number in range(self._group.partitions):
            first_seqs[str(number)] = seq
            seq += self._rows.get(number, 0)
        written: list[DataFile] = []
        said = [answer.value for answer in self._group.ask("write", self._how, first_seqs, by, statistics)]
        self._parts = [each["messages"] for each in said]
        for rank, each in enumerate(said):
            files = [DataFile(*file)._replace(partition=tuple(map(tuple, file[1]))) for file in each["files"]]
            numbers = self._group.numbers(rank)
            first = first_seqs[str(numbers.start)]
            expected = sum(self._rows.get(number, 0) for number in numbers)
            inside = all(first <= file.first and file.last < first + expected for file in files)
            if sum(file.rows for file in files) != expected or not inside:
                there = [(file.rows, file.first, file.last) for file in files]
                raise StreamingError(
                    f"rank {rank} was to write the {expected} rows of block {self._how['block']} from lake_seq {first} "
                    f"on, and its files have (rows, first, last) {there}; nothing of them is in the lake"
                )
            written += files
        return written

    def commit(self, lake: LakeWriter, state: int, metadata: Mapping[str, Any]) -> None:
        lake.commit(None, state=state, metadata=metadata, elsewhere=self)

    def publish(self, publisher: ExamplesPublisher) -> None:
        totals = np.sum(self._parts, axis=0).tolist()
        seqs = self.facts["lake_seq"]
        ranks = f"{len(self._parts)} ranks"
        publisher.publish_in_parts(self._how["block"], seqs[0].as_py(), seqs[-1].as_py(), ranks, totals, self._write)

    def _write(self, headers: Sequence[Header]) -> None:
        firsts, part = [], np.zeros(len(headers), int)
        for own in self._parts:
            firsts.append([asdict(replace(header, part=int(n))) for header, n in zip(headers, part, strict=True)])
            part += own
        self._group.ask("publish", firsts)

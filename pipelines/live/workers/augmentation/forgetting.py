"""Ids that as-of features forget (`exfm forget`), each at an event time that is written down before.

The time lies just behind the rows that a block's end finds taken. Rows that are shown from then on know nothing of the
id, however the stream is cut, whoever settles it, and wherever it is resumed: before the first of them its keys go, and
the crosses that it is a part of, its values in lists of other keys, and labels still to come of rows before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.forgotten import ForgetRequest, forgotten, note_forgotten, note_removed
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.kinds import Kind
from pipelines.live.workers.augmentation.feed import Feed
from streaming.asof.forgotten import AT_THE_END, ForgottenId, RemovedCounts
from streaming.lake.reader import LakeReader


class AsOfForgetting:
    """Requests that the as-of features of an open stream come to, as `feed` has it."""

    def __init__(self, run_dir: RunDir, config: Config, feed: Feed) -> None:
        self._run_dir, self._rows, self._feed = run_dir, config.rows, feed
        named = {name for feature in config.rows.asof.features for name in (*feature.by, *feature.of)}
        self._known = named & set(config.rows.impression.names)  # a list may have labels and gaps, too
        self._told, self._noted = set[int](), 0
        self._read: tuple[int, int] | None = None

    def look(self) -> None:
        """Tell the feed of ids that were asked for since, and write down from which event time on it forgets them."""
        if not self._known or not (new := self._new_requests()):
            return
        at = forgotten(self._run_dir).at.get(Kind.AUGMENTATION.value, {})
        position = AT_THE_END if self._feed.ended else self._feed.watermark_ms + 1
        if unplaced := [request.number for request in new if request.number not in at]:
            note_forgotten(self._run_dir, Kind.AUGMENTATION.value, unplaced, position)
        for request in new:
            self._told.add(request.number)
            for column in [name for name in request.columns if name in self._known]:
                value: Any = pa.array([request.id]).cast(self._rows.impression.field(column).type)[0].as_py()
                id = ForgottenId(request.number, column, value, at.get(request.number, position))
                self._feed.forget(id, self._shown(id))

    def note(self) -> None:
        """Record what was removed; before it is committed, since it is not found again after that."""
        if len(removed := self._feed.removed) == self._noted:
            return
        counts: dict[int, RemovedCounts] = {}
        for id, (keys, entries) in removed.items():
            before = counts.get(id.number, RemovedCounts(0, 0))
            counts[id.number] = RemovedCounts(before.keys + keys, before.entries + entries)
        note_removed(self._run_dir, counts)
        self._noted = len(removed)

    def _new_requests(self) -> list[ForgetRequest]:
        """Requests that the feed has not been told of, which as-of features know something of."""
        try:
            stat = self._run_dir.forgotten.stat()
        except FileNotFoundError:
            return []
        if (read := (stat.st_mtime_ns, stat.st_size)) == self._read:
            return []
        self._read = read
        requests = forgotten(self._run_dir).requests
        return [each for each in requests if each.number not in self._told and self._known & set(each.columns)]

    def _shown(self, id: ForgottenId) -> Iterator[pa.RecordBatch]:
        """Rows of the lake with the id, where it is a part of keys of several columns: they say which."""
        features = self._rows.asof.features
        if not any(id.column in feature.by and len(feature.by) > 1 for feature in features):
            return
        names = list(dict.fromkeys(name for feature in features for name in feature.by))
        lake = LakeReader(self._run_dir.lake, self._rows)
        after = lake.first_lake_seq - 1
        while after < lake.last_lake_seq:
            read = lake.read(after, columns=names, filter=pc.field(id.column) == id.value, limit_rows=lake.chunk_rows)
            after = read.complete_upto
            yield from read.table.to_batches()

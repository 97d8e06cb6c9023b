"""A saved settlement as a whole, of the stream or of all its partitions, restored to be changed and saved again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from streaming.schema import RowSchema
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement
from streaming.settlement.shard import added, settlements_of
from streaming.settlement.state import partition_folder


class SavedSettlement:
    """The settlement that was saved as `number` in `folder`, of topics with so many `partitions`.

    Raises BadInput where there is none, or for another config; DataLost where it is damaged.
    """

    def __init__(self, schema: RowSchema, config: SettlementConfig, folder: Path, number: int, partitions: int) -> None:
        if config.by == "partition":
            _, each = settlements_of(schema, config, range(partitions), partitions)
            self._settlements = {partition_folder(at): settlement for at, settlement in each.items()}
        else:
            self._settlements = {"": Settlement(schema, config)}
        for place, settlement in self._settlements.items():
            settlement.load(folder / place, str(number))

    def counters(self) -> dict[str, Any]:
        """`Settlement.counters` of all together."""
        return added(*(settlement.counters() for settlement in self._settlements.values()))

    @property
    def watermark_ms(self) -> int:
        return max(settlement.watermark_ms for settlement in self._settlements.values())

    def set_back(self, to_ms: int) -> pa.RecordBatch:
        """`Settlement.set_back` of all; the letters of one partition after the other's."""
        return pa.concat_batches([settlement.set_back(to_ms) for settlement in self._settlements.values()])

    def save(self, folder: Path, number: int) -> None:
        """Save it as `number`."""
        for place, settlement in self._settlements.items():
            settlement.save(folder / place, str(number))

"""Settings of settlement: how long to wait for labels and to remember ids."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from streaming.errors import BadInput
from streaming.partitioner import PartitionerName
from streaming.schema import RowSchema

FUTURE_SKEW_S = 300.0
"""The bound of live streams whose config names none: clocks that are kept agree within seconds, and a record that is
ahead closes windows early by as much."""


class SettlementConfig(BaseModel):
    """Waiting times for labels and memory of ids, in seconds of event time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lateness_s: float = Field(
        default=0.0, ge=0, description="how far feedback may arrive behind event time and still count as a label"
    )
    early_ms: int = Field(
        default=0,
        ge=0,
        description="how far feedback may lie before its impression in event time, where clocks differ or times are "
        "cut to seconds, and still count as a label",
    )
    dedup_horizon_s: float | None = Field(
        default=None,
        gt=0,
        description="how long an impression's id is remembered, at least the longest window + lateness_s; "
        "null: twice that window + lateness_s",
    )
    by: Literal["stream", "partition"] = Field(
        default="stream",
        description="stream: an impression and its feedback may lie in any partitions. partition: both topics are "
        "keyed by `impression_id` and have as many partitions; each partition is settled by itself, so that several "
        "`augmentation.workers` share them, and a block holds one partition's rows after the other's",
    )
    partitioner: PartitionerName = Field(
        default="exfm",
        description="how producers choose the partition of an id, for `by: partition`. exfm: as `exfm ingest`; kafka: "
        "murmur2 of the record's key, the id as text, as Kafka's Java client and kafka-python. A row that lies in "
        "another partition than its id's is refused",
    )
    max_future_skew_s: float | None = Field(
        default=None,
        gt=0,
        le=1e12,
        description="how far a row's event time may be ahead of its message's timestamp, and of the clock here where "
        "others feed the topics; null: 300 in free pace, no bound in lockstep; 1e12: no bound",
    )

    @property
    def lateness_ms(self) -> int:
        return round(self.lateness_s * 1000)

    def horizon_ms(self, schema: RowSchema) -> int:
        """The deduplication horizon for the tasks of `schema`. Raises BadInput when it is too short for them.

        >>> schema = RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 60}])
        >>> SettlementConfig(lateness_s=5).horizon_ms(schema)
        125000
        """
        longest = schema.groups[-1].window_ms
        if self.dedup_horizon_s is None:
            return 2 * longest + self.lateness_ms
        horizon = round(self.dedup_horizon_s * 1000)
        if horizon < longest + self.lateness_ms:
            raise BadInput(
                f"dedup_horizon_s is {self.dedup_horizon_s:g}, and ids must be remembered for the longest window + "
                f"lateness = {longest / 1000:g} + {self.lateness_s:g} s; raise it, or shorten the window of "
                f"`{schema.groups[-1].name}`"
            )
        return horizon

"""Leader epochs of the partitions, by which a restart notices replaced messages.

After an unclean election a partition may end before what was read of it, and grow past that again: other messages then
lie at the same offsets. Brokers count leaders (*leader epochs*, KIP-320) and know where the messages of each end. The
epoch that was read last is stored with the positions, and the source asks for its end before it reads on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from streaming.errors import DataLost
from streaming.messages.message import RawMessage
from streaming.position import Partition, Positions


class LeaderEpochs:
    """The highest leader epoch read of each partition.

    >>> from streaming.position import SourcePosition
    >>> epochs = LeaderEpochs()
    >>> epochs.restore([["ads", 0, 3]], {Partition("ads", 0): SourcePosition(7, 2)})
    >>> epochs.read(Partition("ads", 0), [RawMessage("ads", 0, 7, 0, None, b"x", leader_epoch=2)])
    >>> epochs.state()
    [['ads', 0, 3]]
    >>> epochs.restore([["ads", 0, 3]], {Partition("ads", 0): SourcePosition(7, 2)})
    >>> epochs.read(Partition("ads", 0), [RawMessage("ads", 0, 7, 0, None, b"y", leader_epoch=4)])
    Traceback (most recent call last):
    ...
    streaming.errors.DataLost: topic `ads`, partition 0: of the message at offset 7 the first 2 rows were read, ...
    """

    def __init__(self) -> None:
        self._newest: dict[Partition, int] = {}
        self._begun: Positions = {}

    def restore(self, state: Iterable[Sequence[Any]], positions: Positions) -> None:
        """Restore `state` at these positions."""
        self._newest = {Partition(topic, number): epoch for topic, number, epoch in state}
        self._begun = {p: at for p, at in positions.items() if at.row and p in self._newest}

    def state(self) -> list[list[Any]]:
        """The state as JSON."""
        return [[*partition, epoch] for partition, epoch in self._newest.items()]

    @property
    def newest(self) -> dict[Partition, int]:
        return dict(self._newest)

    def read(self, partition: Partition, messages: Sequence[RawMessage]) -> None:
        """Record the epoch of messages. Raises DataLost where one that was read in part before is another now: the
        broker is only asked for what lies before it."""
        begun, first = self._begun.pop(partition, None), messages[0]
        if begun and begun.offset == first.offset and first.leader_epoch > self._newest[partition]:
            raise DataLost(
                f"topic `{partition.topic}`, partition {partition.partition}: of the message at offset {begun.offset:,}"
                f" the first {begun.row:,} rows were read, and the broker has another one there now (an unclean "
                "election); start a new run"
            )
        epoch = messages[-1].leader_epoch
        if epoch >= 0:
            self._newest[partition] = max(epoch, self._newest.get(partition, epoch))

"""Offsets without messages: transaction markers, or gaps left by compaction.

The client passes over transaction markers and over what was aborted without a word, and over what compaction has
deleted just so. Each batch that it is given is looked at here, so that an offset that brought no message is explained,
or an error.
"""

from __future__ import annotations

from streaming.errors import DataLost
from streaming.position import Partition


class TransactionRecords:
    """Offsets taken by transactions: their markers, and aborted records.

    >>> ads = Partition("ads", 0)
    >>> seen = TransactionRecords()
    >>> seen.add(ads, 3, 5)
    >>> seen.explain(ads, 3, 5)
    >>> seen.explain(ads, 5, 7)
    Traceback (most recent call last):
    streaming.errors.DataLost: topic `ads`, partition 0: offsets 5 to 6 did not come, ...
    """

    def __init__(self) -> None:
        self._stops: dict[Partition, dict[int, int]] = {}

    def add(self, partition: Partition, first: int, stop: int) -> None:
        """Record that the offsets [first, stop) are taken by transactions."""
        self._stops.setdefault(partition, {})[first] = stop

    def explain(self, partition: Partition, first: int, stop: int) -> None:
        """Raise DataLost unless all of [first, stop) are taken by transactions. What lies before `stop` is
        forgotten."""
        if first >= stop:
            return
        stops = self._stops.get(partition, {})
        at = first
        for begin in sorted(stops):
            if begin > at or at >= stop:
                break
            at = max(at, stops[begin])
        if at < stop:
            missing = f"offsets {at:,} to {stop - 1:,}" if stop - at > 1 else f"offset {at:,}"
            raise DataLost(
                f"topic `{partition.topic}`, partition {partition.partition}: {missing} did not come, and no "
                f"transaction explains it: compaction has deleted {stop - at:,} messages that were not read, or they "
                "were deleted by hand; set the topic's cleanup.policy to delete, and start a new run on a topic that "
                "has no holes"
            )
        self._stops[partition] = {begin: end for begin, end in stops.items() if end > stop}

    def forget(self, partition: Partition) -> None:
        self._stops.pop(partition, None)

"""Trimming of the examples topic: deletes messages that no reader needs, since their rows are in the lake.

A topic's messages are in order of their blocks, so the first one that is still needed is found by bisection, with a
header read at every step. The last message of a partition stays: the publisher learns from it where it stands.
"""

from __future__ import annotations

import logging

from streaming.delivery.header import Header
from streaming.errors import BrokerAway, StreamingError
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import TopicLookup, delete_records, lookup
from streaming.position import NOTHING_YET, Partition

log = logging.getLogger(__name__)

TRIM_STEP = 10
"""The topic is trimmed once a tenth as many rows can be deleted as are kept, so that trimming costs little per row."""
LEAST_ROWS = 100_000
"""The step is computed from at least this many rows."""


class ExamplesTrimmer:
    """Deletes messages of the topic whose rows lie more than `keep_rows` before a position.

    `trouble`: why it could not, the last time; then the broker is not asked again.
    """

    def __init__(self, settings: KafkaSettings, topic: str, partitions: int, keep_rows: int) -> None:
        self._settings, self._keep_rows = settings, keep_rows
        self._partitions = [Partition(topic, number) for number in range(partitions)]
        self._trimmed_to = NOTHING_YET
        self.trouble: str | None = None

    def due(self, position: int) -> bool:
        """True if enough messages can be deleted when every reader has reached `position`. Costs nothing."""
        most = position - self._keep_rows - self._trimmed_to
        return self.trouble is None and most > max(self._keep_rows, LEAST_ROWS) // TRIM_STEP

    def trim(self, position: int) -> int:
        """Delete messages that end at or before `position - keep_rows`; returns their number. Where the broker is
        away none do, and the next call tries again."""
        upto = position - self._keep_rows
        if not self.due(position):
            return 0
        try:
            gone = self._delete(upto)
        except BrokerAway as error:
            log.info("the examples topic is trimmed another time: %s", error)
            return 0
        except StreamingError as error:
            self.trouble = f"the examples topic keeps all its messages from now on, none can be deleted: {error}"
            log.warning("%s", self.trouble)
            return 0
        self._trimmed_to = upto
        return gone

    def _delete(self, upto: int) -> int:
        with lookup(self._settings, {partition.topic for partition in self._partitions}) as look:
            begins, ends = look.begins(self._partitions), look.ends(self._partitions)
            before = {p: _first_needed(look, p, upto, begins[p], ends[p] - 1) for p in self._partitions if ends[p]}
        going = {partition: offset for partition, offset in before.items() if offset > begins[partition]}
        if going:
            delete_records(self._settings, going)
        return sum(offset - begins[partition] for partition, offset in going.items())


def _first_needed(look: TopicLookup, partition: Partition, upto: int, low: int, high: int) -> int:
    """The lowest offset in [low, high] whose block ends after `upto`; `high` where none does."""
    while low < high:
        middle = (low + high) // 2
        message = look.messages(partition, [middle]).get(middle)
        if message is None:  # no message of ours stands there: nothing is known, nothing more goes
            return low
        if Header.decode(message).last_seq > upto:
            high = middle
        else:
            low = middle + 1
    return low

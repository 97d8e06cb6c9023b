"""Identity of topics: the cluster, and each topic's id and number of partitions.

A name and an offset do not tell a topic from another of the same name: one that was deleted and created anew, or one of
another cluster. What a run finds when it begins is stored with its positions, and compared at every start and every
minute. Only partitions that were added are no contradiction: a start that is configured for them takes them in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streaming.errors import BadInput, BrokerAway, DataLost, StreamingError
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import cluster_and_topics, require_topics
from streaming.position import Partition

log = logging.getLogger(__name__)

TAKEN_IN = "; a run that has begun takes the added ones in, from their beginning, when it is resumed with --evolve"


class TopicIdentity(NamedTuple):
    """A topic's id (None if the broker is too old to have one) and number of partitions."""

    topic_id: str | None
    partitions: int


@dataclass(frozen=True)
class SourceTopics:
    """The topics that a run reads, as a broker describes them.

    >>> found = SourceTopics("c-1", {"ads": TopicIdentity("t-1", 2)})
    >>> SourceTopics.of_json(found.to_json()) == found
    True
    """

    cluster_id: str | None
    topics: Mapping[str, TopicIdentity]

    def to_json(self) -> dict[str, Any]:
        return {"cluster_id": self.cluster_id, "topics": {name: list(each) for name, each in self.topics.items()}}

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> SourceTopics:
        return SourceTopics(value["cluster_id"], {name: TopicIdentity(*each) for name, each in value["topics"].items()})

    def require_partitions(self, configured: Mapping[str, int]) -> None:
        """Raise BadInput if a topic has more or fewer partitions than `configured`."""
        for name, wanted in configured.items():
            there = self.topics[name].partitions
            if there != wanted:
                unread = f", so that {there - wanted} of them would not be read" if there > wanted else ""
                raise BadInput(
                    f"topic `{name}` has {there} partitions, and {wanted} are configured{unread}; set its `partitions` "
                    f"to {there}{TAKEN_IN if there > wanted else ''}"
                )

    def added_since(self, stored: SourceTopics) -> list[Partition]:
        """Partitions added since `stored`.

        >>> before, now = (SourceTopics("c-1", {"ads": TopicIdentity("t-1", count)}) for count in (1, 3))
        >>> [partition.partition for partition in now.added_since(before)]
        [1, 2]
        """
        counts = {name: (each.partitions, self.topics[name].partitions) for name, each in stored.topics.items()}
        return [Partition(name, number) for name, (had, has) in counts.items() for number in range(had, has)]

    def require_same(self, stored: SourceTopics, where: str, *, grown: bool = False) -> None:
        """Raise BadInput for another cluster or other numbers of partitions (with `grown` only for fewer), DataLost
        for a recreated topic. `where`: the broker's address."""
        self.require_cluster(stored, where)
        for name, before in stored.topics.items():
            now = self.topics.get(name)
            if now is None:
                raise DataLost(
                    f"topic `{name}` is no longer at {where}: it was deleted; what was not read of it is lost; start a "
                    "new run on a topic that stays"
                )
            if None not in (now.topic_id, before.topic_id) and now.topic_id != before.topic_id:
                raise DataLost(
                    f"topic `{name}` was deleted and created anew since this run began (its id is {now.topic_id}, and "
                    f"was {before.topic_id}): its offsets are other rows. Where it holds the messages of the old one, "
                    "move the run to it (exfm broker move); else what was not read is lost: start a new run"
                )
            had = f"topic `{name}` has {now.partitions} partitions, and had {before.partitions} when this run began"
            if now.partitions < before.partitions:
                raise BadInput(f"{had}: rows that were not read are gone with them; start a new run")
            if now.partitions > before.partitions and not grown:
                raise BadInput(
                    f"{had}: the rows of those that were added would not be read; set its `partitions` to "
                    f"{now.partitions}{TAKEN_IN}"
                )

    def require_cluster(self, stored: SourceTopics, where: str) -> None:
        """Raise BadInput for another cluster than the one in `stored`. `where`: the broker's address."""
        if None not in (self.cluster_id, stored.cluster_id) and self.cluster_id != stored.cluster_id:
            raise BadInput(
                f"{where} is cluster {self.cluster_id}, and this run reads cluster {stored.cluster_id}: an offset of "
                "one is another row on the other; point kafka.bootstrap_servers at the cluster that the run reads, "
                "move the run (exfm broker move), or start a new one"
            )


class SourceWatch:
    """Compares source topics with their stored identity: on opening, and then every minute."""

    LOOK_EVERY_S = 60.0
    AGAIN_AFTER_S = 5.0
    """A topic that is not there is looked for once more: a broker that has just started may not know it yet."""

    def __init__(
        self, settings: KafkaSettings, partitions: Mapping[str, int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`partitions`: of each topic how many are configured. Raises as `source_topics` does."""
        self._settings, self._names, self._clock = settings, list(partitions), clock
        self._stored = source_topics(settings, partitions)
        self._absent: set[str] = set()
        self._looked_at = clock()

    def open(self, stored: Mapping[str, Any] | None) -> list[Partition]:
        """Compare with `stored` (`state`), if the run has it; returns the configured partitions that were added
        since. Raises as `SourceTopics.require_same` does."""
        if stored is None:
            return []
        before = SourceTopics.of_json(stored)
        self._stored.require_same(before, str(self._settings.bootstrap_servers), grown=True)
        return self._stored.added_since(before)

    def state(self) -> dict[str, Any]:
        """State to be stored with the positions."""
        return self._stored.to_json()

    def look(self) -> None:
        """Compare again if a minute has passed; raises like `open`.

        A broker that is away, or that does not describe the topics now, proves nothing: the next minute may."""
        wait_s = self.AGAIN_AFTER_S if self._absent else self.LOOK_EVERY_S
        if self._clock() - self._looked_at < wait_s:
            return
        try:
            current = _described(self._settings, self._names)
        except StreamingError as error:
            if not isinstance(error, BrokerAway):
                log.warning("the topics that this run reads could not be compared with those it began with: %s", error)
            return
        finally:
            self._looked_at = self._clock()
        absent = set(self._names) - current.topics.keys()
        if not absent or absent & self._absent:
            current.require_same(self._stored, str(self._settings.bootstrap_servers))
        self._absent = absent


def source_topics(settings: KafkaSettings, partitions: Mapping[str, int]) -> SourceTopics:
    """The topics of these names. Raises BadInput where one is absent, may not be seen, or has another number of
    partitions than `partitions` says; BrokerAway."""
    described = _described(settings, list(partitions))
    if partitions.keys() - described.topics.keys():
        require_topics(settings, partitions)
    described.require_partitions(partitions)
    return described


def require_cluster(settings: KafkaSettings, stored: Mapping[str, Any]) -> None:
    """Raise BadInput if the broker's cluster is not the one in `stored` (`SourceWatch.state`): a missing topic must
    not be created there. BrokerAway."""
    before = SourceTopics.of_json(stored)
    _described(settings, list(before.topics)).require_cluster(before, str(settings.bootstrap_servers))


def _described(settings: KafkaSettings, names: list[str]) -> SourceTopics:
    cluster_id, topics = cluster_and_topics(settings, names)
    return SourceTopics(cluster_id, {name: TopicIdentity(*each) for name, each in topics.items()})

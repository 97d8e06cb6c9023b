"""Dead letters of a run: count, show, and requeue onto their topics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.cli.tools.feeding import reached
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.topics import Kafka
from pipelines.core.run_dir.moves import read_elsewhere
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.commit import committed_meta
from streaming.delivery.requeue import Letters, OriginalRecord, Place, places_of
from streaming.errors import BadInput
from streaming.kafka.identity import SourceTopics, require_cluster, source_topics
from streaming.messages.ipc import MAX_MESSAGE_BYTES, read_ipc
from streaming.position import Partition

HEX_BYTES = 512
"""Of what cannot be decoded, so many bytes are shown."""
REFUSALS_SAID = 5
"""So many of the letters that could not be put back are named with the reason."""


class DeadLetters:
    """The dead letters of the run in `root`; `overrides` of its config, such as a password that it does not store.

    Raises BadInput where `root` holds no run, or one that has none yet.
    """

    def __init__(self, root: Path, overrides: list[str] | None = None) -> None:
        self._run_dir = RunDir(root)
        self.config = config_of(self._run_dir, overrides)

    def counts(self, reason: str | None = None) -> list[dict[str, Any]]:
        """Letters by kind, reason and topic, the most frequent first, with the number of requeued ones."""
        letters = self._offline()
        rows, done = letters.rows(reason), letters.replayed()
        names = list(zip(*(rows[name].to_pylist() for name in ("kind", "reason", "source_topic")), strict=True))
        count = Counter(names)
        back = Counter(name for name, place in zip(names, places_of(rows), strict=True) if place in done)
        return [
            {"kind": kind, "reason": why, "topic": topic, "letters": number, "replayed": back[kind, why, topic]}
            for (kind, why, topic), number in count.most_common()
        ]

    def show(self, place: Place | None, reason: str | None = None) -> dict[str, Any]:
        """One letter, by default the first (of a reason), with its record decoded as far as possible.

        The record is the letter's own copy; the first 64 KiB of a longer one."""
        letters = self._offline()
        rows = letters.rows(reason)
        places = places_of(rows)
        if place is None and not places:
            raise BadInput(
                f"no dead letter{'' if reason is None else f' with reason `{reason}`'}; see: dead-letters list"
            )
        place = places[0] if place is None else place
        payload, length = letters.payload(place)
        row = rows.slice(places.index(place), 1).to_pylist()[0] if place in places else {}
        record = decoded(payload, place.row, self.config.kafka.max_message_bytes)
        return row | {"place": str(place), "payload_bytes": length, "record": record}

    def replay(self, reason: str | None, *, dry_run: bool, say: Callable[[str], None]) -> dict[str, int]:
        """Requeue letters (of one reason) onto their topics, each once, after announcing their fate.

        Raises BadInput for a run that feeds its topics itself, and as `SourceTopics.require_same` does where the topics
        are not those that the run began with: then nothing is read or written."""
        if self.config.source is not None:
            raise BadInput(
                "this run feeds its topics itself, from `source`, and wrote their end: nothing behind it is read. "
                "Mend the source and start a new run; letters are replayed onto topics that others feed"
            )
        kafka = reached(self.config.kafka, self._run_dir)
        meta = committed_meta(self._run_dir)
        if meta is not None:
            self._require_same_topics(kafka, meta["sources"])
        inputs = (kafka.impressions, kafka.feedback)
        arrow = {topic.topic for topic in inputs if topic.codec == "arrow"}
        letters = Letters(self._run_dir.side_tables, kafka, arrow=arrow)
        done, elsewhere = letters.replayed(), read_elsewhere(self._run_dir)
        places = [place for place in places_of(letters.rows(reason)) if place not in done]
        here = [place for place in places if place.offset >= elsewhere.get(Partition(place.topic, place.partition), 0)]
        if len(here) < len(places):
            say(
                f"{len(places) - len(here):,} are of before this run was moved (exfm broker move): their places name "
                "records of the topics of before, and they are not put back"
            )
        places = here
        too_old = self._too_old(letters, places, None if meta is None else meta["merge"])
        if too_old:
            say(
                f"{too_old:,} of {len(places):,} are impressions older than the watermark minus "
                "settlement.dedup_horizon_s: the run will refuse them again, as `too_old`"
            )
        counts = {"letters": len(places), "too_old": too_old, "replayed": 0, "gone": 0, "refused": 0}
        if dry_run:
            return counts
        for group in letters.replay(places):
            back = sum(group.values())
            counts["replayed"] += back
            refused = len(group.keys() & letters.refused.keys())
            counts["refused"] += refused
            counts["gone"] += len(group) - back - refused
            say(f"{counts['replayed']:,} of {len(places):,} are back on their topics")
        for place, why in list(letters.refused.items())[:REFUSALS_SAID]:
            say(f"{place} was not put back: {why}")
        return counts

    def _require_same_topics(self, kafka: Kafka, stored: Mapping[str, Any]) -> None:
        """An offset of another topic, or cluster, is another record."""
        require_cluster(kafka, stored)
        partitions = {topic.topic: topic.partitions for topic in (kafka.impressions, kafka.feedback)}
        topics = source_topics(kafka, partitions)
        topics.require_same(SourceTopics.of_json(stored), str(kafka.bootstrap_servers), grown=True)

    def _offline(self) -> Letters:
        """For what needs no broker."""
        return Letters(self._run_dir.side_tables, self.config.kafka)

    def _too_old(self, letters: Letters, places: Sequence[Place], merge: Mapping[str, Any] | None) -> int:
        """Impressions that the run would refuse, as of `merge`, its last commit."""
        if merge is None:
            return 0
        topic = self.config.kafka.impressions.topic
        horizon = self.config.settlement.horizon_ms(self.config.rows)
        reached_ms = {(name, number): most for name, number, *_, most in merge["partitions"]}
        mine = [place for place in places if place.topic == topic]
        count = 0
        for place, record in letters.originals(mine):
            event_ms = _event_time(record, self.config.kafka.max_message_bytes)
            key = max(merge["watermark_ms"], reached_ms.get((place.topic, place.partition), merge["watermark_ms"]))
            count += event_ms is not None and event_ms < key - horizon
        return count


def decoded(value: bytes, row: int, max_bytes: int = MAX_MESSAGE_BYTES) -> Any:
    """Decode a record to JSON, from JSON, from Arrow (of at most `max_bytes`), or as text and bytes.

    >>> decoded(b'{"age": 30}', 0), decoded(bytes([255, 104]), 0)
    ({'age': 30}, {'bytes': 2, 'hex': 'ff68', 'text': '�h'})
    """
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        rows = read_ipc(value, max_bytes)
        return {"arrow_rows": rows.num_rows, "row": json.loads(json.dumps(rows.slice(row, 1).to_pylist(), default=str))}
    except ValueError:
        start = value[:HEX_BYTES]
        return {"bytes": len(value), "hex": start.hex(), "text": start.decode(errors="replace")}


def _event_time(record: OriginalRecord, max_bytes: int) -> int | None:
    message = decoded(record.value, 0, max_bytes)
    if isinstance(message, dict) and "arrow_rows" in message:
        message = (message["row"] or [None])[0]
    time_ms = message.get("event_time_ms") if isinstance(message, dict) else None
    return time_ms if isinstance(time_ms, int) else None

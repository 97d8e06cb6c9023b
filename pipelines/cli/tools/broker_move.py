"""A stopped run moved to topics on another cluster, of a mirror, or created anew: its positions are mapped, once.

A move is planned from what the run has on its disk and what the new cluster holds; the old one is not asked, which may
be gone. Then

    1  the plan is written to `move.json`: from here on the run can only be moved, and the same command completes it
    2  dead letters and late feedback of the last commit are delivered, letters to the topic of the new cluster
    3  one commit of progress, under a new epoch: the last state, with the new positions and the new topics' identity
    4  `end_offsets.json`, `lineage.json` and `config.yaml` say what is read from now on
    5  the move is entered in `moves.json`, and `move.json` is deleted

Before 1 nothing is altered. Each later step finds out whether it was done before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.hash import hash_of
from pipelines.core.config.identity import INPUTS
from pipelines.core.config.kept_columns import with_kept_columns
from pipelines.core.config.lineage import remember
from pipelines.core.config.settings import Config, dump, parse
from pipelines.core.config.topics import Kafka
from pipelines.core.run_dir.end_offsets import store_ends, stored_ends
from pipelines.core.run_dir.moves import begin_move, begun_move, end_move
from pipelines.core.run_dir.object_storage import shown
from pipelines.core.run_dir.paths import RunDir
from pipelines.data.profile.topics import profile_topics
from pipelines.live.loop.preflight import locked
from pipelines.live.loop.provision import ensure_dead_letters
from pipelines.live.workers.augmentation.commit import first_state, folder_of_state, states_folder
from streaming.delivery.header import Header
from streaming.delivery.outbox import CommitRecord, Outbox
from streaming.delivery.requeue import REPLAYED
from streaming.errors import BadInput, DataLost
from streaming.intake.merge import END_OF_TIME
from streaming.intake.moving import MappedTopic, map_topic, moved
from streaming.kafka.identity import SourceTopics, source_topics
from streaming.kafka.topics import (
    check_retention,
    cluster_and_topics,
    end_offsets,
    last_message,
    require_topics,
)
from streaming.lake.delta.files import TableFiles
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA
from streaming.position import NOTHING_YET, Partition
from streaming.program import command
from streaming.settlement.saved.repartitioning import repartition
from streaming.settlement.state import SettlementState, partition_folder
from streaming.store.files import write_text

MARGIN_S = 300.0
SAMPLE = 4000
"""Messages of a topic that are looked at for whether they lie where their ids belong."""


@dataclass(frozen=True)
class MovePlan:
    """A move that is possible. `lines` say what it does; `record` is what `move.json` holds; None where the run reads
    there already."""

    lines: list[str]
    topics: list[MappedTopic]
    record: dict[str, Any] | None


class BrokerMove:
    """A move of the run in `root`, which must not be running, to the cluster at `to`.

    `overrides`: of its connection (`kafka.security…`), and of topics' names, where they are others there. Raises
    BadInput where `root` holds no run, and for other settings.
    """

    def __init__(self, root: Path, to: str, overrides: list[str] | None = None) -> None:
        self._run_dir, self._to = RunDir(root), to
        if others := [text for text in overrides or [] if not text.startswith("kafka.")]:
            raise BadInput(f"--set {others[0]}: a move changes the connection; set what begins with `kafka.`")
        self.config = config_of(self._run_dir, [*(overrides or []), f"kafka.bootstrap_servers={json.dumps(to)}"])
        self._before: dict[str, Any] = yaml.safe_load(self._run_dir.config.read_text())
        if self.config.hash != hash_of(self._before):
            raise BadInput("--set: a move changes the connection and names of topics, and this what the run computes")
        kafka = self._before["kafka"]
        self._names = {kafka[kind]["topic"]: getattr(self.config.kafka, kind).topic for kind in INPUTS}
        """Of the input topics, from now to then."""
        self._rows = with_kept_columns(self.config, self._run_dir).rows

    def move(
        self,
        *,
        margin_s: float = MARGIN_S,
        dry_run: bool = False,
        say: Callable[[str], None] = lambda text: None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> MovePlan:
        """Plan the move and, without `dry_run`, make it; complete one that was begun. `say` hears the plan before
        anything is changed.

        Raises BadInput where the run lives or something cannot be mapped, with all of it, and BrokerAway: then nothing
        was changed.
        """
        with locked(self._run_dir):
            if (begun := begun_move(self._run_dir)) is not None:
                plan = self._resumed(begun)
            else:
                plan = self._plan(round(1000 * margin_s), now_ms)
            for line in plan.lines:
                say(line)
            if plan.record is not None and not dry_run:
                if begun is None:
                    begin_move(self._run_dir, plan.record)  # 1
                self._complete(plan.record)
        return plan

    def _resumed(self, begun: dict[str, Any]) -> MovePlan:
        if begun["to"] != self._to:
            again = command("exfm", "broker", "move", shown(self._run_dir), "--to", begun["to"])
            raise BadInput(f"a move to {begun['to']} was begun and is not complete; complete it first: `{again}`")
        return MovePlan([f"a move to {self._to} was begun: it is completed as it was planned then"], [], begun)

    # --- the plan ----------------------------------------------------------------------------------------------------

    def _plan(self, margin_ms: int, now_ms: Callable[[], int]) -> MovePlan:
        lake = LakeReader(self._run_dir.lake, self._rows) if self._run_dir.lake.exists() else None
        self._movable(lake)
        assert lake is not None
        meta = _record_of(self._run_dir, lake.state).meta
        merge, kafka = meta["merge"], self.config.kafka
        settled = self._saved_states(lake.state)
        if settled[0].meta["watermark_ms"] == END_OF_TIME:
            raise BadInput(f"the run in {self._run_dir.root} has ended: it has read its topics to their end")
        there, stored = self._there(), SourceTopics.of_json(meta["sources"])
        if stored.topics.keys() != self._names.keys():
            raise DataLost(
                f"{self._run_dir.config} names topics {', '.join(self._names)}, and the last commit is of "
                f"{', '.join(stored.topics)}; put config.yaml back from a copy of the run directory"
            )
        same = [name for name in stored.topics if name == self._names[name] and _same(there, stored, name)]
        if len(same) == len(stored.topics):
            return self._nothing_to_move()
        counts = {name: each.partitions for name, each in there.topics.items()}
        config = self._config_with(counts)
        needed_s = self._rows.groups[-1].window_ms / 1000 + self.config.settlement.lateness_s + kafka.downtime_s
        lines = check_retention(kafka, counts, needed_s=needed_s)
        self._outputs_fit(TableFiles(self._run_dir.lake).id)
        if config.settlement.by == "partition":
            self._check_partitions(config)
        oldest_ms = merge["watermark_ms"] - self.config.settlement.horizon_ms(self._rows)
        topics, problems = [], []
        for name in stored.topics:
            if name in same:
                lines.append(f"topic `{name}` is the one that the run reads: its positions stay")
                continue
            try:
                into = [Partition(self._names[name], number) for number in range(counts[self._names[name]])]
                topics.append(map_topic(kafka, merge, name, into, margin_ms=margin_ms, oldest_ms=oldest_ms))
            except (BadInput, DataLost) as error:
                problems.append(str(error))
        if problems:
            raise BadInput("\n".join([*problems, "Nothing was changed."]))
        for topic in topics:
            lines += _described(topic)
        ends = self._ends(topics)
        if ends is not None:
            lines.append("a bounded run: it ends where its topics end there now")
        lines.append(
            f"topic `{kafka.examples.topic}` is filled from the lake at the next start, as far as it is not there"
        )
        read = [[*each.partition, each.position.offset] for topic in topics for each in topic.recorded]
        entry = {
            "from": self._before["kafka"]["bootstrap_servers"],
            "to": self._to,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_ms() / 1000)),
            "lake_seq": lake.last_lake_seq,
            "read": read,
        }
        record = {
            "to": self._to,
            "state": lake.state,
            "merge": moved(merge, topics),
            "sources": there.to_json(),
            "ends": None if ends is None else [[*place, offset] for place, offset in ends.items()],
            "config": dump(config),
            "entry": entry,
        }
        return MovePlan(lines, topics, record)

    def _movable(self, lake: LakeReader | None) -> None:
        """Raise BadInput for a run that cannot be moved, whatever the topics are."""
        root = self._run_dir.root
        if self.config.source is not None:
            raise BadInput(
                f"the run in {root} fills its topics itself, from `source`, and knows by them how far it is; start a "
                "new run with the other address. Runs on topics that others fill are moved"
            )
        if lake is None or lake.state == NOTHING_YET:
            raise BadInput(
                f"the run in {root} has read nothing yet: there is no position to map. Set kafka.bootstrap_servers to "
                f"{self._to} and start it"
            )
        if (self._run_dir.side_tables / f"{REPLAYED}.json").exists():
            again = command("exfm", "dead-letters", "replay", "--run-dir", root)
            raise BadInput(f"dead letters are being put back onto the topics of before; complete that first: `{again}`")

    def _there(self) -> SourceTopics:
        """The input topics on the new cluster. Raises BadInput where one is absent."""
        names = [getattr(self.config.kafka, kind).topic for kind in INPUTS]
        _, described = cluster_and_topics(self.config.kafka, names)
        if set(names) - described.keys():
            require_topics(self.config.kafka, names)
        return source_topics(self.config.kafka, {name: count for name, (_, count) in described.items()})

    def _nothing_to_move(self) -> MovePlan:
        if self._before["kafka"]["bootstrap_servers"] == self._to:
            return MovePlan([f"the run reads its topics at {self._to}: nothing is to be moved"], [], None)
        raise BadInput(
            f"{self._to} leads to the cluster and topics that the run reads: nothing is to be mapped; start it with "
            f"--set kafka.bootstrap_servers={self._to}"
        )

    def _check_partitions(self, config: Config) -> None:
        """Raise BadInput where rows of a topic there lie in other partitions than their ids', by a sample."""
        profile, findings = profile_topics(config, SAMPLE)
        if profile is None:
            raise BadInput("\n".join([*(f"{found.where}: {found.seen}" for found in findings), "Nothing was changed."]))
        for topic in {place.topic for place in profile.placed}:
            placed = [seen for place, seen in sorted(profile.placed.items()) if place.topic == topic]
            wrong, of = (sum(each) for each in zip(*((p.elsewhere, p.rows) for p in placed), strict=True))
            if wrong > of / 4:  # of two partitions, the other partitioner would put half elsewhere
                example = next(seen.example for seen in placed if seen.example)
                raise BadInput(
                    f"topic `{topic}` at {self._to} is not keyed as the run expects it: of {of:,} rows looked at "
                    f"{wrong:,} belong to other partitions, as {example} (settlement.partitioner: "
                    f"{config.settlement.partitioner}). Copy the topic so that it is (examples/repartition_topic.py "
                    "--partitioner)\nNothing was changed."
                )

    def _outputs_fit(self, lake: str) -> None:
        """Raise BadInput where the topics that the run writes are there, and others' or cut otherwise."""
        kafka = self.config.kafka
        outputs = {topic.topic: topic.partitions for topic in (kafka.examples, kafka.dead_letters)}
        _, described = cluster_and_topics(kafka, list(outputs))
        for name, (_, count) in described.items():
            if count != outputs[name]:
                raise BadInput(
                    f"topic `{name}` has {count} partitions at {self._to}, and the run writes {outputs[name]}; delete "
                    "it there: the run makes it anew"
                )
        if kafka.examples.topic in described:
            for number in range(kafka.examples.partitions):
                if (newest := last_message(kafka, kafka.examples.topic, number)) is not None:
                    Header.decode(newest).check(lake, kafka.examples.topic)

    def _ends(self, topics: list[MappedTopic]) -> dict[Partition, int] | None:
        """End offsets of a bounded run: where its topics end now. None for a run without recorded ends.

        Raises BadInput where fewer messages lie behind the new positions than were to be read.
        """
        if not (recorded := stored_ends(self._run_dir.end_offsets)):
            return None
        places = [each.partition for topic in topics for each in topic.partitions]
        ends = end_offsets(self.config.kafka, places)
        for topic in topics:
            name = topic.partitions[0].partition.topic
            left = sum(max(0, recorded.get(e.partition, 0) - e.position.offset) for e in topic.recorded)
            there = sum(ends[e.partition] - e.position.offset for e in topic.partitions)
            if there < left:
                raise BadInput(
                    f"topic `{name}`: {left:,} offsets were to be read up to the recorded end of this bounded run, and "
                    f"{there:,} lie behind the positions at {self._to}: the mirror is behind; wait for it. Where it is "
                    "complete (the old topic had transactions, which take offsets), delete "
                    f"{self._run_dir.end_offsets}: the run then ends where the topics end\nNothing was changed."
                )
        before = {each.partition.topic for topic in topics for each in topic.recorded}
        return {place: end for place, end in recorded.items() if place.topic not in before} | ends

    def _config_with(self, counts: Mapping[str, int]) -> Config:
        """The config with so many partitions of the input topics. Raises BadInput where it allows no such numbers."""
        kafka = self.config.kafka
        inputs = {kind: getattr(kafka, kind) for kind in INPUTS}
        changed = {kind: t.model_copy(update={"partitions": counts[t.topic]}) for kind, t in inputs.items()}
        config = self.config.model_copy(update={"kafka": kafka.model_copy(update=changed)})
        parse(_without_secrets(dump(config)), f"the config of the run with the topics at {self._to}")
        return config

    # --- done, whatever was done of it before ------------------------------------------------------------------------

    def _complete(self, record: Mapping[str, Any]) -> None:
        lake = LakeReader(self._run_dir.lake, self._rows)
        if lake.state == record["state"]:
            self._commit(record)
        elif _record_of(self._run_dir, lake.state).meta["sources"] != record["sources"]:
            raise DataLost(
                f"the run in {self._run_dir.root} has gone on since its move was begun; put back a copy of the folder, "
                f"or delete {self._run_dir.move} to stay where it is"
            )
        if record["ends"] is not None:
            store_ends(self._run_dir.end_offsets, {Partition(t, p): offset for t, p, offset in record["ends"]})  # 4
        self._write_config(record["config"])
        end_move(self._run_dir, record["entry"])  # 5

    def _commit(self, record: Mapping[str, Any]) -> None:
        before = _record_of(self._run_dir, record["state"])
        kafka = parse(_without_secrets(record["config"])).kafka
        kafka = kafka.model_copy(update={"security": self.config.kafka.security})
        self._deliver(before, kafka)  # 2
        writer = LakeTable(self._run_dir.lake, self._rows).open_writer()
        meta = {**before.meta, "merge": record["merge"], "sources": record["sources"]}
        nothing = pa.Table.from_batches([], DEAD_LETTER_SCHEMA)
        commit = CommitRecord(first_state(writer.epoch), meta, before.late.slice(0, 0), nothing)
        states = states_folder(self._run_dir, writer.epoch)
        self._save_state(record["state"], states, commit.number, kafka.impressions.partitions)
        commit.save(states)
        writer.commit(None, state=commit.number, metadata=writer.metadata or {})  # 3

    def _save_state(self, before: int, folder: Path, number: int, partitions: int) -> None:
        """Save the state of before under a new number, for the partitions that there are from now on."""
        settled = self._saved_states(before)
        if self.config.settlement.by == "stream":
            settled[0].save(folder, str(number))
            return
        places = [folder / partition_folder(each) for each in range(partitions)]
        again: Iterable[SettlementState] = settled
        if len(settled) != partitions:
            again = repartition(settled, self._rows, self.config.settlement, partitions, places.__getitem__)
        for place, state in zip(places, again, strict=True):
            state.save(place, str(number))

    def _saved_states(self, number: int) -> list[SettlementState]:
        """The state of the stream, or of each partition that there was."""
        folder = folder_of_state(self._run_dir, number)
        if self.config.settlement.by == "stream":
            return [SettlementState.load(folder, str(number))[0]]
        count = self._before["kafka"]["impressions"]["partitions"]
        return [SettlementState.load(folder / partition_folder(n), str(number))[0] for n in range(count)]

    def _deliver(self, record: CommitRecord, kafka: Kafka) -> None:
        """Deliver what a crash withheld of the last commit: a start delivers the newest record only."""
        ensure_dead_letters(kafka)
        outbox = Outbox(self._run_dir.side_tables, kafka, kafka.dead_letters.topic, self._rows)
        try:
            outbox.deliver(record)
        finally:
            outbox.close()

    def _write_config(self, text: str) -> None:
        now = parse(yaml.safe_load(text))
        if hash_of(self._before) != now.hash:
            line = f"moved to {self._to}, where the input topics have other partitions"
            remember(self._run_dir, self._before, now, [line])
        write_text(self._run_dir.config, text)


def _without_secrets(config: str) -> dict[str, Any]:
    """The settings of a stored config, which holds no password, without those of its connection."""
    settings: dict[str, Any] = yaml.safe_load(config)
    settings["kafka"]["security"] = {}
    return settings


def _record_of(run_dir: RunDir, state: int) -> CommitRecord:
    return CommitRecord.load(folder_of_state(run_dir, state), state)


def _same(there: SourceTopics, stored: SourceTopics, name: str) -> bool:
    """True if the topic is the one that the run reads. Raises BadInput where that has grown."""
    now, before = there.topics[name], stored.topics[name]
    if None in (there.cluster_id, now.topic_id) or there.cluster_id != stored.cluster_id:
        return False
    if now.topic_id != before.topic_id:
        return False
    if now.partitions != before.partitions:
        raise BadInput(
            f"topic `{name}` is the one that the run reads, with {now.partitions} partitions in place of "
            f"{before.partitions}: that is no move; resume the run with --evolve, which takes them in, or, where it "
            "settles each partition by itself, copy both topics to new ones and move it there"
        )
    return True


def _described(topic: MappedTopic) -> Iterator[str]:
    """The mapping of a topic, in lines."""
    name, before = (each[0].partition.topic for each in (topic.partitions, topic.recorded))
    if name != before:
        yield f"topic `{before}` is `{name}` there"
    if len(topic.recorded) != len(topic.partitions):
        yield (
            f"topic `{name}`: {len(topic.partitions)} partitions in place of {len(topic.recorded)}; all "
            f"{topic.found:,} messages that were read last are there. Reading begins before them, and drops what was "
            "read already"
        )
        for each in topic.partitions:
            yield f"  {name}/{each.partition.partition}: from offset {each.position.offset:,} on"
        return
    yield f"topic `{name}`: {topic.found:,} messages that were read last are there, with the same key and value"
    for was, now in zip(topic.recorded, topic.partitions, strict=True):
        again = ", where a message lies that was not read; those behind it are read again" if now.again else ""
        yield (
            f"  {name}/{now.partition.partition}: offset {was.position.offset:,} is {now.position.offset:,} "
            f"there{again}"
        )

"""A stopped run whose topics live on another broker goes on there, exactly once: `exfm broker move`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipelines.cli.tools.broker_move import BrokerMove
from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.end_offsets import store_ends
from pipelines.core.run_dir.moves import begin_move, begun_move, moves
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.workers.augmentation.commit import committed_meta
from streaming.errors import BadInput
from streaming.kafka.topics import cluster_and_topics, end_offsets
from streaming.partitioner import Partitioner
from streaming.position import Partition
from tests.support.pipelines.mirror import Mirror
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_replays,
    slow_commits,
    small,
    stop_after,
    to_the_end,
    undisturbed,
)
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, make_inputs, messages_of, send
from tests.support.places import ROOT

pytestmark = pytest.mark.broker

ROWS = 3000


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("pipelines.live.rules.restarts.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)


class Stream:
    """Topics of others, in which every row is one JSON message of its own time, and two are broken. The second half of
    it is sent after the run was stopped: so its position lies in the middle."""

    def __init__(self, servers: str, partitions: int | None = None, **changes: Any) -> None:
        """`partitions`, where each is settled by itself: each row lies in its id's; else in one of two."""
        if partitions is not None:
            counts = {f"kafka__{kind}__partitions": partitions for kind in ("impressions", "feedback")}
            changes |= {"settlement__by": "partition", **counts}
        codecs = {f"kafka__{kind}__codec": "json" for kind in ("impressions", "feedback")}
        self.config = small(servers, source=None, pace__block_rows=256, **codecs, **changes)
        make_inputs(self.config)
        shown, feedback = by_hand(self.config, ROWS)
        self._half_ms = shown[ROWS // 2]["event_time_ms"]
        ads, clicks = (topic.topic for topic in (self.config.kafka.impressions, self.config.kafka.feedback))

        def places(rows: list[dict[str, Any]], step: int) -> list[int]:
            ids = [row["impression_id"] for row in rows]
            return [each // step % 2 for each in ids] if partitions is None else owners(ids, partitions)

        self._messages = [
            (row["event_time_ms"], topic, place, row)
            for topic, rows, step in ((ads, shown, 1), (clicks, feedback, 2))
            for place, row in zip(places(rows, step), rows, strict=True)
        ]
        self._send(lambda time_ms: time_ms < self._half_ms)

    def _send(self, chosen: Callable[[int], bool]) -> None:
        chosen_rows = [each for each in self._messages if chosen(each[0])]
        messages = [(topic, number, json.dumps(row).encode()) for _, topic, number, row in chosen_rows]
        times = [time_ms for time_ms, *_ in chosen_rows]
        messages[500:500], times[500:500] = [(messages[500][0], 0, b"not a row")], [times[500]]
        send(str(self.config.kafka.bootstrap_servers), messages, times)

    def read_half_way(self, root: Path) -> None:
        """Read the first half, stop the run, and send the second."""
        with slow_commits():
            status, _ = run(self.config, RunDir(root), local=True, watch=stop_after(600))
        assert status.state is RunState.STOPPED, status.reason
        self._send(lambda time_ms: time_ms >= self._half_ms)


def owners(ids: list[int], partitions: int) -> list[int]:
    """The partition of each id."""
    found: list[int] = Partitioner("exfm", partitions)(pa.array(ids)).tolist()
    return found


def at(servers: str, config: Config, **partitions: int) -> Config:
    """The config as its owner edits it for another cluster."""
    kafka = config.kafka
    topics = {kind: getattr(kafka, kind).model_copy(update={"partitions": n}) for kind, n in partitions.items()}
    return config.model_copy(update={"kafka": kafka.model_copy(update={"bootstrap_servers": servers, **topics})})


def inputs(config: Config) -> dict[str, int]:
    return {topic.topic: topic.partitions for topic in (config.kafka.impressions, config.kafka.feedback)}


def reached(root: Path, topic: str, partition: int) -> int:
    """The offset that a run reads next."""
    meta = committed_meta(RunDir(root))
    assert meta is not None
    return int(next(place[2] for place in meta["merge"]["partitions"] if place[:2] == [topic, partition]))


def tree(root: Path) -> dict[str, str]:
    """What a folder holds, but for locks."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def move(root: Path, servers: str, *options: str) -> Any:
    from pipelines.cli.console import app

    return CliRunner().invoke(app, ["broker", "move", str(root), "--to", servers, *options])


def without_offsets(lake: pa.Table) -> pa.Table:
    return lake.drop_columns(["source_offset"])


def labels(lake: pa.Table) -> list[tuple[Any, ...]]:
    names = ("impression_id", "settlement", "label_ctr", "label_cvr")
    return sorted(zip(*(lake[name].to_pylist() for name in names), strict=True), key=str)


def counts_without(finished: Finished, *names: str) -> dict[str, Any]:
    return {name: value for name, value in finished.summary["counts"].items() if name not in names}


def assert_as_unmoved(finished: Finished, whole: Finished) -> None:
    assert without_offsets(finished.lake).equals(without_offsets(whole.lake))
    assert finished.summary["students"] == whole.summary["students"]
    assert counts_without(finished, "offsets") == counts_without(whole, "offsets")
    for worker in finished.models:
        assert finished.checkpoint(worker)[0] == whole.checkpoint(worker)[0], worker


KILLED = """
import os, signal, sys
from pathlib import Path
import pipelines.cli.tools.broker_move as tool
import pipelines.core.run_dir.moves as moves
from streaming.delivery.outbox import Outbox
from streaming.lake.writer import LakeWriter
from streaming.settlement.state import SettlementState

root, to, *points = sys.argv[1:]
for point in points:
    if not (child := os.fork()):
        owner, name = point.split(".")
        original = getattr(globals()[owner], name)

        def killed(*args, **kwargs):
            original(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(globals()[owner], name, killed)
        tool.BrokerMove(Path(root), to).move()
        os._exit(0)
    if os.WTERMSIG(os.waitpid(child, 0)[1]) != signal.SIGKILL:
        sys.exit(f"{point} was not reached")
"""
POINTS = (
    "tool.begin_move",
    "Outbox.deliver",
    "SettlementState.save",
    "LakeWriter.commit",
    "tool.store_ends",
    "tool.write_text",
    "moves.write_json",
)
"""Once each of these is done, the process is killed; the next one goes on."""


def killed_at(points: Sequence[str], root: Path, servers: str) -> None:
    words = [sys.executable, "-c", KILLED, str(root), servers, *points]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_a_run_goes_on_at_a_mirror_with_other_offsets_to_the_same_bits_whatever_is_killed(broker, own_broker, tmp_path):
    stream, root, there = Stream(broker.bootstrap_servers), tmp_path / "run", own_broker.start().bootstrap_servers
    config = stream.config
    stream.read_half_way(root)
    whole = undisturbed(config, tmp_path / "undisturbed")
    places = [Partition(topic, number) for topic, count in inputs(config).items() for number in range(count)]
    store_ends(RunDir(root).end_offsets, end_offsets(config.kafka, places))  # as a bounded run has them
    before = tree(root)

    mirror = Mirror(str(config.kafka.bootstrap_servers), there, inputs(config), skip=20, markers=64)
    for topic in inputs(config):
        mirror.copy(topic, upto=30)
    with pytest.raises(BadInput, match=r"none of the last 32 .*\n.*none of the last 32 (.|\n)*Nothing was changed"):
        BrokerMove(root, there).move()
    for topic in inputs(config):
        mirror.copy(topic, upto=5 + max(reached(root, topic, number) for number in (0, 1)))
    with pytest.raises(BadInput, match=r"offsets were to be read up to the recorded end .* the mirror is behind"):
        BrokerMove(root, there).move()
    for topic in inputs(config):
        mirror.copy(topic)
    dry = move(root, there, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "messages that were read last are there, with the same key and value" in dry.output
    assert tree(root) == before

    for points in (POINTS[:1], POINTS[1:]):
        killed_at(points, root, there)
        with pytest.raises(BadInput, match=r"a move of .* was begun and is not complete"):
            run(config, RunDir(root), local=True, until_end=True)
        with pytest.raises(BadInput, match="was begun and is not complete; complete it first"):
            BrokerMove(root, str(config.kafka.bootstrap_servers)).move()
    assert move(root, there).exit_code == 0
    assert begun_move(RunDir(root)) is None
    assert len(moves(RunDir(root))) == 1
    again = move(root, there)
    assert (again.exit_code, "nothing is to be moved" in again.output) == (0, True)
    assert load(RunDir(root).config).kafka.bootstrap_servers == there
    with pytest.raises(BadInput, match=r"the config names .*, and this run was moved to "):
        run(config, RunDir(root), local=True, until_end=True)

    finished = to_the_end(at(there, config), root)
    assert_as_unmoved(finished, whole)
    for table in ("dead_letters", "late_feedback"):
        assert [row["reason"] for row in finished.side_table(table)] == [
            row["reason"] for row in whole.side_table(table)
        ]
    assert finished.published() == list(range(finished.lake.num_rows))
    assert counts_hold(finished.summary["counts"])
    assert_replays(root)


def begun_and_interrupted(run_dir: RunDir, record: dict[str, Any]) -> None:
    begin_move(run_dir, record)
    raise KeyboardInterrupt


def test_a_mirror_that_renames_repeats_and_takes_rows_of_its_own_brings_each_row_once(
    broker, own_broker, tmp_path, monkeypatch
):
    stream, root, there = Stream(broker.bootstrap_servers), tmp_path / "run", own_broker.start().bootstrap_servers
    config = stream.config
    stream.read_half_way(root)
    whole = undisturbed(config, tmp_path / "undisturbed")
    ads = config.kafka.impressions.topic
    first = reached(root, ads, 0) - 10  # a producer has moved before the mirror was through
    mirror = Mirror(str(config.kafka.bootstrap_servers), there, inputs(config), prefix="a.", repeat_every=20, repeats=7)
    for topic in inputs(config):
        mirror.copy(topic, upto=first)
    row = json.loads(next(m.value for m in messages_of(config.kafka.bootstrap_servers, ads) if m.offset == first))
    own = [row | {"impression_id": 10_000_000 + number} for number in range(3)]
    send(there, [(f"a.{ads}", 0, json.dumps(each).encode()) for each in own], row["event_time_ms"])
    for topic in inputs(config):
        mirror.copy(topic)
    kafka = config.kafka
    kinds = ("impressions", "feedback", "dead_letters")
    renamed = {kind: f"a.{getattr(kafka, kind).topic}" for kind in kinds}
    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.cli.tools.broker_move.begin_move", begun_and_interrupted)
        with pytest.raises(KeyboardInterrupt):
            BrokerMove(root, there, [f"kafka.{kind}.topic={name}" for kind, name in renamed.items()]).move(
                say=lines.append
            )
    assert "where a message lies that was not read" in "\n".join(lines)
    said = move(root, there)  # completes what was planned, with the names that were given then
    assert said.exit_code == 0, said.output
    _, topics = cluster_and_topics(load(RunDir(root).config).kafka, [renamed["dead_letters"], kafka.dead_letters.topic])
    assert list(topics) == [renamed["dead_letters"]]

    moved_config = load(RunDir(root).config)
    assert {kind: getattr(moved_config.kafka, kind).topic for kind in renamed} == renamed
    finished = to_the_end(moved_config, root)
    extra = {each["impression_id"] for each in own}
    assert [each for each in labels(finished.lake) if each[0] not in extra] == labels(whole.lake)
    assert {each[0] for each in labels(finished.lake)} >= extra
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["duplicates_dropped"] > whole.summary["counts"]["duplicates_dropped"]
    assert_learned_the_lake(finished)
    assert_replays(root)


def test_a_run_goes_on_at_topics_of_more_partitions_with_every_row_once(broker, own_broker, tmp_path):
    stream, root, there = Stream(broker.bootstrap_servers), tmp_path / "run", own_broker.start().bootstrap_servers
    config = stream.config
    stream.read_half_way(root)
    whole = undisturbed(config, tmp_path / "undisturbed")
    counts = dict(zip(inputs(config), (4, 3), strict=True))

    def partition_of(message: Any) -> int:
        try:
            return int(json.loads(message.value)["impression_id"]) // 3 % counts[message.topic]
        except ValueError:
            return 0

    mirror = Mirror(str(config.kafka.bootstrap_servers), there, counts, partition_of=partition_of)
    for topic in counts:
        mirror.copy(topic)
    said = move(root, there)
    assert (said.exit_code, "4 partitions in place of 2" in said.output) == (0, True), said.output
    stored = load(RunDir(root).config).kafka
    assert (stored.impressions.partitions, stored.feedback.partitions) == (4, 3)

    finished = to_the_end(at(there, config, impressions=4, feedback=3), root)
    assert labels(finished.lake) == labels(whole.lake)
    assert counts_hold(finished.summary["counts"])
    assert_learned_the_lake(finished)
    assert_replays(root)


ASOF = {
    "features": [
        {"name": "met", "by": ["user_id"], "rate": "ctr"},
        {"name": "seen", "by": "user_id", "last": 3, "of": ["gap_s", "ctr"]},
    ]
}


def test_partitions_settled_by_themselves_go_on_at_a_mirror_to_the_same_bits(broker, own_broker, tmp_path):
    stream, root = Stream(broker.bootstrap_servers, partitions=3, rows__asof=ASOF), tmp_path / "run"
    config, there = stream.config, own_broker.start().bootstrap_servers
    stream.read_half_way(root)
    whole = undisturbed(config, tmp_path / "undisturbed")
    mirror = Mirror(str(config.kafka.bootstrap_servers), there, inputs(config), skip=20, markers=64)
    for topic in inputs(config):
        mirror.copy(topic)
    killed_at(("SettlementState.save", "LakeWriter.commit"), root, there)
    said = move(root, there)
    assert said.exit_code == 0, said.output

    finished = to_the_end(at(there, config), root)
    assert_as_unmoved(finished, whole)
    assert_replays(root)


@pytest.mark.parametrize("partitions", [2, 5])
def test_partitions_settled_by_themselves_become_others_with_every_row_once(broker, own_broker, tmp_path, partitions):
    stream, root = Stream(broker.bootstrap_servers, partitions=3, rows__asof=ASOF), tmp_path / "run"
    config, there = stream.config, own_broker.start().bootstrap_servers
    stream.read_half_way(root)
    whole = undisturbed(config, tmp_path / "undisturbed")

    def partition_of(message: Any) -> int:
        try:
            return owners([json.loads(message.value)["impression_id"]], partitions)[0]
        except ValueError:
            return 0

    counts = dict.fromkeys(inputs(config), partitions)
    mirror = Mirror(str(config.kafka.bootstrap_servers), there, counts, partition_of=partition_of)
    for topic in counts:
        mirror.copy(topic)
    said = move(root, there)
    assert (said.exit_code, f"{partitions} partitions in place of 3" in said.output) == (0, True), said.output

    finished = to_the_end(at(there, config, impressions=partitions, feedback=partitions), root)
    assert labels(finished.lake) == labels(whole.lake)
    assert counts_hold(finished.summary["counts"])
    same = ("settled", "not_applicable", "pending", "lake_rows", "unknown_labels", "unmet_conditions")
    assert {name: finished.summary["counts"].get(name) for name in same} == {
        name: whole.summary["counts"].get(name) for name in same
    }
    assert "wrong_partition" not in str(finished.summary["counts"])
    assert_learned_the_lake(finished)
    assert_replays(root)


def test_what_is_no_move_is_refused_in_words(broker, own_broker, tmp_path):
    servers, there = broker.bootstrap_servers, own_broker.start().bootstrap_servers
    own = to_the_end(small(servers, source__impressions=600), tmp_path / "own")
    with pytest.raises(BadInput, match="fills its topics itself"):
        BrokerMove(own.run_dir.root, there).move()
    stream = Stream(servers, students=[])
    config = stream.config
    stream.read_half_way(tmp_path / "run")
    with pytest.raises(BadInput, match="no topic `small-impressions"):
        BrokerMove(tmp_path / "run", there).move()
    with pytest.raises(BadInput, match="a move changes the connection; set what begins with"):
        BrokerMove(tmp_path / "run", there, ["seed=7"])
    with pytest.raises(BadInput, match="this what the run computes"):
        BrokerMove(tmp_path / "run", there, ["kafka.impressions.partitions=3"])
    assert BrokerMove(tmp_path / "run", servers).move().record is None
    to_the_end(config, tmp_path / "run")
    with pytest.raises(BadInput, match="has ended"):
        BrokerMove(tmp_path / "run", there).move()

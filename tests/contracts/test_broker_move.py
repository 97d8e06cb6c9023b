"""A stopped run whose topics live on another broker goes on there, exactly once: `exfm broker move`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pipelines.cli.tools.broker_move import BrokerMove
from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.moves import begun_move, moves
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.workers.augmentation.commit import committed_meta
from streaming.errors import BadInput
from tests.support.pipelines.mirror import Mirror
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_replays,
    slow_commits,
    small,
    stop_after,
    to_the_end,
)
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, make_inputs, messages_of, send
from tests.support.places import ROOT

pytestmark = pytest.mark.broker

ROWS = 3000
TIMED = {"opened", "block"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("pipelines.live.rules.restarts.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)


def filled(servers: str, **changes: Any) -> Config:
    """A run on topics of others, in which every row is one JSON message of its own time, and two are broken."""
    codecs = {f"kafka__{kind}__codec": "json" for kind in ("impressions", "feedback")}
    config = small(servers, source=None, pace__block_rows=256, **codecs, **changes)
    make_inputs(config)
    shown, feedback = by_hand(config, ROWS)
    ads, clicks = (topic.topic for topic in (config.kafka.impressions, config.kafka.feedback))
    messages = [(ads, row["impression_id"] % 2, json.dumps(row).encode()) for row in shown]
    times = [row["event_time_ms"] for row in shown]
    messages[500:500] = [(ads, 0, b"not a row"), (ads, 1, b"nor this")]
    times[500:500] = [times[500]] * 2
    messages += [(clicks, row["impression_id"] // 2 % 2, json.dumps(row).encode()) for row in feedback]
    send(servers, messages, times + [row["event_time_ms"] for row in feedback])
    return config


def undisturbed(config: Config, root: Path) -> Finished:
    """The same rows, run through where they are, with topics of its own to write to."""
    kafka = config.kafka
    outputs = {
        kind: getattr(kafka, kind).model_copy(update={"topic": f"{getattr(kafka, kind).topic}-undisturbed"})
        for kind in ("examples", "dead_letters")
    }
    return to_the_end(config.model_copy(update={"kafka": kafka.model_copy(update=outputs)}), root)


def half_way(config: Config, root: Path) -> None:
    with slow_commits():
        status, _ = run(config, RunDir(root), local=True, until_end=True, watch=stop_after(600))
    assert status.state is RunState.STOPPED, status.reason
    assert status.lake.rows < 2 * ROWS // 3


def at(servers: str, config: Config, **partitions: int) -> Config:
    """The config as its owner edits it for another cluster."""
    kafka = config.kafka
    topics = {kind: getattr(kafka, kind).model_copy(update={"partitions": n}) for kind, n in partitions.items()}
    return config.model_copy(update={"kafka": kafka.model_copy(update={"bootstrap_servers": servers, **topics})})


def inputs(config: Config) -> dict[str, int]:
    return {topic.topic: topic.partitions for topic in (config.kafka.impressions, config.kafka.feedback)}


def committed(root: Path) -> dict[str, Any]:
    meta = committed_meta(RunDir(root))
    assert meta is not None
    return meta


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


KILLED = """
import os, signal, sys
from pathlib import Path
import pipelines.cli.tools.broker_move as tool
import pipelines.core.run_dir.moves as moves
from streaming.delivery.outbox import Outbox
from streaming.lake.writer import LakeWriter
from streaming.settlement.settlement import Settlement

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
    "Settlement.save",
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
    config, root, there = filled(broker.bootstrap_servers), tmp_path / "run", own_broker.start().bootstrap_servers
    whole = undisturbed(config, tmp_path / "undisturbed")
    half_way(config, root)
    before = tree(root)

    mirror = Mirror(str(config.kafka.bootstrap_servers), there, inputs(config), skip=70, markers=64)
    for topic in inputs(config):
        mirror.copy(topic, upto=90)
    with pytest.raises(BadInput, match=r"none of the last 32 .*\n.*none of the last 32 (.|\n)*Nothing was changed"):
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
    assert without_offsets(finished.lake).equals(without_offsets(whole.lake))
    assert finished.summary["students"] == whole.summary["students"]
    assert counts_without(finished, "offsets") == counts_without(whole, "offsets")
    for worker in finished.models:
        assert finished.checkpoint(worker)[0] == whole.checkpoint(worker)[0], worker
    for table in ("dead_letters", "late_feedback"):
        assert [row["reason"] for row in finished.side_table(table)] == [
            row["reason"] for row in whole.side_table(table)
        ]
    assert finished.published() == list(range(finished.lake.num_rows))
    assert counts_hold(finished.summary["counts"])
    assert_replays(root)


def test_a_mirror_that_repeats_and_takes_rows_of_its_own_brings_each_row_once(broker, own_broker, tmp_path):
    config, root, there = filled(broker.bootstrap_servers), tmp_path / "run", own_broker.start().bootstrap_servers
    whole = undisturbed(config, tmp_path / "undisturbed")
    half_way(config, root)
    ads = config.kafka.impressions.topic
    reached = {tuple(place[:2]): place[2] for place in committed(root)["merge"]["partitions"]}
    first = reached[ads, 0] - 10  # a producer has moved before the mirror was through
    mirror = Mirror(str(config.kafka.bootstrap_servers), there, inputs(config), repeat_every=20, repeats=7)
    for topic in inputs(config):
        mirror.copy(topic, upto=first)
    row = json.loads(next(m.value for m in messages_of(config.kafka.bootstrap_servers, ads) if m.offset == first))
    own = [row | {"impression_id": 10_000_000 + number} for number in range(3)]
    send(there, [(ads, 0, json.dumps(each).encode()) for each in own], row["event_time_ms"])
    for topic in inputs(config):
        mirror.copy(topic)
    said = move(root, there)
    assert (said.exit_code, "where a message lies that was not read" in said.output) == (0, True), said.output

    finished = to_the_end(at(there, config), root)
    extra = {each["impression_id"] for each in own}
    assert [each for each in labels(finished.lake) if each[0] not in extra] == labels(whole.lake)
    assert {each[0] for each in labels(finished.lake)} >= extra
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["duplicates_dropped"] > whole.summary["counts"]["duplicates_dropped"]
    assert_learned_the_lake(finished)
    assert_replays(root)


def test_a_run_goes_on_at_topics_of_more_partitions_with_every_row_once(broker, own_broker, tmp_path):
    config, root, there = filled(broker.bootstrap_servers), tmp_path / "run", own_broker.start().bootstrap_servers
    whole = undisturbed(config, tmp_path / "undisturbed")
    half_way(config, root)
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


def test_what_is_no_move_is_refused_in_words(broker, own_broker, tmp_path):
    servers, there = broker.bootstrap_servers, own_broker.start().bootstrap_servers
    own = to_the_end(small(servers, source__impressions=600), tmp_path / "own")
    with pytest.raises(BadInput, match="fills its topics itself"):
        BrokerMove(own.run_dir.root, there).move()
    config = filled(servers, students=[])
    half_way(config, tmp_path / "run")
    with pytest.raises(BadInput, match="no topic `small-impressions"):
        BrokerMove(tmp_path / "run", there).move()
    with pytest.raises(BadInput, match="a move changes the connection; set what begins with"):
        BrokerMove(tmp_path / "run", there, ["seed=7"])
    for override in ("kafka.impressions.partitions=3", "kafka.impressions.topic=other"):
        with pytest.raises(BadInput, match="this changes what it reads, or computes"):
            BrokerMove(tmp_path / "run", there, [override])
    assert BrokerMove(tmp_path / "run", servers).move().record is None
    to_the_end(config, tmp_path / "run")
    with pytest.raises(BadInput, match="has ended"):
        BrokerMove(tmp_path / "run", there).move()

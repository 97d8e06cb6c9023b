"""Topics keyed by something else, copied by `examples/repartition_topic.py`: each message once, if killed, too."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from pipelines.cli.tools.broker_move import BrokerMove
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from streaming.errors import BadInput
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics
from streaming.partitioner import Partitioner
from tests.support.pipelines.small_runs import slow_commits, small, stop_after, to_the_end, undisturbed
from tests.support.pipelines.topics import by_hand, messages_of, send
from tests.support.places import NUMBERS, ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker

ROWS = 3000


def command(servers: str, source: str, target: str, *options: str) -> list[str]:
    script = str(ROOT / "examples/repartition_topic.py")
    return [sys.executable, script, source, target, "--bootstrap-servers", servers, *options]


def copied(servers: str, source: str, target: str, *options: str) -> None:
    words = command(servers, source, target, "--until-end", *options)
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def sent(servers: str, topic: str, rows: list[dict], by: str, partitions: int) -> None:
    """Rows as JSON messages with keys, in the order of their times, in partitions that follow the column `by`."""
    ensure_topics(KafkaSettings(bootstrap_servers=servers), {topic: partitions})
    messages = [(topic, row[by] % partitions, json.dumps(row).encode()) for row in rows]
    send(servers, messages, [row["event_time_ms"] for row in rows])


def test_a_live_topic_is_copied_once_while_the_copier_is_killed(broker):
    servers, number = str(broker.bootstrap_servers), next(NUMBERS)
    source, target = f"by-user-{number}", f"by-id-{number}"
    shown, _ = by_hand(small(servers), ROWS)
    shown.sort(key=lambda row: row["event_time_ms"])
    ensure_topics(KafkaSettings(bootstrap_servers=servers), {target: 4})
    sent(servers, source, shown[:1500], "user_id", 2)
    send(servers, [(source, 1, b"not a row")], shown[1500]["event_time_ms"])
    for stop in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(command(servers, source, target), cwd=ROOT, stderr=subprocess.PIPE)
        try:
            assert process.stderr is not None
            assert b"copying" in process.stderr.readline()
            eventually(lambda: messages_of(servers, target))
        finally:
            process.send_signal(stop)
            assert process.wait(60) == (-9 if stop is signal.SIGKILL else 0)
    both = [subprocess.Popen(command(servers, source, target), cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
    try:
        sent(servers, source, shown[1500:2200], "user_id", 2)
        eventually(lambda: len(messages_of(servers, target)) > 2200)
        eventually(lambda: any(process.poll() is not None for process in both))
        sent(servers, source, shown[2200:], "user_id", 2)
        copied(servers, source, target)
    finally:
        for process in both:
            process.kill()
        told = [process.communicate(timeout=60)[1].decode() for process in both]
    assert any("another copier of these topics has begun" in words for words in told), told

    there = list(messages_of(servers, target))
    assert sorted(m.value for m in there) == sorted(m.value for m in messages_of(servers, source))
    owner = Partitioner("exfm", 4)
    rows = [(json.loads(m.value), m) for m in there if m.value != b"not a row"]
    assert [m.partition for _, m in rows] == owner(pa.array([row["impression_id"] for row, _ in rows])).tolist()
    for partition in range(4):
        times = [m.timestamp for _, m in rows if m.partition == partition]
        assert len(times) > 500
        assert times == sorted(times)
    assert [m.partition for m in there if m.value == b"not a row"] == [0]


def test_a_run_that_settles_each_partition_by_itself_goes_on_at_topics_of_more(broker, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)
    servers, root = str(broker.bootstrap_servers), tmp_path / "run"
    inputs = {f"kafka__{kind}__codec": "json" for kind in ("impressions", "feedback")}
    inputs |= {f"kafka__{kind}__partitions": 2 for kind in ("impressions", "feedback")}
    config = small(servers, source=None, pace__block_rows=256, settlement__by="partition", students=[], **inputs)
    topics = config.kafka.impressions.topic, config.kafka.feedback.topic
    for topic, rows in zip(topics, by_hand(config, ROWS), strict=True):
        sent(servers, f"raw-{topic}", sorted(rows, key=lambda row: row["event_time_ms"]), "impression_id", 3)
        for place, partitions in ((topic, 2), (f"{topic}-wide", 5)):
            ensure_topics(config.kafka, {place: partitions})
        copied(servers, f"raw-{topic}", topic)
    with slow_commits():
        status, _ = run(config, RunDir(root), local=True, watch=stop_after(600))
    assert status.state is RunState.STOPPED, status.reason
    for topic in topics:
        copied(servers, topic, f"{topic}-wide")
        ensure_topics(config.kafka, {f"{topic}-wrong": 5})
        copied(servers, topic, f"{topic}-wrong", "--partitioner", "kafka")
    wrong = [f"kafka.{kind}.topic={t}-wrong" for kind, t in zip(("impressions", "feedback"), topics, strict=True)]
    with pytest.raises(BadInput, match=r"is not keyed as the run expects it: .* belong to other partitions, as"):
        BrokerMove(root, servers, wrong).move()
    ensure_topics(config.kafka, {f"{topics[1]}-odd": 4})
    with pytest.raises(BadInput, match=r"topics at .* is not a valid config:\n.* the topics have 5 and 4 partitions"):
        BrokerMove(root, servers, [wrong[0], f"kafka.feedback.topic={topics[1]}-odd"]).move()
    names = [f"kafka.{kind}.topic={t}-wide" for kind, t in zip(("impressions", "feedback"), topics, strict=True)]
    BrokerMove(root, servers, names).move()

    finished = to_the_end(load(RunDir(root).config), root)
    whole = undisturbed(config, tmp_path / "undisturbed")
    columns = ("impression_id", "settlement", "label_ctr", "label_cvr")
    rows = [sorted(zip(*(of.lake[n].to_pylist() for n in columns), strict=True), key=str) for of in (finished, whole)]
    assert len(rows[0]) > ROWS
    assert rows[0] == rows[1]
    letters = [of.summary["counts"]["dead_letters_by_reason"] for of in (finished, whole)]
    assert letters[0] == letters[1]

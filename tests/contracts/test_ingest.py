"""A recorded file into the topics of a real broker: every row once, whatever ends the command and however often."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pipelines.cli import console as cli
from pipelines.cli.tools.feeding import recorded_source
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.ingest import IngestWorker
from streaming.broker.broker import LocalBroker
from streaming.errors import StreamingError
from streaming.kafka.client import raw_message
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import end_offsets, ensure_topics
from streaming.messages.codecs import make_codec
from streaming.messages.message import is_end_marker
from streaming.position import Partition
from tests.support.pipelines.topics import messages_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker

CONFIG = "configs/movielens.yaml"
CHUNK_ROWS = 8192  # of source.chunk_rows, by default
ROWS = 6 * CHUNK_ROWS + 17
PARTITIONS = 2


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """ROWS ratings, two thirds of them clicks."""
    at = np.arange(ROWS)
    columns = {
        **{name: at % 20 for name in ("user_id", "item_id", "year", "age", "occ", "zip3")},
        **{name: pa.array(["x"] * ROWS) for name in ("genres", "gender")},
        "vertical": pa.array(["drama"] * ROWS),
        "timestamp": 1_000_000 + at // 10,
        "label": (at % 3 > 0).astype(np.int64),
    }
    path = tmp_path_factory.mktemp("recorded") / "ratings.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def topics(topic_name):
    """Settings that give the config topics of this test's own."""
    return [
        f"kafka.{kind}.{key}={value}"
        for kind in ("impressions", "feedback")
        for key, value in (("topic", topic_name(kind)), ("partitions", PARTITIONS))
    ]


@pytest.fixture
def command(file, topics, kafka):
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    return [str(file), "--config", CONFIG, *servers, *(part for each in topics for part in ("--set", each))]


def run(capsys, arguments: list[str]) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main(["ingest", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def names(topics: list[str]) -> list[str]:
    return [each.partition("=")[2] for each in topics if ".topic=" in each]


def held(kafka, topics) -> tuple[Counter, int, int]:
    """How often each impression is there, how many rows of feedback, how many end markers."""
    schema, counted, feedback, markers = load(CONFIG).rows, Counter(), 0, 0
    for topic, kind in zip(names(topics), ("impression", "feedback"), strict=True):
        messages = [raw_message(record) for record in messages_of(kafka.bootstrap_servers, topic)]
        markers += sum(map(is_end_marker, messages))
        decoded = make_codec("arrow", kind, schema).decode([m for m in messages if not is_end_marker(m)])
        assert not decoded.dead
        if kind == "impression":
            counted = Counter(decoded.batch["impression_id"].to_pylist())
        else:
            feedback = decoded.batch.num_rows
    return counted, feedback, markers


def begin(arguments: list[str], kafka, topics, beyond: int) -> subprocess.Popen:
    """A command of its own, once it has brought the impressions' topic beyond so many messages."""
    script = "from pipelines.cli.console import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "ingest", *arguments, "--rate", str(CHUNK_ROWS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    partitions = [Partition(names(topics)[0], p) for p in range(PARTITIONS)]
    ensure_topics(kafka, dict.fromkeys(names(topics), PARTITIONS))
    eventually(lambda: process.poll() is not None or sum(end_offsets(kafka, partitions).values()) > beyond, look_s=0.05)
    assert process.poll() is None, process.communicate()
    return process


def test_interrupted_then_killed_then_resumed_each_row_is_there_once(command, topics, kafka, capsys):
    interrupted = begin(command, kafka, topics, beyond=0)
    interrupted.send_signal(signal.SIGINT)
    out, err = interrupted.communicate()
    assert interrupted.returncode == 130
    assert f"of {ROWS:,} impressions are in the topics" in out
    assert "the same command resumes here" in err

    killed = begin(command, kafka, topics, beyond=PARTITIONS * 2)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    before, _, markers = held(kafka, topics)
    assert 0 < len(before) < ROWS
    assert markers == 0

    code, out, _ = run(capsys, [*command, "--json"])
    said = json.loads(out)
    assert code == 0
    assert (said["rows"], said["total"]) == (ROWS, ROWS)
    assert 0 < said["before"] < ROWS
    counted, feedback, markers = held(kafka, topics)
    assert counted == Counter(dict.fromkeys(range(ROWS), 1))
    assert feedback == ROWS - len(range(0, ROWS, 3))
    assert markers == 2 * PARTITIONS

    assert "already" in run(capsys, command)[1]
    assert held(kafka, topics) == (counted, feedback, markers)


def test_topics_left_open_take_another_stream_only_when_told_to(command, topics, kafka, capsys, tmp_path, file):
    assert run(capsys, [*command, "--no-end"])[0] == 0
    assert held(kafka, topics)[2] == 0
    later = tmp_path / "later.parquet"
    pq.write_table(pq.read_table(file).slice(ROWS - 100), later)
    code, _, err = run(capsys, [str(later), *command[1:]])
    assert code == 2
    assert "holds ratings.parquet-" in err
    assert "--append" in err
    assert run(capsys, [str(later), *command[1:], "--append"])[0] == 0
    counted, _, markers = held(kafka, topics)
    assert (counted.total(), markers) == (ROWS + 100, 2 * PARTITIONS)
    code, _, err = run(capsys, [*command, "--append"])
    assert code == 2
    assert "has ended" in err


def test_rows_go_out_at_the_rate_asked_and_what_is_there_already_is_not_waited_for(file, topics, kafka, tmp_path):
    config = load(CONFIG, topics)
    ensure_topics(kafka, dict.fromkeys(names(topics), PARTITIONS))
    config = config.model_copy(
        update={
            "source": recorded_source(config, file, None, str(CHUNK_ROWS), tmp_path / "copies"),
            "kafka": config.kafka.model_copy(update={"bootstrap_servers": kafka.bootstrap_servers}),
        }
    )
    now = [100.0]

    def steps_at(worker: IngestWorker, seconds: float) -> int:
        now[0] = seconds
        before = worker.rows
        while worker.step():
            pass
        return (worker.rows - before) // CHUNK_ROWS

    worker = IngestWorker(config, RunDir(tmp_path), clock=lambda: now[0])
    worker.open()
    assert [steps_at(worker, s) for s in (100.0, 100.9, 101.0, 102.5)] == [1, 0, 1, 1]
    worker.close()

    resumed = IngestWorker(config, RunDir(tmp_path), clock=lambda: now[0])
    resumed.open()
    assert [steps_at(resumed, s) for s in (500.0, 500.9, 501.0)] == [4, 0, 1]
    assert resumed.resumed_rows == 3 * CHUNK_ROWS
    resumed.close()


@pytest.fixture
def playing(file, topics, kafka, tmp_path):
    """Opens a worker that plays the file as fast as it can: it has looked where to continue."""
    opened: list[IngestWorker] = []

    def play(*, steps: int = 0, kafka: KafkaSettings = kafka) -> IngestWorker:
        ensure_topics(kafka, dict.fromkeys(names(topics), PARTITIONS))
        config = load(CONFIG, topics)
        config = config.model_copy(
            update={
                "source": recorded_source(config, file, None, "full", tmp_path / "copies"),
                "kafka": config.kafka.model_copy(update={"bootstrap_servers": kafka.bootstrap_servers}),
            }
        )
        opened.append(IngestWorker(config, RunDir(tmp_path)))
        opened[-1].open()
        for _ in range(steps):
            opened[-1].step()
        opened[-1].checkpoint()
        return opened[-1]

    yield play
    for worker in opened:
        worker.abandon()


def to_the_end(worker: IngestWorker) -> None:
    while not worker.done:
        worker.step()


def whole(kafka, topics) -> bool:
    counted, feedback, markers = held(kafka, topics)
    once = counted == Counter(dict.fromkeys(range(ROWS), 1))
    return once and feedback == ROWS - len(range(0, ROWS, 3)) and markers == 2 * PARTITIONS


OVERTAKEN = "another writer of this stream has written meanwhile"


@pytest.mark.parametrize("before", [0, 2])
def test_what_a_predecessor_sent_is_there_once_though_it_comes_after_its_successor_has_looked(
    playing, topics, kafka, before
):
    predecessor = playing(steps=before)
    successor = playing()
    predecessor.step()
    predecessor.checkpoint()  # a request that was on its way: the successor sends the same
    successor.step()
    for _ in range(before):
        successor.step()
    successor.checkpoint()
    predecessor.step()
    predecessor.step()
    predecessor.checkpoint()
    try:  # refused, unless its requests happen to be cut as the predecessor's were: then the broker knows them
        to_the_end(successor)
        refused = OVERTAKEN
    except StreamingError as error:
        refused = str(error)
    assert OVERTAKEN in refused
    last = playing()
    to_the_end(last)
    assert whole(kafka, topics)
    with suppress(StreamingError):  # stopped, not killed, it goes on after the end
        to_the_end(predecessor)
    assert whole(kafka, topics)


def test_what_is_sent_again_after_the_broker_was_killed_is_there_once(playing, topics, kafka, tmp_path):
    killed = LocalBroker(tmp_path / "broker", heap_mb=256)
    try:
        running = killed.start()
        kafka = kafka.model_copy(update={"bootstrap_servers": running.bootstrap_servers})
        sender, again = playing(kafka=kafka), playing(kafka=kafka)  # two, as nobody can tell one when to send again
        sender.step()
        sender.checkpoint()
        process = psutil.Process(running.pid)
        process.kill()
        process.wait()
        assert killed.start().bootstrap_servers == running.bootstrap_servers
        again.step()
        again.checkpoint()
        to_the_end(again)
        assert whole(kafka, topics)
    finally:
        killed.stop()


def test_a_predecessor_that_is_killed_after_its_successor_has_looked_leaves_nothing_twice(
    command, playing, topics, kafka, capsys
):
    predecessor = begin(command, kafka, topics, beyond=0)
    predecessor.send_signal(signal.SIGSTOP)
    partitions = [Partition(names(topics)[0], p) for p in range(PARTITIONS)]
    successor = playing()
    there = sum(end_offsets(kafka, partitions).values())
    predecessor.send_signal(signal.SIGCONT)
    eventually(lambda: sum(end_offsets(kafka, partitions).values()) > there)
    predecessor.send_signal(signal.SIGKILL)
    predecessor.communicate()
    with suppress(StreamingError):  # where the requests of the two do not fall together
        to_the_end(successor)
        successor.close()
    assert run(capsys, command)[0] == 0
    assert whole(kafka, topics)


def test_text_out_of_order_is_there_once_though_the_command_is_killed_and_its_copy_is_lost(
    command, topics, kafka, file, tmp_path, capsys
):
    path, copies, table = tmp_path / "ratings.csv", tmp_path / "copies", pq.read_table(file)
    pyarrow.csv.write_csv(table.take(np.random.default_rng(0).permutation(ROWS)), path)
    command = [str(path), *command[1:], "--set", f"source.copies={copies}"]
    killed = begin(command, kafka, topics, beyond=2)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    before = held(kafka, topics)[0]
    assert 0 < len(before) < ROWS
    shutil.rmtree(copies)
    os.utime(path)
    assert run(capsys, command)[0] == 0
    counted, feedback, markers = held(kafka, topics)
    assert counted == Counter(dict.fromkeys(range(ROWS), 1))
    assert (feedback, markers) == (ROWS - len(range(0, ROWS, 3)), 2 * PARTITIONS)

    path.write_text(path.read_text().replace("drama", "crime", 1))
    code, _, err = run(capsys, command)
    assert code == 2
    assert "holds ratings.csv-" in err


def test_topics_with_other_partition_counts_are_the_callers_mistake(command, topics, kafka, capsys):
    ensure_topics(kafka, {names(topics)[0]: 3})
    code, _, err = run(capsys, command)
    assert code == 2
    assert "has 3 partitions, 2 are configured" in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_text("user_id,item_id\n"), "cannot be read as Parquet"),
        (lambda path: pq.write_table(pa.table({"label": [1]}), path), "has no column"),
    ],
)
def test_a_file_that_will_not_do_is_told_before_any_broker_is_asked(tmp_path, file, capsys, change, said):
    path = tmp_path / "bad.parquet"
    path.write_bytes(file.read_bytes())
    change(path)
    code, _, err = run(capsys, [str(path), "--config", CONFIG, "--run-dir", str(tmp_path / "run")])
    assert code == 2
    assert said in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--rate", "fast"], 2, "rate 'fast' is unknown"),
        (["--run-dir", "runs/x"], 2, "both name a broker"),
        (["--set", "kafka.connect_timeout_s=0.2"], 1, "no Kafka broker answers at 127.0.0.1:9"),
    ],
)
def test_exit_codes_of_options_and_of_a_broker_that_is_not_there(file, capsys, more, code, said):
    arguments = [str(file), "--config", CONFIG, "--bootstrap-servers", "127.0.0.1:9", *more]
    got, _, err = run(capsys, arguments)
    assert (got, "Traceback" in err) == (code, False)
    assert said in err


def test_a_config_without_recorded_labels_asks_for_the_feedback(file, capsys):
    code, _, err = run(capsys, [str(file), "--config", "configs/demo.yaml"])
    assert code == 2
    assert "--feedback" in err

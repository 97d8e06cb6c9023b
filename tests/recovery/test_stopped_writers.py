"""Two live augmentations: one is stopped inside a commit, another takes over and ends the stream, the first goes on.

Every place at which the first can be stopped: before Delta's write, after it, and in the tables beside the lake. It is
fenced with its words, and nothing is there twice: rows, dead letters, late feedback, blocks on the examples topic.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from pipelines.live.workers.ingest import IngestWorker
from streaming.delivery.header import Header
from streaming.kafka.topics import ensure_topics
from streaming.lake.delta.vacuum import vacuum_table
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from tests.support.pipelines.small_runs import origin, small
from tests.support.pipelines.topics import messages_of
from tests.support.places import ROOT
from tests.support.streams.lake_rows import SCHEMA, rows
from tests.support.waiting import PATIENCE_S, eventually

Start = Callable[..., "Process"]


class Process:
    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.support.streams.stopped_writer", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def until_stopped(self) -> None:
        process = psutil.Process(self._process.pid)
        eventually(lambda: self._process.poll() is not None or process.status() == psutil.STATUS_STOPPED, look_s=0.01)
        assert self._process.poll() is None, "it ended instead of being stopped"

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> tuple[int, str]:
        """Exit code and last words."""
        out, _ = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, out.strip().splitlines()[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(Process(*arguments))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.mark.parametrize(
    ("place", "table"),
    [("before", "table"), ("after", "table"), ("before", "dead_letters"), ("after", "dead_letters")],
)
def test_a_writer_stopped_inside_a_commit_doubles_nothing_when_it_goes_on(
    place: str, table: str, start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    first = start("lake", str(path), "12", place, table, "5")
    first.until_stopped()
    second = start("lake", str(path), "12", "never", "-", "0")
    assert second.end() == (0, "end")
    first.go_on()
    code, words = first.end()
    assert code == 1
    assert words.startswith(f"fenced: this writer of {path} has epoch 1, the lake has 2; a newer augmentation worker")

    found = LakeTable(path, SCHEMA).open_reader().read().table
    assert found.drop(["block"]).equals(pa.table(rows(0, 1200)).drop(["block"]))
    letters = pa.table(DeltaTable(tmp_path / "dead_letters").to_pyarrow_table())
    assert sorted(letters["source_offset"].to_pylist()) == list(range(12))


def test_vacuum_keeps_the_files_of_a_stopped_commit_that_may_still_come(start: Start, tmp_path: Path) -> None:
    """Nobody took over: the commit is valid when the process goes on, however long it stood."""
    path = tmp_path / "table"
    process = start("lake", str(path), "6", "before", "table", "5")
    process.until_stopped()
    waiting = path / "part-00000-of-the-commit-c000.zstd.parquet"
    waiting.write_bytes(b"x")
    assert vacuum_table(path, 0.0, wait_s=0.1).busy
    assert waiting.exists()
    process.go_on()
    assert process.end() == (0, "end")
    assert LakeTable(path, SCHEMA).open_reader().rows == 600
    assert vacuum_table(path, 0.0).files == 1


# --- whole workers on a broker


def ready(config: Config, root: Path) -> RunDir:
    run_dir = RunDir(root)
    root.mkdir()
    prepare(config, run_dir)
    run_dir.config.write_text(dump(config))
    kafka = config.kafka
    ensure_topics(kafka, {kafka.examples.topic: kafka.examples.partitions, kafka.dead_letters.topic: 1})
    return run_dir


def beside(run_dir: RunDir, name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = DeltaTable(run_dir.side_tables / name).to_pyarrow_table().to_pylist()
    return sorted(found, key=origin)


def published(config: Config) -> list[tuple[int, int, int]]:
    """(partition, block, part) of the examples topic, in its order."""
    messages = messages_of(config.kafka.bootstrap_servers, config.kafka.examples.topic)
    found = []
    for message in messages:
        headers = {name: value.decode() for name, value in message.headers}
        assert set(headers) == set(Header.__dataclass_fields__)
        found.append((message.partition, int(headers["block"]), int(headers["part"])))
    return found


def lake(config: Config, run_dir: RunDir) -> pa.Table:
    """Without the time on the wall at which rows were scored."""
    return LakeReader(run_dir.lake, config.rows).read().table.drop_columns(["scored_at_ms"])


@pytest.fixture(scope="module")
def stream(broker, tmp_path_factory) -> tuple[Config, Config, RunDir]:
    """Topics that hold a whole stream; a config that reads them, and what a run without disturbance left behind."""
    config = small(
        broker.bootstrap_servers,
        source__impressions=3000,
        source__duplicate_rate=0.01,
        source__malformed_rate=0.02,
        pace={"mode": "free", "block_rows": 300, "commit_interval_s": 3600},
        kafka__examples__partitions=2,
    )
    root = tmp_path_factory.mktemp("stopped")
    kafka = config.kafka
    ensure_topics(kafka, {kafka.impressions.topic: 2, kafka.feedback.topic: 2})
    ingest = IngestWorker(config, ready(config, root / "ingest"))
    ingest.open()
    while not ingest.done:
        ingest.step()
    ingest.close()
    reference = writing_to(config, "undisturbed")
    run_dir = ready(reference, root / "undisturbed")
    process = Process("worker", str(run_dir.root), "-", "never", "-", "0")
    try:
        assert process.end() == (0, "end")
    finally:
        process.kill()
    return config, reference, run_dir


def writing_to(config: Config, name: str) -> Config:
    """The same input, other topics to write to."""
    examples = config.kafka.examples.model_copy(update={"topic": f"{config.kafka.examples.topic}-{name}"})
    letters = config.kafka.dead_letters.model_copy(update={"topic": f"{config.kafka.dead_letters.topic}-{name}"})
    kafka = config.kafka.model_copy(update={"examples": examples, "dead_letters": letters})
    return config.model_copy(update={"kafka": kafka})


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.parametrize(
    ("place", "table", "nth"),
    [("before", "augmented_examples", 4), ("after", "augmented_examples", 4), ("before", "dead_letters", 1)],
    ids=["before the write", "after the write", "between lake and dead letters"],
)
def test_an_augmentation_stopped_inside_a_commit_is_fenced_and_no_row_is_there_twice(
    place: str, table: str, nth: int, start: Start, stream: tuple[Config, Config, RunDir], tmp_path: Path
) -> None:
    input_, reference, undisturbed = stream
    config = writing_to(input_, f"{place}-{table}")
    run_dir = ready(config, tmp_path / "run")
    first = start("worker", str(run_dir.root), "-", place, table, str(nth))
    first.until_stopped()
    second = start("worker", str(run_dir.root), "-", "never", "-", "0")
    assert second.end() == (0, "end")
    first.go_on()
    code, words = first.end()
    assert code == 1
    assert words.startswith(f"fenced: this writer of {run_dir.lake} has epoch 1, the lake has 2")

    found, expected = lake(config, run_dir), lake(reference, undisturbed)
    assert found["lake_seq"].to_pylist() == list(range(found.num_rows))
    assert found.equals(expected)
    for name in ("dead_letters", "late_feedback"):
        assert beside(run_dir, name) == beside(undisturbed, name)
    assert len(beside(run_dir, "dead_letters")) > 20
    assert published(config) == published(reference)
    assert len({block for _, block, _ in published(config)}) > 8

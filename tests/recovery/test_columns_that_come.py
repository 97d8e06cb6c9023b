"""A new column comes while the stream runs, and the augmentation is killed in the middle of taking it in."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from streaming.errors import BadInput
from streaming.kafka.topics import ensure_topics
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.identifiers import LAKE_SEQ
from tests.support.pipelines.changing_rows import COUPON, augment, declared, feed, lake, live, row
from tests.support.pipelines.topics import make_inputs
from tests.support.waiting import eventually

pytestmark = pytest.mark.broker

ROWS = 3000


def last_seq(root: Path) -> int:
    try:
        return TableFiles(RunDir(root).lake).identifier(LAKE_SEQ) or 0
    except BadInput:  # no lake yet
        return -1


@pytest.fixture
def killed(tmp_path):
    """Runs the augmentation in a process of its own, and kills it as soon as `moment` has come."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.support.pipelines.changing_rows"])
    started = []

    def until(config: Config, root: Path, moment: Callable[[], bool]) -> None:
        process = processes.Process(target=augment, args=(dump(config), str(root)))
        process.start()
        started.append(process)
        eventually(lambda: moment() or not process.is_alive())
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL

    yield until
    for process in started:
        process.kill()
        process.join()


def test_a_column_comes_and_kills_in_the_middle_lose_nothing(broker, tmp_path, killed):
    root = tmp_path / "run"
    root.mkdir()
    config = live(broker.bootstrap_servers)
    make_inputs(config)
    prepare(config, RunDir(root))
    ensure_topics(config.kafka, {topic.topic: 1 for topic in (config.kafka.examples, config.kafka.dead_letters)})
    feed(config, *(row(n) for n in range(1000)))
    killed(config, root, lambda: last_seq(root) > 300)
    feed(config, *(row(n, coupon=f"c{n}", seen=[n]) for n in range(1000, 2000)))
    killed(config, root, RunDir(root).kept_columns.exists)  # found, and not yet in the lake
    killed(config, root, lambda: last_seq(root) > 1100)
    feed(config, *(row(n) for n in range(2000, ROWS)))
    wider = declared(config, COUPON, {"name": "seen", "type": "list<int64>", "nullable": True})
    killed(wider, root, lambda: last_seq(root) >= ROWS - 20)  # declared by now: the same columns
    found = lake(wider, root, "lake_seq", "coupon", "seen")
    with_it = range(1000, 2000)
    assert found == [
        {
            "impression_id": n,
            "lake_seq": n,
            "coupon": f"c{n}" if n in with_it else None,
            "seen": [n] if n in with_it else None,
        }
        for n in range(len(found))
    ]
    assert len(found) >= ROWS - 20

"""Processes killed with SIGKILL, under the command a person types: workers first, then the coordinator itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.config import dump
from pipelines.layout import RunDir, read_json
from tests.contracts.pipeline_fixtures import Finished, assert_learned_the_lake, small, to_the_end

pytestmark = [pytest.mark.broker, pytest.mark.ray, pytest.mark.slow]

STREAM: dict[str, Any] = {"source__impressions": 6000, "pace__block_rows": 200}  # 33 blocks, each waits for the teacher
PATIENCE_S = 300
COMMAND = "import sys; from pipelines.cli import main; sys.exit(main())"


class Command:
    """`exfm stream` in a process of its own."""

    def __init__(self, config: Path, run_dir: Path, log: Path) -> None:
        arguments = ["stream", str(config), "--until-end", "--run-dir", str(run_dir)]
        with log.open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *arguments], stdout=out, stderr=out, start_new_session=True
            )
        self.log = log
        self.run_dir = RunDir(run_dir)
        self.seen: set[psutil.Process] = set()

    def until(self, what: Callable[[dict[str, Any]], Any]) -> Any:
        """Wait for status.json to say something of this process; returns what `what` found."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            self.look()
            status = read_json(self.run_dir.status)
            if status is not None and status["pid"] == self.process.pid and (found := what(status)):
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {PATIENCE_S} s; status {json.dumps(status)[:2000]}")

    def look(self) -> None:
        """Remember every process below this one: broker, Ray, workers."""
        with suppress(psutil.NoSuchProcess):
            self.seen.update(psutil.Process(self.process.pid).children(recursive=True))

    def wait(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            self.look()
            time.sleep(0.1)
        code = self.process.poll()
        assert code is not None, "the command does not end"
        return code

    def kill(self) -> None:
        self.look()
        self.process.kill()
        self.process.wait()

    def clean_up(self) -> None:
        self.look()
        self.process.kill()
        for process in self.seen:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def worker_pid(name: str, rows: int) -> Callable[[dict[str, Any]], int | None]:
    """The pid of a worker that runs and has done so many rows."""

    def found(status: dict[str, Any]) -> int | None:
        worker = status["workers"].get(name, {})
        return worker["pid"] if worker.get("state") == "running" and (worker.get("rows") or 0) >= rows else None

    return found


def gone(processes: set[psutil.Process], within_s: float = 60.0) -> list[str]:
    """Those that live on after a while, as text."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [" ".join(process.cmdline())[:200] for process in alive if process.is_running()]


@pytest.fixture
def command(tmp_path):
    """Starts the command in the test's folder; whatever happens, nothing of it outlives the test."""
    started: list[Command] = []

    def start(config: Path) -> Command:
        started.append(Command(config, tmp_path / "run", tmp_path / "out.txt"))
        return started[-1]

    yield start
    for each in started:
        each.clean_up()


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory) -> Finished:
    return to_the_end(small(broker.bootstrap_servers, **STREAM), tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.timeout(900)
def test_kill_9_of_workers_and_of_the_coordinator_changes_no_figure_and_leaves_nothing_behind(
    undisturbed, broker, command, tmp_path
):
    config = small(broker.bootstrap_servers, **STREAM)
    config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap_servers": None})})
    path, root = tmp_path / "config.yaml", tmp_path / "run"
    path.write_text(dump(config))

    first = command(path)
    for name in ("augmentation", "teacher", "student-feed"):
        os.kill(first.until(worker_pid(name, rows=100)), signal.SIGKILL)
        assert first.until(lambda status, name=name: status["workers"][name]["restarts"]) == 1
    first.until(worker_pid("teacher", rows=1))
    first.kill()

    second = command(path)
    assert second.wait() == 0, second.log.read_text()[-3000:]
    assert gone(first.seen | second.seen) == []
    everything = psutil.process_iter(["cmdline"])
    assert [p.info["cmdline"] for p in everything if str(root) in " ".join(p.info["cmdline"] or [])] == []

    finished = Finished(config, root)
    assert finished.summary["students"] == undisturbed.summary["students"]
    assert finished.summary["counts"] == undisturbed.summary["counts"]
    assert finished.rows.equals(undisturbed.rows)
    assert_learned_the_lake(finished)

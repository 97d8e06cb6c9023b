"""`exfm stream` in a process of its own, and what its status says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from pipelines.core.run_dir.paths import RunDir
from streaming.store.files import read_json
from tests.support.waiting import eventually

COMMAND = "import sys; from pipelines.cli.entry import main; sys.exit(main())"


LOOK_S = 0.1


LOG_CHARS = 2500


class Command:
    """`exfm stream` in a process."""

    def __init__(
        self,
        config: Path,
        run_dir: Path,
        log: Path,
        patience_s: float = 300,
        *,
        until_end: bool = True,
        options: Sequence[str] = (),
    ) -> None:
        arguments = [
            "stream",
            str(config),
            "--run-dir",
            str(run_dir),
            *(["--until-end"] if until_end else []),
            *options,
        ]
        with log.open("a") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *arguments], stdout=out, stderr=out, start_new_session=True
            )
        self.log = log
        self.run_dir = RunDir(run_dir)
        self.seen: set[psutil.Process] = set()
        self._patience_s = patience_s

    @property
    def status(self) -> dict[str, Any] | None:
        """What status.json says of this process; None until it says something."""
        self.look()
        value = read_json(self.run_dir.status)
        return value if value is not None and value["pid"] == self.process.pid else None

    def until(self, what: Callable[[dict[str, Any]], Any]) -> Any:
        """Wait for status.json to say something of this process; returns what `what` found."""

        def holds() -> Any:
            assert self.process.poll() is None, self.log.read_text()[-LOG_CHARS:]
            status = self.status
            return status is not None and what(status)

        return eventually(holds, self._told, look_s=LOOK_S, within_s=self._patience_s)

    def look(self) -> None:
        """Remember every process below this one: broker, Ray, workers."""
        with suppress(psutil.NoSuchProcess):
            self.seen.update(psutil.Process(self.process.pid).children(recursive=True))

    def wait(self) -> int:
        def holds() -> bool:
            self.look()
            return self.process.poll() is not None

        eventually(holds, self._told, look_s=LOOK_S, within_s=self._patience_s)
        return self.process.returncode

    def _told(self) -> str:
        return f"not within {self._patience_s} s; status {json.dumps(self.status)[:2000]}"

    def kill(self) -> None:
        self.look()
        self.process.kill()
        self.process.wait()

    def kill_everything(self) -> None:
        """The command and every process below it, broker, Ray and workers, at once."""
        self.look()
        for process in (psutil.Process(self.process.pid), *self.seen):
            with suppress(psutil.NoSuchProcess):
                process.kill()
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


def rank_pid(name: str, rank: int, rows: int) -> Callable[[dict[str, Any]], int | None]:
    """The pid of one rank of a worker that runs, once they have done so many rows together."""

    def found(status: dict[str, Any]) -> int | None:
        ranks = status["workers"].get(name, {}).get("ranks") or []
        return ranks[rank]["pid"] if rank < len(ranks) and worker_pid(name, rows)(status) else None

    return found


def gone(processes: set[psutil.Process], within_s: float = 60.0) -> list[str]:
    """Those that live on after a while, as text."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [" ".join(process.cmdline())[:200] for process in alive if process.is_running()]

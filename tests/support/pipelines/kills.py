"""`exfm stream` in a process of its own, and a seeded hail of SIGKILL on everything that belongs to it.

    with Hail(config, root, seed=7, victims=victims_of(config)).finished(at_least=50, wait_s=900) as finished:
        assert_learned_the_lake(finished)

A victim is killed a seeded moment after it was seen to work: a worker has done rows in this very process, the broker
runs, the coordinator tells of a lake that has grown; every fourth, as soon as it lives, which may be while it takes up
where its predecessor fell. Whoever watches it starts it again: the coordinator its workers and its broker, this module
the command.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from streaming.broker.broker import LocalBroker
from streaming.store.files import read_json
from tests.support.pipelines.commands import LOOK_S, Command, gone, rank_pid, worker_pid
from tests.support.pipelines.small_runs import Finished
from tests.support.waiting import eventually

COORDINATOR, BROKER, EVERYTHING = "coordinator", "broker", "everything"
EARLY = 0.25
LOG_LINES = 25


def victims_of(config: Config) -> list[str]:
    """Everything that can be killed: of a worker that is several processes, each rank, as `teacher:1`."""
    workers = ["ingest", "augmentation", "teacher", *(f"student-{student.name}" for student in config.students)]
    workers += [f"teacher:{rank}" for rank in range(1, config.teacher.ranks)]
    workers += [f"student-{student.name}:{rank}" for student in config.students for rank in range(1, student.ranks)]
    return [*workers, BROKER, COORDINATOR]


@dataclass(frozen=True)
class Kill:
    at_s: float
    victim: str
    pid: int
    early: bool
    lake_rows: int

    def __str__(self) -> str:
        when = "as soon as it lived" if self.early else "at work"
        return f"{self.at_s:7.1f} s  {self.victim:<20} pid {self.pid:<8} lake {self.lake_rows:>8,} rows  {when}"


class Hail:
    """One stream from its start to its end, with kills on the way.

    victims: everyone once, in an order drawn anew each time round, until the stream has ended.
    patience_s: for a victim to be seen at work; one that is not is passed over.
    """

    def __init__(
        self,
        config: Config,
        root: Path,
        *,
        seed: int,
        victims: Sequence[str],
        most: int | None = None,
        longest_wait_s: float = 1.0,
        patience_s: float = 60.0,
    ) -> None:
        root.parent.mkdir(parents=True, exist_ok=True)
        config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap_servers": None})})
        self.run_dir = RunDir(root)
        self.kills: list[Kill] = []
        self.passed_over: Counter[str] = Counter()
        self.commands: list[Command] = []
        self._path = root.with_suffix(".yaml")
        self._path.write_text(dump(config))
        self._log = root.with_suffix(".log")
        self._config = config
        self._broker = LocalBroker(self.run_dir.broker, heap_mb=config.kafka.heap_mb)
        self._seed, self._random = seed, random.Random(seed)
        self._victims, self._most = list(victims), most
        self._longest_wait_s, self._patience_s = longest_wait_s, patience_s
        self._began = time.monotonic()
        self._lake_rows = 0

    # --- from start to end ---------------------------------------------------------------------------------------

    def until_the_end(self, at_least: int, wait_s: float) -> list[Kill]:
        """Kill until the stream has ended. AssertionError, with all there is to know, where that does not go well."""
        deadline = time.monotonic() + wait_s
        self._start()
        while self._lives() and (self._most is None or len(self.kills) < self._most):
            for victim in self._random.sample(self._victims, len(self._victims)):
                if not self._lives() or len(self.kills) == self._most:
                    break
                assert time.monotonic() < deadline, self.told(f"not at its end after {wait_s:g} s")
                self._strike(victim)
        left_s = deadline - time.monotonic()
        eventually(
            lambda: not self._lives(),
            lambda: self.told(f"not at its end after {wait_s:g} s"),
            look_s=LOOK_S,
            within_s=left_s,
        )
        assert len(self.kills) >= at_least, self.told(f"the stream ended after {len(self.kills)} kills of {at_least}")
        return self.kills

    @contextmanager
    def finished(self, at_least: int, wait_s: float) -> Iterator[Finished]:
        """`until_the_end`; nothing that belonged to it may live on; then what it left, its topics in reach."""
        self.until_the_end(at_least, wait_s)
        print(self.told("done"))
        assert gone({process for command in self.commands for process in command.seen}) == []
        named = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
        assert [words for words in named if str(self.run_dir.root) in " ".join(words)] == []
        servers = self._broker.start().bootstrap_servers
        kafka = self._config.kafka.model_copy(update={"bootstrap_servers": servers})
        yield Finished(self._config.model_copy(update={"kafka": kafka}), self.run_dir.root)

    def _start(self) -> None:
        self.commands.append(Command(self._path, self.run_dir.root, self._log))

    def _lives(self) -> bool:
        """False at the stream's end. AssertionError where the command gave up."""
        command = self.commands[-1]
        command.look()
        code = command.process.poll()
        assert code in (None, 0), self.told(f"the command ended with exit code {code}")
        return code is None

    def _strike(self, victim: str) -> None:
        early = self._random.random() < EARLY
        pid = self._found(victim, early)
        if pid is None:
            self.passed_over[victim] += 1
            return
        time.sleep(self._random.uniform(0, self._longest_wait_s))  # work: kills come at seeded moments
        if not self._lives():
            return
        if victim == COORDINATOR:
            self.commands[-1].kill()
        elif victim == EVERYTHING:
            self.commands[-1].kill_everything()
        else:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has died of somebody else's death
                self.passed_over[victim] += 1
                return
        self.kills.append(Kill(time.monotonic() - self._began, victim, pid, early, self._lake_rows))
        if victim in (COORDINATOR, EVERYTHING):
            self._start()

    def _found(self, victim: str, early: bool) -> int | None:
        """The pid of a victim, at work or (early) as soon as it lives; None where our patience ends, or its work."""
        deadline = time.monotonic() + self._patience_s
        before = self._lake_rows
        worker, _, rank = victim.partition(":")
        while self._lives() and time.monotonic() < deadline:
            status = self.commands[-1].status
            if status is not None and status["state"] in ("running", "starting", "draining"):
                self._lake_rows = max(self._lake_rows, status["lake"]["rows"])
                begun = early or status["state"] != "starting"
                pid: int | None = None
                if victim in (COORDINATOR, EVERYTHING):
                    if early or (begun and self._lake_rows > before):
                        pid = self.commands[-1].process.pid
                elif victim == BROKER:
                    pid = status["broker"]["pid"] if begun else None
                elif status["workers"].get(worker, {}).get("state") == "done":
                    return None
                elif early:
                    pid = self._logged_pid(f"{worker}-rank{rank}" if rank else worker)
                else:
                    pid = (rank_pid(worker, int(rank), rows=1) if rank else worker_pid(worker, rows=1))(status)
                if pid is not None and psutil.pid_exists(pid):
                    return pid
            time.sleep(LOOK_S)  # work: a victim that does not work is passed over, so patience ends
        return None

    def _logged_pid(self, worker: str) -> int | None:
        """The newest process of a worker: each tells its pid before it does anything else."""
        path = self.run_dir.logs / f"{worker}.log"
        told = re.findall(r" pid (\d+) on ", path.read_text(errors="replace")) if path.exists() else []
        ours = {process.pid for process in self.commands[-1].seen if process.is_running()}
        return int(told[-1]) if told and int(told[-1]) in ours else None

    # --- what there is to know -----------------------------------------------------------------------------------

    @property
    def by_victim(self) -> Counter[str]:
        return Counter(kill.victim for kill in self.kills)

    def told(self, what: str) -> str:
        """`what`, the seed, every kill, and how each log ends."""
        lines = [what, f"seed {self._seed}; {len(self.kills)} kills; passed over {dict(self.passed_over)}"]
        lines += [str(kill) for kill in self.kills]
        status = read_json(self.run_dir.status)
        lines.append(f"status {json.dumps(status)[:3000]}")
        for path in (self._log, *sorted(self.run_dir.logs.glob("*.log")), self.run_dir.broker / "broker.log"):
            if path.exists():
                said = [line for line in path.read_text(errors="replace").splitlines() if "[TBE=" not in line]
                lines.append("\n".join([f"--- {path.name}", *said[-LOG_LINES:]]))
        return "\n".join(lines)

    def clean_up(self) -> None:
        for command in self.commands:
            command.clean_up()
        self._broker.stop()


KILLED: dict[str, Any] = {
    "source__duplicate_rate": 0.01,
    "source__malformed_rate": 0.0,  # `expected_rows` does without
    "source__chunk_rows": 50,
    "pace__block_rows": 128,
    "kafka__examples__partitions": 2,
    "kafka__heap_mb": 256,
    "resources": {"min_free_disk_gb": 0, "max_restarts": 1000, "restart_window_s": 1, "cpus_per_worker": 0.1},
}


MODEL = {"width": 4, "trunk": {"name": "dlrm", "mlp": [16], "bottom": [8]}}


ONE_STUDENT = {"name": "feed", "twin": True, "batch_rows": 100, "checkpoint_every_rows": 300, "model": MODEL}


SHORT = KILLED | {"source__impressions": 3000, "students": [ONE_STUDENT]}

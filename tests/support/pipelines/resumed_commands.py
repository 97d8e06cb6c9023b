"""`exfm stream` started in folders of their own, gone on with under other settings, and their ranks found by pid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from tests.support.pipelines.commands import Command
from tests.support.pipelines.small_runs import Finished, everything
from tests.support.waiting import eventually

SETTINGS: dict[str, Any] = {
    "source__impressions": 3000,
    "source__malformed_rate": 0.0,  # `expected_rows` does without
    "source__chunk_rows": 50,
    "source__rate": "400",
    "pace__block_rows": 128,
    "augmentation__score_rows": 50,
    "students": [
        {
            "name": "feed",
            "batch_rows": 100,
            "checkpoint_every_rows": 300,
            "model": {"width": 4, "trunk": {"name": "dlrm", "mlp": [16], "bottom": [8]}},
        }
    ],
    "resources": {"min_free_disk_gb": 0, "max_restarts": 1000, "restart_window_s": 1, "cpus_per_worker": 0.1},
}
"""A slow small stream with all features, of which ranks are killed half-way."""

Start = Callable[..., tuple[Command, Config]]


@contextmanager
def resumed_commands(servers: str, folder: Path, settings: Mapping[str, Any]) -> Iterator[Start]:
    """What starts `exfm stream` in folder/NAME, or goes on with it, under changes of `settings`; nothing of it outlives
    the context."""
    commands: list[Command] = []
    configs: dict[str, Config] = {}

    def start(name: str, **changes: Any) -> tuple[Command, Config]:
        before = configs.get(name)
        config = everything(servers, **SETTINGS | dict(settings) | changes)
        if before is not None:
            config = config.model_copy(update={"kafka": before.kafka})
        configs[name] = config
        path = folder / f"{name}.yaml"
        path.write_text(dump(config))
        commands.append(Command(path, folder / name, path.with_suffix(".log")))
        return commands[-1], config

    try:
        yield start
    finally:
        for command in commands:
            command.clean_up()


def finished(command: Command, config: Config) -> Finished:
    code = command.wait()
    assert code == 0, command.log.read_text()[-2000:]
    return Finished(config, command.run_dir.root)


def newest_pid(run_dir: RunDir, name: str) -> int:
    """The newest process that the log of a worker, or of a rank, tells of, once it runs."""

    def newest() -> int:
        return int(re.findall(r" pid (\d+) on ", (run_dir.logs / f"{name}.log").read_text())[-1])

    eventually(lambda: psutil.pid_exists(newest()))
    return newest()


def rows_in_lake(at_least: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: bool(status["lake"]["rows"] >= at_least)

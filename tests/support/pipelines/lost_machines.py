"""Machines that run a run of an object store one after another, and are lost with their disks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.object_storage import working_copy
from pipelines.core.run_dir.paths import RunDir
from streaming.store.working_copy import copy_of
from tests.support.pipelines.commands import Command
from tests.support.pipelines.small_runs import Finished


class Machines:
    """Machines that run one command on the same run, one after another, each with a cache of its own."""

    def __init__(self, config: Config, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url, self._folder, self._monkeypatch, self._count = url, folder, monkeypatch, 0
        self.patience_s = 300.0
        self.commands: list[Command] = []
        self._config = folder / "config.yaml"
        self._config.write_text(dump(config.model_copy(update={"run_dir": url})))

    def another(self) -> Path:
        """Go to a new machine; returns where its working copy will be."""
        self._count += 1
        cache = self._folder / f"machine-{self._count}"
        self._monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        return cache / "exfm" / "runs" / self.url.replace("://", "/")

    def start(self) -> Command:
        root = self.another()
        command = Command(self._config, Path(self.url), self._folder / "log", self.patience_s, options=["--local"])
        command.run_dir = RunDir(root)
        self.commands.append(command)
        return command

    def lose(self, command: Command) -> None:
        """The machine, with its disk."""
        command.kill()  # all workers are in this process
        shutil.rmtree(command.run_dir.root)

    def look(self, config: Config) -> Finished:
        """What the run left, from a machine that had no part in it."""
        self.another()
        root = working_copy(self.url)
        copy = copy_of(root)
        assert copy is not None
        for found in copy.store.list("lake/"):
            copy.fetched(root / found.key)
        return Finished(config, root)

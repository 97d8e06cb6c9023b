"""`exfm promote` and `exfm rollback` on a run that lives, in the processes that it has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from pipelines.core.config.settings import dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.track.registry.ledger import HAND, Ledger
from streaming.store.files import read_json
from tests.support.pipelines.commands import COMMAND, Command, worker_pid
from tests.support.pipelines.kills import KILLED
from tests.support.pipelines.small_runs import everything

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.broker, pytest.mark.timeout(600)]


def asked(root: Path, *words: str) -> dict[str, Any]:
    """What the command says, as a person gives it."""
    command = [sys.executable, "-c", COMMAND, *words, "--run-dir", str(root), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def champion(status: dict[str, Any]) -> str | None:
    versions = status["workers"].get("student-feed", {}).get("versions") or {}
    return versions.get("champion")


def test_a_person_promotes_and_rolls_back_while_the_run_lives_and_the_worker_is_killed_in_between(broker, tmp_path):
    changes = KILLED | {
        "source__impressions": 20_000,
        "source__rate": 200,
        "registry__promotion": "by_hand",
        "tracking__enabled": True,
    }
    config = everything(broker.bootstrap_servers, **changes)
    config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap_servers": None})})
    root, log = tmp_path / "run", tmp_path / "run.log"
    path = tmp_path / "run.yaml"
    path.write_text(dump(config))
    command = Command(path, root, log)
    ledger = Ledger(RunDir(root), "feed")
    try:
        command.until(lambda status: ledger.aliases().candidate)
        first = asked(root, "promote", "feed", "--reason", "the first one")["champion"]
        command.until(lambda status: champion(status) == first)  # the worker took it up
        command.until(lambda status: ledger.aliases().candidate)
        promoted = asked(root, "promote", "feed", "--reason", "seen live")
        candidate = promoted["champion"]
        assert (candidate != first, promoted["previous"], promoted["changed"]) == (True, first, True)
        command.until(lambda status: champion(status) == candidate)
        os.kill(command.until(worker_pid("student-feed", rows=1)), signal.SIGKILL)
        command.until(lambda status: status["workers"]["student-feed"]["restarts"] > 0)
        command.until(lambda status: champion(status) == candidate)
        back = asked(root, "rollback", "feed", "--reason", "bad ads")
        assert (back["champion"], back["previous"]) == (first, None)
        command.until(lambda status: champion(status) == first)
        assert command.wait() == 0, log.read_text()[-3000:]
    finally:
        command.clean_up()
    by_hand = [(e["action"], e["version"], e["reason"]) for e in ledger.entries() if e["by"] == HAND]
    assert by_hand == [
        ("promoted", first, "the first one"),
        ("promoted", candidate, "seen live"),
        ("rolled back", first, "bad ads"),
    ]
    assert ledger.aliases().champion == first
    status = read_json(RunDir(root).status)
    assert status is not None
    assert status["state"] == "done"
    client = MlflowClient(f"sqlite:///{RunDir(root).mlflow}")
    aliased = client.get_model_version_by_alias(f"{config.name}-feed", "champion")
    assert aliased.tags["position"] == first

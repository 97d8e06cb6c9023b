"""A real Prometheus for tests, where there is one (Debian: `apt-get install prometheus`); and recorded figures."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streaming.ports import free_port
from tests.support.places import ROOT
from tests.support.waiting import eventually

RECORDED = ROOT / "tests" / "fixtures" / "metrics"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no Prometheus here; Debian: apt-get install prometheus"
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here; Debian: apt-get install prometheus"
)


def recorded_status() -> dict[str, Any]:
    """The status.json of a demo at work, in free pace; its alarm is of another one."""
    value: dict[str, Any] = json.loads((RECORDED / "status.json").read_text())
    return value


def recorded_server() -> str:
    """What a server said at `/metrics` that followed a student of that demo."""
    return (RECORDED / "server.prom").read_text()


def promtool(*arguments: str, text: str | None = None, cwd: Path | None = None) -> str:
    """Output of promtool, which has to be content."""
    done = subprocess.run(["promtool", *arguments], input=text, cwd=cwd, capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


class Prometheus:
    """A Prometheus that runs, by its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def answers(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant query."""
        result: list[dict[str, Any]] = self.answers("query", query=expression)["result"]
        return result


@contextmanager
def prometheus(folder: Path, config: str, rules: str) -> Iterator[Prometheus]:
    """Run a Prometheus with these files, until the context ends."""
    (folder / "prometheus.yml").write_text(config)
    (folder / "exfm.rules.yml").write_text(rules)
    port = free_port()
    command = [
        "prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        eventually(lambda: _ready(found), look_s=0.05, within_s=60)
        yield found
    finally:
        running.terminate()
        running.wait(30)


def _ready(server: Prometheus) -> bool:
    try:
        return bool(server.answers("targets"))
    except OSError:
        return False

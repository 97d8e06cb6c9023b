"""`exfm serve` in a process of its own."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.prediction_request import PredictionRequest
from pipelines.serve.version import ServedVersion
from tests.support.pipelines.commands import COMMAND
from tests.support.pipelines.served_runs import ROWS
from tests.support.waiting import PATIENCE_S

BODY = json.dumps({"rows": ROWS})


def predicted(root: Path, version: str) -> list[float]:
    """What a version predicts, loaded here."""
    config = config_of(RunDir(root))
    served = ServedVersion("feed", version, RunDir(root).versions("feed") / version, config.rows, {})
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    found: list[float] = served.answer(PredictionRequest(columns, {}, len(ROWS))).probabilities[:, 0].tolist()
    return found


class ServeCommand:
    """A command that serves, and its port."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port, self.killed = process, port, False

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait()

    def ask(self) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("POST", "/v1/models/feed:predict", BODY, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def answering(self, count: int, without: int | None = None) -> set[int]:
        """The processes that answer, once there are so many."""
        found: set[int] = set()
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline
            with suppress(ConnectionError, http.client.HTTPException):
                text = urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_S).read()
                found |= {int(pid) for pid in re.findall(r'exfm_swaps_total\{process="(\d+)"', text.decode())} - {
                    without
                }
        return found


@contextmanager
def serving(root: Path, *options: str) -> Iterator[ServeCommand]:
    words = ["serve", "feed", "--run-dir", str(root), "--port", "0", "--no-access-log", *options]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"https?://127\.0\.0\.1:(\d+)", line)
        assert found is not None, line + process.stderr.read()
        threading.Thread(target=process.stderr.read, daemon=True).start()
        command = ServeCommand(process, int(found[1]))
        yield command
        if not command.killed:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) in (0, 130)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
        process.wait()

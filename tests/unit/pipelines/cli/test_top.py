"""`exfm top` on a real terminal: it follows a run, Ctrl-C leaves the view and not the run, and it ends with the run."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pipelines.cli import console as cli
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.states import RunState
from pipelines.live.status.file import StatusFile
from pipelines.live.status.status import RunStatus
from tests.support.waiting import PATIENCE_S

TOP = "from pipelines.cli.console import main; main()"


@contextmanager
def top_of(run_dir: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command, and the terminal that it runs on."""
    ours, its = pty.openpty()
    command = [sys.executable, "-c", TOP, "top", "--run-dir", str(run_dir), "--every", "0.1"]
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environ, start_new_session=True)
    os.close(its)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def shown(terminal: int, wanted: str, within_s: float = PATIENCE_S) -> str:
    """What comes on the terminal until it has `wanted`, or there is nothing more."""
    text, deadline = "", time.monotonic() + within_s
    with suppress(OSError):  # the other end is closed
        while wanted not in text and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                text += os.read(terminal, 1 << 16).decode(errors="replace")
    return text


def wrote(status: RunStatus, root: Path) -> None:
    StatusFile(RunDir(root).status).write(status.as_json)


def test_it_follows_a_run_and_ctrl_c_leaves_the_view_alone(tmp_path: Path) -> None:
    status = RunStatus("mine", RunState.RUNNING)
    wrote(status, tmp_path)
    with top_of(tmp_path) as (process, terminal):
        assert "0 rows in 0 files" in shown(terminal, "the run goes on")
        status.lake.rows = 4321
        wrote(status, tmp_path)
        assert "4,321 rows" in shown(terminal, "4,321 rows")
        process.send_signal(signal.SIGINT)
        shown(terminal, "\0")
        assert process.wait(PATIENCE_S) == 0


def test_it_ends_with_the_run(tmp_path: Path) -> None:
    status = RunStatus("mine", RunState.RUNNING)
    wrote(status, tmp_path)
    with top_of(tmp_path) as (process, terminal):
        shown(terminal, "the run goes on")
        status.state = RunState.DONE
        wrote(status, tmp_path)
        assert "mine: done" in shown(terminal, "\0").replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert process.wait(PATIENCE_S) == 0


def test_without_a_terminal_it_says_what_is_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["top", "--run-dir", str(tmp_path)])
    assert left.value.code == 2
    assert "status --json` is for scripts" in capsys.readouterr().err

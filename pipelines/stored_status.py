"""Another process's run, known by its status.json."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markup import escape

from pipelines.layout import RunDir, read_json
from pipelines.screen import duration, worker_table
from streaming.errors import BadInput, StreamingError

ENDED = ("done", "failed", "stopped")


def read_status(root: Path) -> dict[str, Any]:
    value: dict[str, Any] | None = read_json(RunDir(root).status)
    if value is None:
        raise BadInput(f"no run in {root} (no status.json there); start one with `exfm stream CONFIG --run-dir {root}`")
    return value


def alive(value: dict[str, Any]) -> bool:
    """Whether the coordinator that wrote this still runs. A pid taken over by somebody else does not count."""
    try:
        process = psutil.Process(value["pid"])
        written = datetime.fromisoformat(value["updated_at"]).timestamp()
        lives = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return lives and process.create_time() <= written and value["state"] not in ENDED
    except psutil.NoSuchProcess:
        return False


def show(value: dict[str, Any], running: bool) -> None:
    console = Console()
    state = value["state"]
    if not running and state not in ENDED:
        state = f"{state} when last heard of ({value['updated_at']}); its coordinator (pid {value['pid']}) is gone"
    share = "" if value["fraction"] is None else f", {value['fraction']:.0%}"
    console.print(f"[bold]{value['name']}[/bold]: {state}{share}, {duration(value['wall_s'])}", highlight=False)
    if value["reason"]:
        console.print(f"[yellow]{escape(value['reason'])}[/yellow]", highlight=False)
    console.print(worker_table(value["workers"], console.width))
    lake, broker = value["lake"], value["broker"]
    console.print(
        f"lake: {lake['rows']:,} rows in {lake['files']} files, {lake['bytes'] / 2**20:.1f} MB · "
        f"broker: {broker['bootstrap_servers']}",
        highlight=False,
    )


def stop_run(value: dict[str, Any], root: Path, wait_s: float) -> str:
    """Ask the coordinator to end and wait for it. Raises StreamingError when it does not."""
    if not alive(value):
        return f"nothing runs in {root} ({value['state']})"
    os.kill(value["pid"], signal.SIGTERM)
    end = time.monotonic() + wait_s
    while alive(value):
        if time.monotonic() > end:
            raise StreamingError(
                f"the coordinator (pid {value['pid']}) did not end within {wait_s:g} s; see {RunDir(root).logs}, "
                "or wait longer with --wait"
            )
        time.sleep(0.2)
    return f"stopped {value['name']}; `exfm stream` with the same config and --run-dir resumes it"

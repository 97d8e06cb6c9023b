"""Ranks for benchmarks: a script starts itself again, once for each rank."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from streaming.ports import free_port

FLAG = "--as-rank"


def launch(script: str, world: int, settings: dict[str, Any], *, timeout_s: float) -> Any:
    """Run `script` as each of `world` ranks, and give back what rank 0 `report`s. No rank outlives this call."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        own = settings | {"world": world, "port": port, "out": str(Path(folder) / "reported.pt")}
        python = [sys.executable, "-W", "ignore", "-m", f"tests.benchmarks.{Path(script).stem}"]
        commands = [[*python, FLAG, json.dumps(own | {"rank": r})] for r in range(world)]
        ranks = [subprocess.Popen(command) for command in commands]
        until = time.monotonic() + timeout_s
        try:
            for rank in ranks:
                if rank.wait(max(0.0, until - time.monotonic())):
                    raise SystemExit(f"a rank of {world} ended with {rank.returncode}; what it said stands above")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        return torch.load(own["out"], weights_only=False)


def settings_of_this_rank() -> dict[str, Any] | None:
    """With `rank`, `world`, `port` and `out` among them; None in the process that was started by hand."""
    return json.loads(sys.argv[2]) if sys.argv[1:2] == [FLAG] else None


def report(settings: dict[str, Any], result: Any) -> None:
    """From rank 0; what others say is dropped."""
    if settings["rank"] == 0:
        torch.save(result, settings["out"])

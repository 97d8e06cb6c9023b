"""A sweep that is interrupted, and then killed, goes on with the same command and says what it would have said."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

SWEEP = {
    "config": str(Path("configs/demo.yaml").resolve()),
    "set": [
        "source.impressions=20000",
        "source.users=1000",
        "source.ads=100",
        "source.base_rate_scale=5",
        "pace.block_rows=2048",
    ],
    "seeds": [1, 2],
    "students": ["feed"],
    "arms": {
        "none": {"set": {"arm": {"kind": "none"}}, "tune": {"dense_lr": [0.004, 0.008]}},
        "auxiliary head": {"set": {"arm": {"kind": "auxiliary_head"}}, "tune": {"dense_lr": [0.004, 0.008]}},
    },
    "conditions": {"fresh": {}, "stale": {"behind": 2}},
}
TIMES = {"seconds", "rows_per_s", "cost_ratio", "training"}


def untimed(value: Any) -> Any:
    """Without what took how long, also in words, and without the folder that it is in."""
    if isinstance(value, str):
        return re.sub(r"--out \S+$", "--out …", re.sub(r"training takes [\d.]+ × as long", "training takes …", value))
    if isinstance(value, dict):
        return {key: untimed(item) for key, item in value.items() if key not in TIMES}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def test_the_same_command_goes_on_after_ctrl_c_and_after_kill_9(tmp_path):
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP, sort_keys=False))

    def start(out: str, processes: int = 2) -> subprocess.Popen[str]:
        interrupts = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        called = f"{interrupts}; from pipelines.cli.console import main"
        arguments = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / out), "--jobs", str(processes)]
        command = [sys.executable, "-c", f"{called}; main({[*arguments, '--json']!r})"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def parts() -> dict[Path, float]:
        return {path: path.stat().st_mtime for path in (tmp_path / "out").glob("*/*.npz")}

    def wait_for(kind: str) -> None:
        eventually(lambda: list((tmp_path / "out").glob(f"{kind}/*.npz")), look_s=0.05)

    sweep = start("out")
    wait_for("logits")
    os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does: the workers get it, too
    _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, err
    assert "the same command resumes" in err
    first = parts()

    sweep = start("out")
    wait_for("trials")
    sweep.kill()
    sweep.communicate(timeout=60)  # the pipes are closed once its workers are gone, too
    second = parts()
    assert {path: second[path] for path in first} == first

    sweep = start("out")
    told, err = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, err
    third = parts()
    assert {path: third[path] for path in second} == second
    assert len(third) > len(second)

    alone = start("alone", processes=1)
    expected, err = alone.communicate(timeout=240)
    assert alone.returncode == 0, err
    assert untimed(json.loads(told)) == untimed(json.loads(expected))

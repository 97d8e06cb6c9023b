"""`exfm stream`, `status` and `stop` as a person uses them: mistakes cost a sentence, never a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from datetime import UTC, datetime

import pytest
import yaml

from pipelines.cli import console as cli
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus, WorkerStatus
from streaming.store.files import write_json
from tests.support.pipelines.locks import HOLDER
from tests.support.pipelines.raw_configs import changed, small
from tests.support.waiting import PATIENCE_S

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def exfm(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def config(tmp_path):
    def write(raw):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(raw))
        return path

    return write


def told(answer, code):
    """The one paragraph on stderr of an answer with this exit code."""
    got, out, err = answer
    assert got == code, err
    assert out == ""
    assert err.startswith("exfm: ")
    assert "Traceback" not in err
    assert "\n\n" not in err
    return err


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (changed("students.0.twins", True), "students.0.twins: unknown key; did you mean `twin`?"),
        (changed("features.sparse.0.column", "user"), "features read column `user`, which rows do not have"),
        (changed("rows.tasks.1.given", "click"), "is given `click`, which is not a task; tasks: ctr, cvr"),
        (changed("teacher.model.layers", 0), "teacher.model.layers: Input should be greater than"),
        (changed("students.0.model.trunk", {"name": "wide"}), "unknown trunk `wide`; choose from wukong, dlrm"),
        (["a"], "holds a list, not a mapping of settings"),
    ],
)
def test_a_wrong_config_is_the_callers_mistake_told_in_a_paragraph(exfm, config, tmp_path, raw, words):
    assert words in told(exfm("stream", config(raw)), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]  # nothing was begun


def test_a_config_that_is_not_there(exfm):
    assert "no config at nowhere.yaml" in told(exfm("stream", "nowhere.yaml"), 2)


def test_a_broken_override(exfm, config):
    assert "write it as path=value" in told(exfm("stream", config(small()), "--set", "seed"), 2)
    said = told(exfm("stream", config(small()), "--set", "students.fed.twin=true"), 2)
    assert "`fed` is none of feed, shop" in said


def test_a_run_directory_that_cannot_be_written(exfm, config, tmp_path):
    (tmp_path / "file").touch()
    said = told(exfm("stream", config(small()), "--run-dir", tmp_path / "file" / "run"), 2)
    assert "cannot write into the run directory" in said


def test_a_full_disk_is_no_mistake_of_the_caller(exfm, config, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 1 << 28))
    assert "0.2 GB are free on the disk of runs/small, 1 GB are wanted" in told(exfm("stream", config(small())), 1)


def test_another_config_in_the_run_directory(exfm, config, tmp_path):
    run_dir = RunDir(tmp_path / "runs" / "small")
    run_dir.root.mkdir(parents=True)
    run_dir.lock.touch()
    run_dir.config.write_text(yaml.safe_dump(parse(small()).model_dump(mode="json")))
    said = told(exfm("stream", config(small()), "--set", "seed=2"), 2)
    assert "seed was 1, is 2" in said


def test_a_run_directory_in_use(exfm, config, tmp_path):
    run_dir = RunDir(tmp_path / "runs" / "small")
    run_dir.root.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run_dir.lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert "is being run by another process" in told(exfm("stream", config(small())), 2)
        assert "is being run by another process" in told(exfm("stream", config(small()), "--fresh"), 2)
        holder.kill()
    assert run_dir.lock.exists()  # --fresh deleted nothing of somebody else's run


# --- status and stop ------------------------------------------------------------------------------------------------


def stored(root, state, pid, **fields):
    status = RunStatus("demo", workers={"teacher": WorkerStatus("teacher", Kind.TEACHER)})
    write_json(RunDir(root).status, status.as_json() | {"state": state, "pid": pid} | fields)


def test_status_of_a_folder_without_a_run(exfm, tmp_path):
    said = told(exfm("status", "--run-dir", tmp_path), 2)
    assert f"no run in {tmp_path}" in said
    assert "exfm stream" in said


def test_status_as_json_is_the_file_itself(exfm, tmp_path):
    stored(tmp_path, "done", os.getpid())
    code, out, _ = exfm("status", "--run-dir", tmp_path, "--json")
    assert code == 0
    assert json.loads(out) == json.loads(RunDir(tmp_path).status.read_text()) | {"alive": False}


def test_status_tells_a_run_that_ended_from_one_that_was_killed(exfm, tmp_path):
    stored(tmp_path, "running", os.getpid())
    assert "demo: running" in exfm("status", "--run-dir", tmp_path)[1]
    gone = subprocess.Popen(["true"])
    gone.wait()
    stored(tmp_path, "running", gone.pid)
    said = exfm("status", "--run-dir", tmp_path)[1]
    assert "running when last seen" in said
    assert f"(pid {gone.pid}) is gone" in said
    stored(tmp_path, "failed", gone.pid, reason="teacher: it died 6 times")
    said = exfm("status", "--run-dir", tmp_path)[1]
    assert "demo: failed" in said
    assert "teacher: it died 6 times" in said


def test_a_pid_taken_over_by_somebody_else_is_not_taken_for_the_coordinator(exfm, tmp_path):
    long_ago = datetime.fromtimestamp(0, UTC).isoformat()
    stored(tmp_path, "running", os.getpid(), updated_at=long_ago)
    assert "is gone" in exfm("status", "--run-dir", tmp_path)[1]
    assert exfm("stop", "--run-dir", tmp_path)[1].startswith("nothing runs in")  # and this process lives on


def test_stop_ends_a_process_and_says_how_to_go_on(exfm, tmp_path):
    began = "import time; print(1, flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", began], stdout=subprocess.PIPE) as coordinator:
        coordinator.stdout.readline()  # a status is written after its process began
        stored(tmp_path, "running", coordinator.pid)
        code, out, _ = exfm("stop", "--run-dir", tmp_path)
        assert (code, coordinator.wait(PATIENCE_S)) == (0, -signal.SIGTERM)
    assert re.search(rf"stopped demo; resume it: \S*exfm stream {tmp_path}/config.yaml --run-dir {tmp_path}\n", out)


def test_stop_says_when_a_process_does_not_end(exfm, tmp_path):
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as coordinator:
        assert coordinator.stdout is not None
        coordinator.stdout.readline()
        stored(tmp_path, "running", coordinator.pid)
        said = told(exfm("stop", "--run-dir", tmp_path, "--wait", "0.3"), 1)
        coordinator.kill()
    assert f"(pid {coordinator.pid}) did not end within 0.3 s" in said


def test_what_no_start_mends_is_not_said_to_resume(tmp_path):
    from pipelines.cli.stream import _next

    failed = RunStatus("small", RunState.FAILED, "topic `ads` was deleted and created anew: start a new run")
    failed.permanent = True
    assert _next(failed, RunDir(tmp_path), finished=False) == "the same command would fail again"
    failed.permanent = False
    assert _next(failed, RunDir(tmp_path), finished=False) == "the same command resumes"

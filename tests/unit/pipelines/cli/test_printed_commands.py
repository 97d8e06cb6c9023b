"""Commands that messages and help print run as printed, from a shell that does not have the environment on its PATH."""

from __future__ import annotations

import os
import re
import socket
import subprocess

import pytest
import yaml
from typer.main import get_command

from pipelines.cli import console as cli
from pipelines.core.run_dir.paths import RunDir
from streaming.store.lock import file_lock
from tests.support.pipelines.raw_configs import small
from tests.support.places import ROOT

LONGEST = 78 - len(".venv/bin/")
"""An example of the help, in a terminal of 80 columns that calls `.venv/bin/exfm`, stands on one line."""


def pasted(line: str, folder) -> subprocess.CompletedProcess[str]:
    shell = {**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, shell=True, cwd=folder, env=shell, capture_output=True, text=True, check=False)


@pytest.fixture
def said(capsys, tmp_path, monkeypatch):
    """What `exfm` says on both streams, in an empty folder with a space in its name."""
    here = tmp_path / "my runs"
    here.mkdir()
    monkeypatch.chdir(here)

    def call(*arguments: object) -> str:
        with pytest.raises(SystemExit):
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return out + err

    return call


def examples() -> list[str]:
    found = []

    def walk(part):
        found.extend(re.findall(r"(?:Example|Try): (exfm .*)", f"{part.help or ''}\n{part.epilog or ''}"))
        for each in getattr(part, "commands", {}).values():
            walk(each)

    walk(get_command(cli.app))
    return found


def test_examples_of_the_help_stand_on_one_line_of_80_columns():
    assert len(examples()) > 15
    assert [line for line in examples() if len(f"Example: {line}") > LONGEST] == []


def test_help_and_usage_errors_call_the_program_as_this_shell_finds_it(said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    help_ = said("broker", "start", "--help")
    (example,) = re.findall(r"Example: (.*?) *\n", help_)
    assert re.search(r"Usage: \S+/exfm broker start", help_)
    assert pasted(f"{example} --help", ".").returncode == 0
    (way_out,) = re.findall(r"Try '(.*?)' for help", said("stream", "--untl-end"))
    assert pasted(way_out, ".").returncode == 0


def test_what_status_of_an_empty_folder_says_to_start_can_be_pasted(said):
    (start,) = re.findall(r"start one with `(.*?)`", said("status", "--run-dir", "a run"))
    got = pasted(f"{start} --set nonsense", ".")  # everything before the last word was understood
    assert (got.returncode, got.stderr) == (
        2,
        "exfm: --set nonsense: write it as path=value, for example --set seed=2\n",
    )


def test_what_a_run_that_is_taken_says_can_be_pasted(said, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(small()))
    run_dir = RunDir(tmp_path / "taken run")
    run_dir.root.mkdir()
    with file_lock(run_dir.lock):
        message = said("stream", config, "--run-dir", run_dir.root)
    see, end = re.findall(r"`(.*?)`", message)
    for line in (see, end):
        assert "no run in" in pasted(line, ".").stderr


def test_what_the_broker_says_can_be_pasted(said):
    (start,) = re.findall(r"start it: (.*)", said("broker", "status", "--run-dir", "a run"))
    assert pasted(f"{start} --help", ".").returncode == 0


def test_a_port_that_another_process_has_is_named_before_anything_starts(said, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "run.yaml"
        config.write_text(yaml.safe_dump(small(kafka={"port": port})))
        message = said("stream", config, "--run-dir", "run")
    assert f"port {port} on 127.0.0.1 is occupied by process {os.getpid()}" in message
    assert "`kafka.port`" in message
    assert "starting Ray" not in message
    assert "starting the embedded" not in message


def test_a_bootstrap_server_that_does_not_answer_is_named_before_anything_starts(said, tmp_path):
    kafka = {"bootstrap_servers": "127.0.0.1:1", "connect_timeout_s": 0.3}
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(small(kafka=kafka)))
    message = said("stream", config, "--run-dir", "run")
    assert "no Kafka broker answers at 127.0.0.1:1 (tried 0.3 s); start it" in message
    assert "starting Ray" not in message

"""Commands in messages: pasted into a shell, they run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.program import command

ELSEWHERE = {**os.environ, "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(("program", "arguments"), [("exfm", ["--version"]), ("mlflow", ["--version"])])
def test_a_command_runs_from_a_shell_that_does_not_have_the_environment_on_its_path(program, arguments):
    said = subprocess.run(command(program, *arguments), shell=True, env=ELSEWHERE, capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")


def test_code_with_quotes_and_a_folder_with_spaces_reach_the_program_whole(tmp_path):
    folder = tmp_path / "my $runs; it's mine"
    printed = command("python", "-c", f"""print({str(folder)!r}, "done")""")
    said = subprocess.run(printed, shell=True, env=ELSEWHERE, capture_output=True, text=True)
    assert said.stdout == f"{folder} done\n"


def test_an_environment_that_is_on_the_path_needs_no_folder_in_its_commands(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert command("exfm", "stop") == "exfm stop"

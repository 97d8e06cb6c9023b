"""The console command: exit codes, messages instead of tracebacks, and a quick start."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys

import pytest
import typer

from exfm.errors import ConfigError, ModelError
from pipelines.cli import console as cli
from pipelines.core.run_dir.lake_link import LakeLink, write_link
from streaming.errors import BadInput, StreamingError

HEAVY = {"torch", "torchrec.sparse", "fbgemm_gpu", "ray", "mlflow", "kafka", "deltalake", "pyarrow", "pandas", "numpy"}


@pytest.fixture
def failing(monkeypatch):
    """`exfm fail` raises what the test puts in."""

    def install(error: BaseException) -> None:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.callback()(lambda: None)

        @app.command("fail")
        def fail() -> None:
            raise error

        monkeypatch.setattr(cli, "app", app)

    return install


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(list(arguments))
    return int(left.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("column `age` is absent; choose from user_id"), 2),
        (ConfigError("width must be at least 1, got 0"), 2),
        (StreamingError("broker 127.0.0.1:1 did not answer within 5 s"), 1),
        (ModelError("checkpoint of format 9, this reads up to 1"), 1),
    ],
)
def test_an_error_of_the_users_is_one_paragraph_without_a_traceback(failing, capsys, error, code):
    failing(error)
    assert run("fail") == code
    assert capsys.readouterr().err == f"exfm: {error}\n"


def test_a_full_disk_is_told_in_one_line(failing, capsys):
    failing(OSError(errno.ENOSPC, "No space left on device", "runs/demo/lake"))
    assert run("fail") == 1
    assert capsys.readouterr().err.startswith("exfm: runs/demo/lake: No space left on device")


def test_debug_shows_the_traceback_wherever_it_stands(failing):
    failing(BadInput("no"))
    for arguments in (["fail", "--debug"], ["--debug", "fail"]):
        with pytest.raises(BadInput):
            cli.main(arguments)


def test_a_fault_of_ours_keeps_its_traceback(failing):
    failing(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_an_interrupt_ends_with_130(failing):
    failing(KeyboardInterrupt())
    assert run("fail") == 130


def test_an_unknown_command_is_the_callers_mistake_and_the_nearest_one_is_named(capsys):
    assert run("doctr") == 2
    assert "doctor" in capsys.readouterr().err


def test_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("exfm 0.")


def test_help_loads_nothing_heavy_and_is_quick():
    script = (
        "import sys, contextlib, pipelines.cli.console as c\nwith contextlib.suppress(SystemExit): c.main(['--help'])\n"
    )
    script += "print(*sys.modules, file=sys.stderr)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    computed_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert "doctor" in done.stdout
    assert not HEAVY & set(done.stderr.split())
    assert computed_s < 5  # 0.2 s; the bound that matters is the list of modules


def test_completion_knows_the_commands():
    done = subprocess.run(
        [sys.executable, "-c", "from pipelines.cli.console import main; main()"],
        env={"_EXFM_COMPLETE": "complete_bash", "COMP_WORDS": "exfm doc", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["doctor"]


def test_every_command_has_its_place_in_the_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    commands = typer.main.get_command(cli.app).commands
    assert set(commands) <= {name for names in cli.PANELS.values() for name in names}
    for panel, names in cli.PANELS.items():
        assert panel in shown
        assert any(name in commands for name in names)


def commands_of_a_run(part=None, name=()):
    part = typer.main.get_command(cli.app) if part is None else part
    for each, command in getattr(part, "commands", {}).items():
        yield from commands_of_a_run(command, (*name, each))
    options = {option for param in part.params for option in param.opts}
    if "--run-dir" in options and name[-1] not in AUXILIARY and name != ("broker", "start"):
        yield name, part


AUXILIARY = {"doctor", "check", "ingest", "replay"}  # a run is not what the command is about, or it has its own test


@pytest.mark.parametrize(
    ("name", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in commands_of_a_run()]
)
def test_a_run_is_the_last_argument_or_an_option_whichever_comes_to_mind(name, command, monkeypatch, tmp_path, capsys):
    """Each command is called both ways with a folder that holds no run, and says the same of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some run").mkdir()
    (tmp_path / "x").write_text("{}")
    others = ["x" for part in command.params if part.param_type_name == "argument" and part.required]
    others += [f"--{part.name}=x" for part in command.params if part.param_type_name == "option" and part.required]
    others += {("forget",): ["--table=x", "--id=x"]}.get(name, [])  # one of two pairs of options

    def said(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main([*name, *others, *arguments])
        return end.value.code, *capsys.readouterr()

    as_option = said("--run-dir", "some run")
    assert said("some run") == as_option
    assert "some run" in "".join(map(str, as_option)) or name in {("stream",), ("top",)}
    assert said("some run", "--run-dir", "other")[0] == 2


OF_THE_LEADER = {
    *(("broker", name) for name in ("stop", "status", "move")),
    *(("dead-letters", name) for name in ("list", "show", "replay")),
    *(("lake", name) for name in ("compact", "retain", "asof", "vacuum")),
    *(("teacher", name) for name in ("list", "replace", "rollback", "revoke")),
    ("mend", "watermark"),
    ("rescore",),
    ("rewind",),
    ("scale-workers",),
}
"""Commands that are about a run's own teacher, topics, broker and lake."""


@pytest.mark.parametrize(
    ("name", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in commands_of_a_run()]
)
def test_a_run_that_follows_a_lake_says_which_run_to_ask(name, command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (team := tmp_path / "team").mkdir()
    (tmp_path / "x").write_text("{}")
    write_link(team, LakeLink(tmp_path / "leads", "7c", "team-1f"))
    others = ["x" for part in command.params if part.param_type_name == "argument" and part.required]
    others += [f"--{part.name}=x" for part in command.params if part.param_type_name == "option" and part.required]
    with pytest.raises(SystemExit) as end:
        cli.main([*name, *others, "--run-dir", "team"])
    said = capsys.readouterr().err
    refused = "team follows the lake of" in said and f"Ask that run, with --run-dir {tmp_path / 'leads'}" in said
    assert refused == (name in OF_THE_LEADER), said
    assert not refused or end.value.code == 2


@pytest.mark.parametrize("command", ["status", "report", "top", "students"])
def test_a_command_without_its_run_says_both_ways(command, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([command])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "RUN as the last argument, or --run-dir RUN" in said

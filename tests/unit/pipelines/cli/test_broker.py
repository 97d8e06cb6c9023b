"""`exfm broker` as a person or a script uses it."""

from __future__ import annotations

import json

import pytest

from pipelines.cli import console as cli


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["broker", *arguments])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def test_a_directory_that_never_had_a_broker_is_no_error(capsys, tmp_path):
    code, out, _ = run(capsys, "status", "--run-dir", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out) == {
        "running": False,
        "run_dir": str(tmp_path),
        "bootstrap_servers": None,
        "pid": None,
        "port": None,
    }
    assert run(capsys, "stop", "--run-dir", str(tmp_path))[:2] == (0, f"no broker runs for {tmp_path}\n")


def test_a_run_directory_that_cannot_be_made_is_the_callers_mistake(capsys, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = run(capsys, "start", "--run-dir", str(tmp_path / "file"))
    assert (code, out) == (2, "")
    assert err.startswith("exfm: ")
    assert "cannot be written" in err
    assert "Traceback" not in err


def test_a_port_beyond_the_last_is_refused(capsys, tmp_path):
    code, _, err = run(capsys, "start", "--run-dir", str(tmp_path), "--port", "70000")
    assert code == 2
    assert "65535" in err


@pytest.mark.broker
def test_start_status_stop(capsys, tmp_path):
    place = ("--run-dir", str(tmp_path), "--json")
    try:
        code, out, _ = run(capsys, "start", *place)
        started = json.loads(out)
        assert (code, started["running"]) == (0, True)
        assert json.loads(run(capsys, "start", *place)[1]) == started
        assert json.loads(run(capsys, "status", *place)[1]) == started
    finally:
        code, out, _ = run(capsys, "stop", *place)
    assert (code, json.loads(out)["stopped"]) == (0, True)
    assert json.loads(run(capsys, "status", *place)[1])["running"] is False

"""`exfm report` as a person uses it, on finished and unfinished runs."""

from __future__ import annotations

import json
import os
import shlex
from datetime import UTC, datetime

import pytest

from pipelines.cli import console as cli
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from streaming.store.files import write_json
from tests.support.pipelines.summaries import HALF, SUMMARY, summary_of


@pytest.fixture
def report(capsys, tmp_path, monkeypatch):
    """Run `exfm report` in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "run").mkdir()

    def call(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main(["report", *arguments])
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def test_a_finished_run_is_told_from_its_summary_alone(report, tmp_path):
    write_json(tmp_path / "run" / "summary.json", SUMMARY)
    code, out, _ = report("run")
    assert code == 0
    assert "this student gained 1.2 % [1.0, 1.4] on ctr (98,765 positives)" in " ".join(out.split())
    for head in (
        "NE as learned (lower is better)",
        "AUC (higher is better), calibration",
        "the teacher's lead",
        "(GAUC)",
    ):
        assert head in out
    assert "where the time went, by worker" in out
    assert "whole stream" not in out
    assert "whole stream: AUC" in report("run", "--all")[1]


def test_json_is_the_summary_with_verdicts_in_words(report, tmp_path):
    write_json(tmp_path / "run" / "summary.json", summary_of(feed={"ctr": HALF}))
    code, out, _ = report("run", "--json")
    value = json.loads(out)
    assert code == 0
    gained = "this student gained 1.2 % [1.0, 1.4] on ctr (98,765 positives)"
    assert value["verdicts"] == {"feed": f"the teacher leads by 5.1 %; {gained}"}
    assert value["students"]["feed"]["ctr"]["last_half"]["gain"]["low"] == 0.98
    assert value["format"] == 2


def test_a_run_without_results_says_how_to_get_them(report, tmp_path):
    status = RunStatus("demo", RunState.STOPPED).as_json() | {"pid": 2**22 + 5}
    status["updated_at"] = datetime.now(UTC).isoformat()
    write_json(RunDir(tmp_path / "run").status, status)
    code, _, err = report("run")
    assert code == 2
    assert "no results yet: it is stopped, and writes summary.json when its stream has ended" in err
    words = shlex.split(err.partition("resume it: ")[2])
    assert words[1:] == ["stream", "run/config.yaml", "--run-dir", "run", "--until-end"]


def test_a_run_that_still_runs_is_looked_at_with_status(report, tmp_path):
    status = RunStatus("demo", RunState.RUNNING).as_json() | {"pid": os.getpid()}
    status["updated_at"] = datetime.now(UTC).isoformat()
    write_json(RunDir(tmp_path / "run").status, status)
    code, _, err = report("run")
    assert (code, "it is running" in err) == (2, True)
    assert err.rstrip().endswith("exfm status --run-dir run")


def test_a_folder_without_a_run_and_a_summary_of_another_format_are_refused(report, tmp_path):
    assert report("nowhere")[0] == 2
    (tmp_path / "clicks.yaml").write_text("name: mine")
    code, _, err = report("clicks.yaml")
    assert (code, "no run in clicks.yaml" in err) == (2, True), err
    for number in (1, 9):
        write_json(tmp_path / "run" / "summary.json", SUMMARY | {"format": number})
        code, _, err = report("run")
        assert (code, f"has format {number}, this ExFM reads 2" in err, "--fresh" in err) == (2, True, True)


@pytest.mark.parametrize("damaged", [{}, [], SUMMARY | {"counts": {}}], ids=["empty", "a list", "without counts"])
def test_a_file_that_no_run_wrote_is_refused(report, tmp_path, damaged):
    write_json(tmp_path / "run" / "summary.json", damaged)
    code, _, err = report("run")
    assert (code != 0, "is not a summary that exfm wrote" in err) == (True, True), err

"""`exfm lake` as a person or a script uses it, on the lake of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.cli import console as cli
from pipelines.core.config.settings import dump, load
from pipelines.core.run_dir.paths import RunDir
from streaming.lake.readers import Readers
from streaming.lake.writer import LakeTable
from tests.support.places import CONFIGS
from tests.support.streams.lake_rows import rows

DEMO = CONFIGS / "demo.yaml"
COMMITS, ROWS, DAY_MS = 6, 50, 86_400_000


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run with a lake of six commits, a day of event time each."""
    config = load(DEMO, ["lake.vacuum_after_s=0", "lake.compact_files=4"])
    where = RunDir(tmp_path / "run")
    where.root.mkdir()
    where.config.write_text(dump(config))
    lake = LakeTable(where.lake, config.rows).open_writer()
    for number in range(COMMITS):
        batch = rows(number * ROWS, ROWS, schema=config.rows)
        at = batch.schema.get_field_index("event_time_ms")
        batch = batch.set_column(at, batch.schema.field(at), pa.array([number * DAY_MS] * ROWS))
        lake.commit(batch, state=number, metadata={"counts": {"lake_rows": (number + 1) * ROWS}})
    return where


def run(capsys: pytest.CaptureFixture[str], command: str, run_dir: RunDir, *options: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["lake", command, "--run-dir", str(run_dir.root), *options])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def value(capsys: pytest.CaptureFixture[str], command: str, run_dir: RunDir, *options: str) -> dict:
    code, out, err = run(capsys, command, run_dir, *options, "--json")
    assert code == 0, err
    found: dict = json.loads(out)
    return found


def all_read(run_dir: RunDir, position: int) -> None:
    for name in load(run_dir.config).reader_names:
        Readers(run_dir.readers).register(name, position)


def test_status_tells_rows_files_and_log(capsys, run_dir):
    told = value(capsys, "status", run_dir)
    (lake,) = told["tables"]
    assert (told["rows"], told["first_lake_seq"], told["last_lake_seq"]) == (300, 0, 299)
    assert (lake["rows"], lake["unneeded_files"], lake["log_entries"]) == (300, 0, 8)
    assert lake["small_files"] == lake["files"] == COMMITS * lake["partitions"]
    assert told["counts"] == {"lake_rows": 300}
    code, out, _ = run(capsys, "status", run_dir)
    assert code == 0
    assert "300 rows, lake_seq 0 to 299, kept for ever" in out
    assert "awaited" in out


def test_compacting_and_vacuuming_leave_one_file_a_partition(capsys, run_dir):
    before = value(capsys, "status", run_dir)["tables"][0]
    done = value(capsys, "compact", run_dir, "--all")["augmented_examples"]
    assert (done["merged_files"], done["made_files"]) == (before["files"], before["partitions"])
    assert value(capsys, "status", run_dir)["tables"][0]["unneeded_files"] == before["files"]
    assert value(capsys, "vacuum", run_dir)["augmented_examples"]["swept"]["files"] == before["files"]
    after = value(capsys, "status", run_dir)["tables"][0]
    assert (after["files"], after["rows"], after["unneeded_files"]) == (before["partitions"], 300, 0)
    assert "nothing to do" in run(capsys, "compact", run_dir)[1]


def test_progress_is_told_on_the_other_stream(capsys, run_dir):
    _, out, err = run(capsys, "compact", run_dir, "--all")
    assert "merged into" in out
    assert "augmented_examples" in err
    assert "6 files" in err


def test_retention_waits_for_every_reader_and_says_for_whom(capsys, run_dir):
    code, out, _ = run(capsys, "retain", run_dir, "--days", "2")
    assert (code, out) == (0, "augmented_examples: older rows are kept for `teacher` (at lake_seq -1)\n")
    all_read(run_dir, 299)
    Readers(run_dir.readers).register("teacher", 120)
    assert "50 rows deleted" not in run(capsys, "retain", run_dir, "--days", "100")[1]
    code, out, _ = run(capsys, "retain", run_dir, "--days", "2")
    assert "100 rows deleted, the lake begins at lake_seq 100" in out
    assert "kept for `teacher` (at lake_seq 120)" in out
    done = value(capsys, "retain", run_dir, "--days", "2", "--force", "teacher")["augmented_examples"]
    assert (done["deleted_rows"], done["first_seq"]) == (50, 150)
    assert value(capsys, "status", run_dir)["first_lake_seq"] == 150


def test_readers_are_shown_with_their_lag_pinned_and_retired(capsys, run_dir):
    readers = Readers(run_dir.readers)
    readers.register("teacher", 250)
    readers.register("gone", 10, now_s=time.time() - 30 * 86_400)
    found = {row["name"]: row for row in value(capsys, "readers", run_dir, "--pin", "audit:100:199")}
    assert (found["teacher"]["lag_rows"], found["teacher"]["state"]) == (49, "reading")
    assert (found["audit"]["state"], found["audit"]["pinned_upto"]) == ("pin", 199)
    assert found["gone"]["state"] == "expired"
    assert found["student-shop"]["state"] == "awaited"
    _, out, _ = run(capsys, "readers", run_dir)
    assert "30.0 d ago" in out
    assert "pin upto 199" in out
    assert "gone" not in run(capsys, "readers", run_dir, "--retire", "gone")[1]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("readers", ["--pin", "audit"], "write it as NAME:FIRST:LAST"),
        ("readers", ["--pin", "audit:0:300"], "the lake holds 0 to 299"),
        ("readers", ["--pin", "examples:5:4"], "cannot pin lake_seq 5 to 4"),
        ("readers", ["--retire", "nobody"], "no reader `nobody`; known readers: student-"),
        ("retain", ["--days", "2", "--force", "nobody"], "no reader `nobody`"),
        ("retain", [], "give a limit: --days 30"),
    ],
)
def test_mistakes_are_told_in_words(capsys, run_dir, command, options, said):
    code, out, err = run(capsys, command, run_dir, *options)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_folder_without_a_run_or_a_lake_is_the_callers_mistake(capsys, run_dir, tmp_path):
    assert run(capsys, "status", RunDir(tmp_path / "nothing"))[0] == 2
    empty = RunDir(tmp_path / "empty")
    empty.root.mkdir()
    empty.config.write_text(run_dir.config.read_text())
    code, _, err = run(capsys, "status", empty)
    assert code == 2
    assert "no lake at" in err


@pytest.mark.parametrize("command", ["status", "readers", "compact", "retain", "vacuum"])
def test_help_teaches_with_an_example(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as left:
        cli.main(["lake", command, "--help"])
    assert left.value.code == 0
    assert f"exfm lake {command}" in capsys.readouterr().out.partition("Example: ")[2]

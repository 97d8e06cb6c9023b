"""`exfm spawn`, `students`, `pause`, `resume`, `retire`, `logs` on a run that does not run."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import torch

from exfm.models.growth.refit import MadeWith
from exfm.snapshots.checkpoint import save_checkpoint
from exfm.snapshots.manifest import read_manifest
from pipelines.cli import console as cli
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.settings import dump, load, parse
from pipelines.core.run_dir.object_storage import READ_AT_END, WORKERS_PUT
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.roster import Presence
from pipelines.live.roster import pipeline as pipeline_module
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from streaming.errors import BadInput
from streaming.lake.writer import LakeTable
from streaming.store.objects import FolderStore
from streaming.store.working_copy import Share, open_share
from tests.support.pipelines.raw_configs import small
from tests.support.streams.lake_rows import rows

VERTICAL, ROWS = "travel", 400


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of two students, stopped, with a lake of four blocks, a minute of event time a row."""
    where = RunDir(tmp_path / "run")
    where.root.mkdir()
    where.config.write_text(dump(parse(small())))
    config = load(where.config)
    lake = LakeTable(where.lake, config.rows).open_writer()
    for block in range(4):
        batch = rows(block * 100, 100, schema=config.rows)
        at = batch.schema.get_field_index("event_time_ms")
        times = pa.array([60_000 * (block * 100 + row) for row in range(100)])
        batch = batch.set_column(at, batch.schema.field(at), times)
        lake.commit(batch, state=block, metadata={})
    where.logs.mkdir()
    return where


def run(capsys: pytest.CaptureFixture[str], command: str, run_dir: RunDir, *options: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main([command, *options, "--run-dir", str(run_dir.root)])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def value(capsys: pytest.CaptureFixture[str], command: str, run_dir: RunDir, *options: str) -> Any:
    code, out, err = run(capsys, command, run_dir, *options, "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_dry_run_says_what_it_would_read_and_asks_for_nothing(capsys, run_dir):
    told = value(capsys, "spawn", run_dir, VERTICAL, "--dry-run", "--tasks", "ctr")
    assert 0 < told["rows"] < told["of"] == ROWS
    assert told["labels"]["ctr"]["known"] == told["rows"]
    assert (told["first_seq"], told["last_seq"], told["state"]) == (0, ROWS - 1, "dry run")
    assert told["bytes"] > 0
    assert told["minutes"] is None  # no student of this run has worked
    assert run_dir.roster.desired_states == []


def test_a_condition_and_a_beginning_select_rows(capsys, run_dir):
    whole = value(capsys, "spawn", run_dir, "a", "--verticals", "all", "--dry-run")
    some = value(capsys, "spawn", run_dir, "a", "--verticals", "all", "--dry-run", "--where", "event_time_ms < 6000000")
    recent = value(capsys, "spawn", run_dir, "a", "--verticals", "all", "--dry-run", "--since", "99m")
    later = value(capsys, "spawn", run_dir, "a", "--verticals", "all", "--dry-run", "--since-seq", "390")
    assert [told["rows"] for told in (whole, some, recent, later)] == [ROWS, 100, 100, 10]
    assert recent["first_seq"] == 300


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["feed"], "a student of this run is named `feed` already"),
        (["late"], "no row of the lake has the vertical `late`; choose from"),
        (["late", "--verticals", "all", "--where", "bid > 1e30"], "none of 400 rows from lake_seq 0 on"),
        (["late", "--where", "bit > 1"], "no column `bit`; did you mean `bid`"),
        (["late", "--like", "nobody"], "--like nobody: no student of the run has that name"),
        (["late", "--from", "feed", "--verticals", "all"], "--from feed: it has no checkpoint yet"),
        (["late", "--since", "7days"], "write 7d, 12h, 30m or 90s"),
        (["late", "--since", "7d", "--live"], "give one of them"),
        (["late", "--since-seq", "9999"], "the lake has rows 0 to 399"),
        (["late", "--tasks", "buy", "--verticals", "all"], "wants task `buy`"),
        (["late", "--set", "batch_rows=0", "--verticals", "all"], "greater than 0"),
        (["a/b", "--verticals", "all"], "should match pattern"),
    ],
)
def test_what_cannot_be_is_said_in_words_and_nothing_is_asked_for(capsys, run_dir, options, words):
    code, _, err = run(capsys, "spawn", run_dir, *options)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert run_dir.roster.desired_states == []


def test_a_spawn_is_remembered_once_and_the_start_of_the_run_has_it(capsys, run_dir):
    asked = [VERTICAL, "--like", "shop", "--set", "batch_rows=64", "--twin"]
    told = value(capsys, "spawn", run_dir, *asked)
    assert told["state"] == "asked"
    assert run(capsys, "spawn", run_dir, *asked)[0] == 0
    (desired,) = run_dir.roster.desired_states
    assert (desired.number, desired.wanted) == (1, Presence.RUNNING)
    student = with_roster(load(run_dir.config), run_dir.roster).student(VERTICAL)
    assert (student.tasks, student.batch_rows, student.twin) == (("ctr",), 64, True)
    code, _, err = run(capsys, "spawn", run_dir, VERTICAL, "--like", "shop", "--set", "batch_rows=128")
    assert code == 2
    assert "is named" in err
    states = {each["name"]: each["state"] for each in value(capsys, "students", run_dir)}
    assert states == {"feed": "stopped", "shop": "stopped", VERTICAL: "asked"}


def test_of_two_spawns_of_one_name_at_once_one_wins_and_the_other_is_told(run_dir, monkeypatch):
    pipelines, met = [Pipeline(run_dir.root), Pipeline(run_dir.root)], Barrier(2)
    estimate = pipeline_module.estimate_backfill

    def estimated_at_once(*args):
        met.wait(20)  # both have found the name free
        return estimate(*args)

    monkeypatch.setattr(pipeline_module, "estimate_backfill", estimated_at_once)
    requests = [SpawnRequest(VERTICAL, tasks=("ctr",)), SpawnRequest(VERTICAL, since_seq=100, twin=False)]
    with ThreadPoolExecutor(2) as pool:
        spawning = [pool.submit(p.spawn, request) for p, request in zip(pipelines, requests, strict=True)]
        errors = [future.exception() for future in spawning]
    (loser,) = [number for number, error in enumerate(errors) if error is not None]
    assert isinstance(errors[loser], BadInput)
    assert "is named `travel` already" in str(errors[loser])
    desired = run_dir.roster.desired(VERTICAL)
    assert desired.number == 1
    assert (desired.section["tasks"] == ["ctr"]) is (loser == 1)
    assert (desired.section.get("first_seq") == 100) is (loser == 0)


def test_a_request_that_another_overtakes_before_its_answer_is_refused(run_dir, monkeypatch):
    monkeypatch.setattr(Pipeline, "lives", True)  # and answers nothing
    with ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(Pipeline(run_dir.root).pause, "feed", wait_s=20)
        while run_dir.roster.desired("feed") is None:
            assert not pausing.done()
        run_dir.roster.ask("feed", Presence.RETIRED)
        with pytest.raises(BadInput, match=r"it is to be retired .*, not paused"):
            pausing.result()
    monkeypatch.setattr(Pipeline, "lives", False)
    assert "(it was to be retired" in Pipeline(run_dir.root).pause("feed")


def test_pausing_and_retiring_are_remembered_too(capsys, run_dir):
    assert run(capsys, "pause", run_dir, "feed")[0] == 0
    assert run_dir.roster.paused == {"feed"}
    assert run(capsys, "resume", run_dir, "feed")[0] == 0
    assert run_dir.roster.paused == set()
    assert run(capsys, "retire", run_dir, "shop")[0] == 0
    assert [s.name for s in with_roster(load(run_dir.config), run_dir.roster).students] == ["feed"]
    code, _, err = run(capsys, "pause", run_dir, "nobody")
    assert code == 2
    assert "no student of" in err


def test_what_the_run_refused_is_shown_and_may_be_asked_again(run_dir):
    pipeline = Pipeline(run_dir.root)
    pipeline.spawn(SpawnRequest(VERTICAL))
    (desired,) = run_dir.roster.open
    run_dir.roster.answer(desired, "there is no room", refused=True)
    (found,) = [each for each in pipeline.students() if each.name == VERTICAL]
    assert (found.state, found.reason) == ("refused", "there is no room")
    assert VERTICAL not in {student.name for student in pipeline.config.students}
    pipeline.spawn(SpawnRequest(VERTICAL))
    assert [desired.number for desired in run_dir.roster.open] == [2]


def test_a_damaged_wish_is_named(run_dir):
    Pipeline(run_dir.root).spawn(SpawnRequest(VERTICAL))
    path = run_dir.roster.folder / VERTICAL / "wish.json"
    path.write_text('{"name": 3}')
    with pytest.raises(BadInput, match=r"wish\.json is damaged"):
        _ = run_dir.roster.desired_states


def test_the_table_fits_eighty_columns(capsys, run_dir, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, "students", run_dir)
    assert code == 0
    assert "feed" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_end_of_a_log(capsys, run_dir):
    (run_dir.logs / "student-feed.log").write_text("".join(f"line {n}\n" for n in range(100)))
    code, out, _ = run(capsys, "logs", run_dir, "feed", "-n", "2")
    assert (code, out.splitlines()) == (0, ["line 98", "line 99"])
    code, _, err = run(capsys, "logs", run_dir, "teacher")
    assert code == 2
    assert "has no log of `teacher`; choose from feed" in err


def test_a_student_starts_from_what_another_machine_has_put_since_the_coordinator_began(run_dir, tmp_path):
    stored = RunDir(tmp_path / "store")
    open_share(run_dir.root, stored.root.as_uri(), 1, Share(("logs/coordinator",), WORKERS_PUT, READ_AT_END))
    pipeline, request = Pipeline(run_dir.root), SpawnRequest(VERTICAL, start="feed")
    with pytest.raises(BadInput, match="has no checkpoint yet"):
        pipeline.spawn(request)
    config = load(run_dir.config)
    feed = config.student("feed")
    made_with = MadeWith.of(feed.model, config.student_features(feed), config.student_tasks(feed), 0)
    for version in ("v00000010", "v00000020"):
        meta = {"made_with": made_with.model_dump(mode="json"), "version": version}
        save_checkpoint(stored.checkpoints("student-feed"), version, {"w": torch.zeros(1)}, meta)
    asked = []
    listed = FolderStore.list
    with patch.object(FolderStore, "list", lambda self, prefix="": asked.append(prefix) or listed(self, prefix)):
        pipeline.spawn(request)
    assert read_manifest(run_dir.roster.start(VERTICAL))["meta"]["version"] == "v00000020"
    assert [prefix for prefix in asked if prefix.startswith("checkpoints/")] == ["checkpoints/student-feed/"]
    assert "" not in asked
    pipeline.retire(VERTICAL)
    save_checkpoint(stored.checkpoints(f"student-{VERTICAL}"), "v00000010", {"w": torch.zeros(1)}, {})
    with pytest.raises(BadInput, match="with other settings, and its checkpoints are kept"):
        pipeline.spawn(SpawnRequest(VERTICAL, tasks=("ctr",)))

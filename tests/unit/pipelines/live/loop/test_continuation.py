"""A stopped run, started again under a config with other students."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from exfm.snapshots.checkpoint import save_checkpoint
from pipelines.core.config.lineage import accepted_identities, hashes_of_run
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.object_storage import READ_AT_END, WORKERS_PUT
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop import preflight
from pipelines.live.loop.continuation import SAME
from pipelines.live.workers.checkpointer import last_checkpoint
from streaming.errors import BadInput
from streaming.lake.readers import Readers
from streaming.store.working_copy import Share, open_share
from tests.support.pipelines.raw_configs import changed, small
from tests.support.places import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
FEED, SHOP, MORE = {"name": "feed"}, {"name": "shop", "tasks": ["ctr"]}, {"name": "more", "verticals": ["feed"]}


@pytest.fixture
def run_dir(tmp_path):
    run_dir = RunDir(tmp_path / "run")
    start(run_dir, small())
    return run_dir


def start(run_dir: RunDir, raw: dict) -> list[str]:
    said: list[str] = []
    with preflight.locked(run_dir):
        preflight.prepare(parse(raw), run_dir, say=said.append)
    return said


def refusal(run_dir: RunDir, raw: dict) -> str:
    before = run_dir.config.read_text()
    with pytest.raises(BadInput) as refused:
        start(run_dir, raw)
    assert run_dir.config.read_text() == before
    return str(refused.value)


def learned(run_dir: RunDir, raw: dict, worker: str) -> None:
    """As if `worker` had run for a while and written a checkpoint."""
    meta = {"config_hash": parse(raw).identity(worker), "lake_seq": 9}
    save_checkpoint(run_dir.checkpoints(worker), "v00000010", {"w": torch.zeros(1)}, meta)
    Readers(run_dir.readers).register(worker, 9)


def resumes(run_dir: RunDir, raw: dict, worker: str) -> bool:
    config = parse(raw)
    accepted = accepted_identities(run_dir, config, worker)
    return last_checkpoint(run_dir.checkpoints(worker), config.identity(worker), accepted).stored is not None


# --- students join and leave -----------------------------------------------------------------------------------------


def test_a_student_joins_and_every_other_worker_resumes(run_dir):
    for worker in ("teacher", "student-feed", "student-shop"):
        learned(run_dir, small(), worker)
    raw = small(students=[FEED, MORE, SHOP])
    assert start(run_dir, raw) == [
        "student `more` joins and learns the lake from its first row on; others resume where they were"
    ]
    assert all(resumes(run_dir, raw, worker) for worker in ("teacher", "student-feed", "student-shop"))
    assert start(run_dir, raw) == []  # from now on it is this run's config
    assert len(json.loads(run_dir.lineage.read_text())) == 1


def test_a_student_leaves_and_the_lake_holds_nothing_for_it_any_more(run_dir):
    for worker in ("teacher", "student-feed", "student-shop"):
        learned(run_dir, small(), worker)
    (said,) = start(run_dir, small(students=[SHOP]))
    assert said.startswith("student `feed` leaves: the lake keeps no rows for it any more; its checkpoints stay in")
    assert sorted(reader.name for reader in Readers(run_dir.readers).all()) == ["student-shop", "teacher"]
    assert (run_dir.checkpoints("student-feed") / "v00000010").exists()
    assert resumes(run_dir, small(students=[SHOP]), "student-shop")


def test_a_student_that_is_back_resumes_where_its_settings_are_what_they_were(run_dir):
    learned(run_dir, small(), "student-feed")
    start(run_dir, small(students=[SHOP]))
    assert start(run_dir, small())[0].startswith("student `feed` is back: it resumes from its checkpoint")
    assert resumes(run_dir, small(), "student-feed")


def test_a_student_that_is_back_under_other_settings_is_refused(run_dir):
    learned(run_dir, small(), "student-feed")
    start(run_dir, small(students=[SHOP]))
    said = refusal(run_dir, small(students=[FEED | {"batch_rows": 64}, SHOP]))
    assert said.startswith("student `feed` was in this run before, under settings that its checkpoints do not fit.")
    start(run_dir, small(students=[FEED | {"name": "feed_2", "verticals": ["feed"], "batch_rows": 64}, SHOP]))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("students.1.batch_rows", 64, "batch_rows was 512, is 64"),
        ("students.1.model", {"width": 16}, "model.width was 8, is 16"),
        ("students.1.features", ["ad_id"], "features"),
    ],
)
def test_a_student_that_has_learned_keeps_its_settings_and_only_it_is_refused(run_dir, path, value, words):
    for worker in ("teacher", "student-feed", "student-shop"):
        learned(run_dir, small(), worker)
    said = refusal(run_dir, changed(path, value))
    assert said.startswith("student `shop` has learned under other settings (")
    assert words in said
    assert f"Give it another name, or its settings back; or delete {run_dir.checkpoints('student-shop')}" in said
    assert "feed" not in said
    assert "every other worker can be resumed" in said
    assert not run_dir.lineage.exists()


def test_a_student_whose_checkpoints_were_deleted_begins_again_under_its_new_settings(run_dir):
    for worker in ("teacher", "student-feed", "student-shop"):
        learned(run_dir, small(), worker)
    raw = changed("students.1.batch_rows", 64)
    shutil.rmtree(run_dir.checkpoints("student-shop"))
    assert start(run_dir, raw) == ["student `shop` learns the lake from its first row on, under its new settings"]
    assert resumes(run_dir, raw, "student-feed")
    assert parse(small()).identity("student-shop") not in accepted_identities(run_dir, parse(raw), "student-shop")


def test_a_student_is_not_taken_for_changed_where_a_default_is_written_out(run_dir):
    learned(run_dir, small(), "student-feed")
    raw = changed("students.0.verticals", ["feed"])
    assert start(run_dir, raw) == [SAME]
    assert resumes(run_dir, raw, "student-feed")


def test_what_concerns_everyone_is_refused_as_before_whoever_joins(run_dir):
    said = refusal(run_dir, small(students=[FEED, SHOP, MORE], seed=2))
    assert "holds a run under another config" in said
    assert "seed was 1, is 2" in said


def test_a_run_that_was_finished_without_a_student_is_not_finished_with_it(run_dir):
    config, joined = parse(small()), parse(small(students=[FEED, SHOP, MORE]))
    assert hashes_of_run(run_dir, config) == [config.hash]
    start(run_dir, small(students=[FEED, SHOP, MORE]))
    assert hashes_of_run(run_dir, joined) == [joined.hash]


def test_a_student_is_back_whose_checkpoints_another_machine_has_put_since_the_coordinator_began(run_dir, tmp_path):
    raw, stored = small(students=[FEED, MORE, SHOP]), RunDir(tmp_path / "store")
    save_checkpoint(run_dir.served("more"), "v00000010", {"w": torch.zeros(1)}, {})  # these are followed
    learned(stored, raw, "student-more")
    open_share(run_dir.root, stored.root.as_uri(), 1, Share(("logs/coordinator",), WORKERS_PUT, READ_AT_END))
    assert start(run_dir, raw) == ["student `more` is back: it resumes from its checkpoint; other workers from theirs"]

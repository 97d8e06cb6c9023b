"""A stopped run, started again under a config with other students, or by a later release."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import yaml

from exfm.snapshots.checkpoint import load_checkpoint, save_checkpoint
from pipelines.core.config.hash import hash_of
from pipelines.core.config.lineage import accepted_identities, hashes_of_run
from pipelines.core.config.settings import dump, parse
from pipelines.core.config.settings import load as load_config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop import preflight
from pipelines.live.loop.continuation import SAME
from pipelines.live.training.resume import last_checkpoint
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.teacher.worker import TeacherWorker
from streaming.disk.files import write_json
from streaming.errors import BadInput
from streaming.lake.readers import Readers
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


# --- a release before ------------------------------------------------------------------------------------------------


def before_this_release(run_dir: RunDir, raw: dict, workers: list[str]) -> str:
    """As the release before left a run: one hash of the whole config, in every checkpoint."""
    whole = hash_of(yaml.safe_load(dump(parse(raw))))
    for worker in workers:
        save_checkpoint(
            run_dir.checkpoints(worker), "v00000010", {"w": torch.zeros(1)}, {"config_hash": whole, "lake_seq": 9}
        )
    return whole


def test_checkpoints_that_say_the_whole_configs_hash_are_taken_up(run_dir):
    before_this_release(run_dir, small(), ["teacher", "student-feed", "student-shop"])
    assert start(run_dir, small()) == []
    assert all(resumes(run_dir, small(), worker) for worker in ("teacher", "student-feed", "student-shop"))


def test_they_are_taken_up_too_by_those_who_stay_when_a_student_joins_or_leaves(run_dir):
    before_this_release(run_dir, small(), ["teacher", "student-feed", "student-shop"])
    joined, left = small(students=[FEED, SHOP, MORE]), small(students=[FEED, MORE])
    start(run_dir, joined)
    assert all(resumes(run_dir, joined, worker) for worker in ("teacher", "student-feed", "student-shop"))
    start(run_dir, left)
    assert all(resumes(run_dir, left, worker) for worker in ("teacher", "student-feed"))
    assert start(run_dir, joined)[0].startswith("student `shop` is back")
    assert resumes(run_dir, joined, "student-shop")
    start(run_dir, left)
    assert "was in this run before" in refusal(run_dir, small(students=[FEED, MORE, SHOP | {"twin": True}]))


def test_a_lineage_that_the_release_before_wrote_is_followed(run_dir):
    write_json(run_dir.lineage, [{"from": "first", "to": parse(small()).hash, "changes": ["`user_id` grows"]}])
    assert "first" in accepted_identities(run_dir, parse(small()), "teacher")
    joined = small(students=[FEED, SHOP, MORE])
    start(run_dir, joined)
    assert "first" in accepted_identities(run_dir, parse(joined), "student-feed")
    assert "first" not in accepted_identities(run_dir, parse(joined), "student-more")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("worker", ["teacher", "student-feed"])
def test_a_run_directory_of_every_stored_format_is_resumed(tmp_path, version, worker):
    """Its config as that release resolved it, and checkpoints that say that config's hash."""
    run_dir = RunDir(tmp_path / "run")
    config = load_config(FIXTURES / "checkpoint_format_1" / "config.yaml")
    run_dir.root.mkdir()
    shutil.copy(FIXTURES / "checkpoint_format_1" / "config.yaml", run_dir.config)
    whole = hash_of(yaml.safe_load(run_dir.config.read_text()))
    assert whole != config.hash  # settings came since
    (source,) = (FIXTURES / f"checkpoint_format_{min(version, 2)}" / "checkpoints" / worker).iterdir()
    kept, target = load_checkpoint(source), run_dir.checkpoints(worker)
    if version == 3:
        save_checkpoint(target, source.name, kept.tensors, kept.meta | {"config_hash": whole}, kind=kept.kind)
    else:  # what they say is what the config hashed to when they were stored
        shutil.copytree(source, target / source.name)
        write_json(run_dir.lineage, [{"from": kept.meta["config_hash"], "to": whole, "changes": []}])
    with preflight.locked(run_dir):
        preflight.prepare(config, run_dir)
    found = last_checkpoint(target, config.identity(worker), accepted_identities(run_dir, config, worker))
    assert found.stored is not None
    assert found.stored.meta["lake_seq"] == {1: 59, 2: 107, 3: 107}[version]
    one = TeacherWorker(config, run_dir) if worker == "teacher" else StudentWorker(config, config.students[0], run_dir)
    one.resume()
    one.abandon()

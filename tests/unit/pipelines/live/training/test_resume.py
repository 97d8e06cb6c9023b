"""Workers go on from the newest checkpoint that verifies, of this format and of the one before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.errors import NewerFormat, Unusable
from exfm.features.batch import Batch, BatchBuilder
from exfm.snapshots.checkpoint import checkpoint_names, load_checkpoint, save_checkpoint
from pipelines.core.config.settings import Config
from pipelines.core.config.settings import load as load_config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.resume import last_checkpoint, needed_after
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.teacher.worker import TeacherWorker
from tests.support.pipelines.stored_run import FORMAT_1, new_rows

HASH = "0123456789abcdef"


# --- damaged ones ----------------------------------------------------------------------------------------------------


def stored(root: Path, name: str, lake_seq: int, config_hash: str = HASH) -> Path:
    tensors = {"w": torch.arange(100.0) + lake_seq}
    return save_checkpoint(
        root, name, tensors, {"config_hash": config_hash, "lake_seq": lake_seq}, kind="teacher-checkpoint"
    )


def truncate(path: Path) -> None:
    file = path / "tensors.bin"
    file.write_bytes(file.read_bytes()[:100])


def other_config(path: Path) -> None:
    elsewhere = stored(path.parent / "elsewhere", path.name, 5, "another")
    shutil.copy(elsewhere / "manifest.json", path / "manifest.json")
    shutil.rmtree(elsewhere.parent)


DAMAGES = {
    "truncated tensors": truncate,
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "an empty manifest": lambda path: (path / "manifest.json").write_text(""),
    "another config": other_config,
}


def test_without_a_checkpoint_there_is_nothing_to_say(tmp_path):
    assert last_checkpoint(tmp_path / "absent", HASH) == (None, None)
    assert needed_after(tmp_path / "absent") == -1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_set_aside_told_and_the_one_before_is_taken(tmp_path, damage):
    for number in (1, 2, 3):
        stored(tmp_path, f"v{number}", number * 10)
    for number in (2, 3):
        DAMAGES[damage](tmp_path / f"v{number}")
    found, note = last_checkpoint(tmp_path, HASH)
    assert found is not None
    assert found.meta["lake_seq"] == 10
    assert note is not None
    assert note.startswith("went on from `v1`: `v3` ")
    assert "`v2`" in note
    assert sorted(path.name for path in tmp_path.iterdir()) == [".damaged-v2", ".damaged-v3", "v1"]
    stored(tmp_path, "v2", 20)  # learned again, and written under its old name
    again, note = last_checkpoint(tmp_path, HASH)
    assert again is not None
    assert (again.meta["lake_seq"], note) == (20, None)


@pytest.mark.parametrize("damage", DAMAGES)
def test_with_none_left_everything_found_is_told_and_left_as_it_is(tmp_path, damage):
    for number in (1, 2):
        DAMAGES[damage](stored(tmp_path, f"v{number}", number * 10))
    with pytest.raises(Unusable) as error:
        last_checkpoint(tmp_path, HASH)
    for words in ("none of the 2 checkpoints", "`v1`", "`v2`", f"delete {tmp_path}", "from its beginning"):
        assert words in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1", "v2"]


def test_one_of_a_later_release_is_refused_and_not_taken_for_damaged(tmp_path):
    stored(tmp_path, "v1", 10)
    path = stored(tmp_path, "v2", 20) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 4}))
    with pytest.raises(NewerFormat, match=r"`v2` has format version 4, this ExFM reads 1 to 3"):
        last_checkpoint(tmp_path, HASH)
    assert checkpoint_names(tmp_path) == ["v1", "v2"]


def test_rows_are_needed_from_the_oldest_checkpoint_on_for_a_newer_one_may_be_damaged(tmp_path):
    for number in (1, 2):
        stored(tmp_path, f"v{number}", number * 10)
    assert needed_after(tmp_path) == 10
    DAMAGES["an empty manifest"](tmp_path / "v1")
    assert needed_after(tmp_path) == 20


# --- the format before -----------------------------------------------------------------------------------------------


@pytest.fixture
def config(monkeypatch) -> Config:
    """The config that the stored checkpoints were written under; its hash then, whatever settings came since."""
    monkeypatch.setattr(Config, "hash", property(lambda self: "c6f7402e2e5e3175"))
    return load_config(FORMAT_1 / "config.yaml")


def batch_of(config: Config, rows: pa.Table) -> Batch:
    return BatchBuilder(config.features, config.tasks)(rows)


def tensors_of(worker: StudentWorker) -> dict[str, torch.Tensor]:
    """All that its checkpoint holds."""
    return worker.engine.state() | worker.record.state()


def restored(make, root: Path):
    worker = make(RunDir(root))
    worker.resume()
    worker.abandon()
    return worker


def as_format_2(source: Path, target: Path, rng: dict[str, torch.Tensor], meta: dict[str, object]) -> None:
    """The same tensors, written by today's code, with what came since spelled out."""
    (path,) = source.iterdir()
    old = load_checkpoint(path)
    assert old.format_version == 1
    kept = {key: value for key, value in old.meta.items() if key != "quarantined_rows"}
    save_checkpoint(target, path.name, old.tensors | rng, kept | meta, kind=old.kind)


def test_a_teacher_stored_by_the_release_before_goes_on_bit_for_bit(config, tmp_path):
    def make(run_dir):
        return TeacherWorker(config, run_dir)

    fresh = restored(make, tmp_path / "fresh")
    meta = {"rows": 60, "trained_rows": {"teacher": 60}, "quarantine": {"teacher": {"rows": 0}}}
    shutil.copytree(FORMAT_1 / "checkpoints", tmp_path / "old" / "checkpoints")
    source, target = (tmp_path / run / "checkpoints" / "teacher" for run in ("old", "new"))
    as_format_2(source, target, {"rng": fresh.engine.teacher.random.state}, meta)
    one, two = restored(make, tmp_path / "old"), restored(make, tmp_path / "new")
    stored_tensors = load_checkpoint(next(source.iterdir())).tensors
    state = one.engine.state()
    assert len(state) > 50
    assert all(torch.equal(state[k], v) for k, v in stored_tensors.items() if not k.startswith("metrics/"))
    assert (one.place.lake_seq, one.place.version, one.tally.trained_rows) == (59, 2, 60)
    assert one.tally.figures.ne == two.tally.figures.ne
    assert one.account.learned.state() == {"ctr": {"rows": 60, "hash_sum": 5001326099440647892}}
    for first in (60, 76, 92):
        logits = [worker.engine.step(batch_of(config, new_rows(first))).logits for worker in (one, two)]
        assert np.array_equal(*logits)
    left, right = one.engine.state(), two.engine.state()
    assert all(torch.equal(left[name], right[name]) for name in left)
    for worker in (fresh, one, two):
        worker.engine.close()


def test_a_student_and_its_twin_stored_by_the_release_before_go_on_bit_for_bit(config, tmp_path):
    def make(run_dir):
        return StudentWorker(config, config.students[0], run_dir)

    fresh = restored(make, tmp_path / "fresh")
    shutil.copytree(FORMAT_1 / "checkpoints", tmp_path / "old" / "checkpoints")
    source, target = (tmp_path / run / "checkpoints" / "student-feed" for run in ("old", "new"))
    stored_tensors = load_checkpoint(next(source.iterdir())).tensors
    rows = int(stored_tensors["student/progress/rows"])
    rng = {"student/rng": fresh.engine.student.random.state, "no_teacher/rng": fresh.engine.twin.random.state}
    none = {"student": {"rows": 0}, "no_teacher": {"rows": 0}}
    meta = {"rows": rows, "trained_rows": {"student": rows, "no_teacher": rows}, "quarantine": none}
    as_format_2(source, target, rng, meta)
    one, two = restored(make, tmp_path / "old"), restored(make, tmp_path / "new")
    state = tensors_of(one)
    assert all(torch.equal(state[name], tensor) for name, tensor in stored_tensors.items())
    assert (one.position, one.account.rows, one.engine.trained_rows) == (59, rows, meta["trained_rows"])
    assert one.account.learned.rows == {"ctr": 17}
    for first in (60, 76, 92):
        batch = one.build(new_rows(first))
        left, right = [worker.engine.step(batch).results for worker in (one, two)]
        assert list(left) == ["student", "no_teacher"]
        assert all(np.array_equal(left[model].logits, right[model].logits) for model in left)
    left, right = tensors_of(one), tensors_of(two)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


FORMAT_2 = FORMAT_1.parent / "checkpoint_format_2" / "checkpoints"


@pytest.mark.parametrize("kind", ["teacher", "student-feed"])
def test_what_format_2_kept_goes_on_bit_for_bit_and_as_if_written_today(config, tmp_path, kind):
    def make(run_dir):
        return (
            TeacherWorker(config, run_dir) if kind == "teacher" else StudentWorker(config, config.students[0], run_dir)
        )

    (source,) = (FORMAT_2 / kind).iterdir()
    shutil.copytree(source, tmp_path / "old" / "checkpoints" / kind / source.name)
    kept = load_checkpoint(source)
    assert kept.format_version == 2
    save_checkpoint(tmp_path / "new" / "checkpoints" / kind, source.name, kept.tensors, kept.meta, kind=kept.kind)
    workers = [restored(make, tmp_path / run) for run in ("old", "new")]
    first = workers[0].engine.state()
    assert all(torch.equal(first[k], v) for k, v in kept.tensors.items() if not k.startswith("metrics/"))
    seqs = [w.place.lake_seq if kind == "teacher" else w.position for w in workers]
    assert seqs == [107, 107]
    for rows in (108, 124):
        logits = [w.engine.step(batch_of(config, new_rows(rows))).logits for w in workers]
        assert np.array_equal(*logits)
    left, right = (worker.engine.state() for worker in workers)
    assert all(torch.equal(left[name], right[name]) for name in left)
    if kind == "teacher":
        for worker in workers:
            worker.engine.close()


def test_rows_that_the_release_before_left_out_still_count(config, tmp_path):
    """It wrote how many the student left out, and the twin's are known from what both have seen."""
    path = tmp_path / "run" / "checkpoints" / "student-feed" / "v00000060"
    shutil.copytree(FORMAT_1 / "checkpoints" / "student-feed" / "v00000060", path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["meta"]["quarantined_rows"] = 8
    (path / "manifest.json").write_text(json.dumps(manifest))
    worker = restored(lambda run_dir: StudentWorker(config, config.students[0], run_dir), tmp_path / "run")
    counts = worker.counts()
    assert (counts["quarantined_rows"], counts["quarantined_rows_no_teacher"]) == (8, 8)
    assert worker.account.rows == counts["trained_rows"] + 8
    assert worker.account.quarantine_state()["student"]["batches"] == 0

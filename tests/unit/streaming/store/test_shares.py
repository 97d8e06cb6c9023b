"""Several working copies of one run: what each puts, fetches and deletes, and when it may no longer."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from streaming.errors import StreamingError
from streaming.store.files import append_line, make_folder, replacing_folder, sync, write_json, write_text
from streaming.store.working_copy import Share, WorkingCopy, open_copy, open_share

TEACHER = Share(("snapshots/teacher/", "checkpoints/teacher/", "logs/teacher."), ("",), (), "writers/teacher/1-2.json")
SCORER = Share(("checkpoints/augmentation/", "lake/readers/topic.json"), ("",), ("snapshots/teacher/", "lake/readers/"))
COORDINATOR = Share(("logs/coordinator",), ("snapshots/", "logs/", "registry/", "lake/"), ("logs/", "registry/"))


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def shared(tmp_path, store, name: str, share: Share) -> WorkingCopy:
    root = tmp_path / name
    root.mkdir()
    return open_share(root, store.as_uri(), 1, share)


def held(copy: WorkingCopy) -> set[str]:
    return {
        path.relative_to(copy.root).as_posix()
        for path in copy.root.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def stored(store: Path) -> set[str]:
    return {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}


def publish(copy: WorkingCopy, version: str, text: str = "weights") -> None:
    with replacing_folder(copy.root / "snapshots" / "teacher" / version) as part:
        (part / "tensors.bin").write_text(text)
        (part / "manifest.json").write_text(version)


def snapshot(version: str) -> set[str]:
    return {f"snapshots/teacher/{version}/{name}" for name in ("manifest.json", "tensors.bin")}


def test_a_version_is_followed_whole_or_not_at_all(tmp_path, store, monkeypatch):
    teacher, scorer = shared(tmp_path, store, "teacher", TEACHER), shared(tmp_path, store, "scorer", SCORER)
    publish(teacher, "v00000001")
    (store / "snapshots" / "teacher" / "v00000002").mkdir()
    (store / "snapshots" / "teacher" / "v00000002" / "tensors.bin").write_text("its manifest comes last")
    scorer.follow()
    assert held(scorer) == snapshot("v00000001")
    fetch = scorer.store.fetch

    def torn(key: str, path: Path) -> None:
        assert not (scorer.root / "snapshots" / "teacher" / "v00000002").exists()
        if key.endswith("manifest.json"):
            raise FileNotFoundError(key)
        fetch(key, path)

    publish(teacher, "v00000002")
    monkeypatch.setattr(scorer.store, "fetch", torn)
    scorer.follow()
    assert held(scorer) == snapshot("v00000001")
    monkeypatch.setattr(scorer.store, "fetch", fetch)
    scorer.follow()
    assert held(scorer) == snapshot("v00000001") | snapshot("v00000002")


def test_what_others_delete_goes_here_and_what_went_here_alone_comes_again(tmp_path, store):
    teacher, scorer = shared(tmp_path, store, "teacher", TEACHER), shared(tmp_path, store, "scorer", SCORER)
    for version in ("v00000001", "v00000002"):
        publish(teacher, version)
    scorer.follow()
    teacher.delete(teacher.root / "snapshots" / "teacher" / "v00000001")
    place = scorer.root / "snapshots" / "teacher" / "v00000002"
    place.rename(place.with_name(".damaged-v00000002"))
    scorer.follow()
    assert held(scorer) >= snapshot("v00000002")
    assert not (place.parent / "v00000001").exists()
    scorer.mirror()
    scorer.mirror()
    assert snapshot("v00000002") <= stored(store)


def test_a_copy_never_puts_what_is_not_its_own_again(tmp_path, store):
    """A stale copy of a version that was deleted, or of a log that has grown, is no news to the store."""
    teacher, scorer = shared(tmp_path, store, "teacher", TEACHER), shared(tmp_path, store, "scorer", SCORER)
    publish(teacher, "v00000001")
    scorer.follow()
    (scorer.root / "logs").mkdir()
    (scorer.root / "logs" / "teacher.log").write_text("of before")
    teacher.delete(teacher.root / "snapshots" / "teacher" / "v00000001")
    scorer.mirror()
    assert stored(store) == set()


def test_own_files_are_put_and_deleted_and_those_of_others_are_not(tmp_path, store):
    teacher, scorer = shared(tmp_path, store, "teacher", TEACHER), shared(tmp_path, store, "scorer", SCORER)
    publish(teacher, "v00000001")
    scorer.follow()
    states = scorer.root / "checkpoints" / "augmentation" / "epoch-000001"
    make_folder(states)
    for name in ("1", "2"):
        (states / name).write_text(name)
    scorer.mirror()
    assert stored(store) == snapshot("v00000001") | {
        "checkpoints/augmentation/epoch-000001/1",
        "checkpoints/augmentation/epoch-000001/2",
    }
    (states / "1").unlink()
    for path in (scorer.root / "snapshots" / "teacher" / "v00000001").iterdir():
        path.unlink()
    scorer.mirror()
    assert "checkpoints/augmentation/epoch-000001/1" in stored(store)  # it may be about to get its name
    scorer.mirror()
    assert stored(store) == snapshot("v00000001") | {"checkpoints/augmentation/epoch-000001/2"}
    (states / "2").unlink()
    sync(states)
    assert stored(store) == snapshot("v00000001")


def test_a_copy_that_was_deleted_deletes_nothing(tmp_path, store):
    teacher = shared(tmp_path, store, "teacher", TEACHER)
    publish(teacher, "v00000001")
    shutil.rmtree(teacher.root)
    teacher.mirror()
    teacher.mirror()
    assert stored(store) == snapshot("v00000001")


def test_students_share_a_folder_of_ledgers(tmp_path, store):
    one, two = (shared(tmp_path, store, name, Share((f"registry/{name}.jsonl",), ("",), ())) for name in "ab")
    append_line(one.root / "registry" / "a.jsonl", "1")
    append_line(two.root / "registry" / "b.jsonl", "2")
    sync(two.root / "registry")
    sync(one.root / "registry")
    assert stored(store) == {"registry/a.jsonl", "registry/b.jsonl"}
    coordinator = open_copy(tmp_path / "coordinator", store.as_uri())
    with coordinator.coordinated(COORDINATOR):
        coordinator.follow()
        write_json(coordinator.root / "summary.json", {})
        sync(coordinator.root)
        append_line(one.root / "registry" / "a.jsonl", "3")
        coordinator.mirror()
        coordinator.follow()
        assert (coordinator.root / "registry" / "a.jsonl").read_text() == "1\n3\n"


def test_the_own_file_among_followed_ones_stays_as_it_is(tmp_path, store):
    scorer = shared(tmp_path, store, "scorer", SCORER)
    write_text(scorer.root / "lake" / "readers" / "topic.json", "1")
    (store / "lake" / "readers" / "student.json").write_text("2")
    scorer.follow()
    (scorer.root / "lake" / "readers" / "topic.json").write_text("3")
    os.remove(store / "lake" / "readers" / "student.json")
    os.remove(store / "lake" / "readers" / "topic.json")
    scorer.follow()
    assert held(scorer) == {"lake/readers/topic.json"}
    assert (scorer.root / "lake" / "readers" / "topic.json").read_text() == "3"


def test_a_process_whose_successor_was_begun_puts_and_deletes_nothing(tmp_path, store):
    coordinator = open_copy(tmp_path / "coordinator", store.as_uri())
    coordinator.take_over(COORDINATOR)
    first = shared(tmp_path, store, "1", TEACHER._replace(successor=coordinator.begin_writer("teacher")))
    publish(first, "v00000001")
    second = shared(tmp_path, store, "2", TEACHER._replace(successor=coordinator.begin_writer("teacher")))
    before = stored(store)
    with pytest.raises(StreamingError, match="fenced: writers/teacher/"):
        publish(first, "v00000002")
    with pytest.raises(StreamingError, match="fenced"):
        first.delete(first.root / "snapshots" / "teacher" / "v00000001")
    assert stored(store) == before
    publish(second, "v00000002")
    assert stored(store) == before | snapshot("v00000002")


def test_workers_of_an_earlier_coordinator_put_nothing(tmp_path, store):
    coordinator = open_copy(tmp_path / "here", store.as_uri())
    coordinator.take_over(COORDINATOR)
    worker = shared(tmp_path, store, "1", TEACHER._replace(successor=coordinator.begin_writer("teacher")))
    (store / "coordinators" / "00000002.json").write_text(json.dumps({"pid": 7, "host": "there"}))
    with pytest.raises(StreamingError, match="was taken over"):
        publish(worker, "v00000001")
    with pytest.raises(StreamingError, match="was taken over"):
        coordinator.begin_writer("teacher")


def test_data_files_that_were_fetched_are_kept_while_they_are_read(tmp_path, store, monkeypatch):
    student = shared(tmp_path, store, "student", Share(("predictions/",), ("",), ()))
    key = "lake/augmented_examples/vertical=shop/1.parquet"
    (store / key).parent.mkdir(parents=True)
    (store / key).write_text("rows")
    student.fetched(student.root / key)
    student.mirror()
    assert held(student) == {key}
    monkeypatch.setattr("streaming.store.working_copy.UNREAD_S", -1.0)
    student.mirror()
    assert held(student) == set()
    assert key in stored(store)
    assert student.fetched(student.root / key).read_text() == "rows"


def test_who_only_reads_loses_what_went_while_nobody_looked(tmp_path, store):
    for number in range(4):
        (store / "lake" / "_delta_log").mkdir(parents=True, exist_ok=True)
        (store / "lake" / "_delta_log" / f"{number}.json").write_text("of the first lake")
    reader = Share(("lake/readers/",), ("",), ("lake/", "summary.json"))
    (tmp_path / "followed").mkdir()
    open_share(tmp_path / "followed", store.as_uri(), None, reader).follow()
    for number in (2, 3):
        (store / "lake" / "_delta_log" / f"{number}.json").unlink()
    (store / "lake" / "_delta_log" / "1.json").write_text("of the second lake")
    again = WorkingCopy(tmp_path / "followed", store.as_uri(), None, reader)  # of another process, later
    write_text(again.root / "lake" / "readers" / "mine.json", "{}")
    again.follow()
    assert held(again) == {"lake/_delta_log/0.json", "lake/_delta_log/1.json", "lake/readers/mine.json"}
    assert (again.root / "lake" / "_delta_log" / "1.json").read_text() == "of the second lake"


def test_what_a_process_of_before_has_put_late_is_deleted(tmp_path, store):
    student = Share(("predictions/a/", "logs/a."), ("",), ())
    copy = shared(tmp_path, store, "a", student)
    make_folder(copy.root / "predictions" / "a")
    write_text(copy.root / "predictions" / "a" / "1-9.parquet", "mine")
    for key, age_s in (("predictions/a/1-12.parquet", 700), ("predictions/a/13-20.parquet", 1), ("logs/a.log.1", 700)):
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_text("of the process before")
        os.utime(store / key, (time.time() - age_s,) * 2)
    copy.mirror()
    assert "predictions/a/1-12.parquet" in stored(store)  # it may be on its way
    copy.mirror()
    assert stored(store) == {"predictions/a/1-9.parquet", "predictions/a/13-20.parquet", "logs/a.log.1"}


def test_of_two_processes_that_fetch_a_version_into_one_folder_each_has_it(tmp_path, store, monkeypatch):
    publish(shared(tmp_path, store, "teacher", TEACHER), "v00000001")
    reader = Share(("lake/readers/",), ("",), ("snapshots/",))
    (tmp_path / "followed").mkdir()
    one = open_share(tmp_path / "followed", store.as_uri(), None, reader)
    other = WorkingCopy(one.root, one.url, None, reader)
    remove, overtakes = shutil.rmtree, [other]

    def overtaken(path, **options):
        remove(path, **options)
        if Path(path).name == "v00000001" and overtakes:
            overtakes.pop().follow()

    monkeypatch.setattr(shutil, "rmtree", overtaken)
    one.follow()
    assert held(one) == snapshot("v00000001")

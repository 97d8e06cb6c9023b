"""The working copy of one process of a worker: what it begins with, and what it leaves."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from pipelines.live.launch.worker_copies import Following, WorkerPlace, wait_for_first, worker_folder
from streaming.errors import StreamingError
from streaming.store.files import append_line
from streaming.store.working_copy import MARKER
from tests.support.waiting import eventually

STORED = {
    "config.yaml": "of all",
    "checkpoints/student-news/v00000001/manifest.json": "own",
    "checkpoints/teacher/v00000001/manifest.json": "another's",
    "predictions/news/1-2.parquet": "own",
    "predictions/shop/1-2.parquet": "another's",
    "logs/student-news.log": "before\n",
    "logs/teacher.log": "another's",
    "students/news/wish.json": "of all",
    "teachers/versions.jsonl": "followed",
    "lake/augmented_examples/_delta_log/00000000000000000000.json": "followed",
    "lake/augmented_examples/vertical=news/1.parquet": "fetched when it is read",
}
NOT_HERE = {
    "checkpoints/teacher/v00000001/manifest.json",
    "predictions/shop/1-2.parquet",
    "logs/teacher.log",
    "lake/augmented_examples/vertical=news/1.parquet",
}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for key, text in STORED.items():
        (path := tmp_path / "store" / key).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "store"


def place(store: Path, worker: str, rank: int = 0, successor: str = "writers/news/2.json") -> WorkerPlace:
    return WorkerPlace(store.as_uri(), 1, worker, rank, successor)


def held(root: Path) -> set[str]:
    files = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return {name for name in files if not name.startswith(".")}


def test_a_process_begins_with_what_its_worker_needs_and_follows_the_rest(store):
    copy = place(store, "student-news").opened()
    assert held(copy.root) == {"logs/student-news.log"}
    append_line(copy.root / "logs" / "student-news.log", "now")
    with Following(copy) as following:
        following.begin()
        assert held(copy.root) == STORED.keys() - NOT_HERE
        entry = "lake/augmented_examples/_delta_log/00000000000000000001.json"
        (store / entry).write_text("of another machine")
        assert eventually(lambda: (copy.root / entry).exists())
    assert (store / "logs" / "student-news.log").read_text() == "before\nnow\n"


def test_what_an_ended_process_has_left_is_deleted_and_what_lives_is_not(store):
    alive = place(store, "student-news").opened()
    (left := worker_folder(store.as_uri()) / "teacher-0-12345678").mkdir()
    (left / MARKER).touch()
    below = WorkerPlace(f"{store.as_uri()}/below", 1, "teacher", 0, "").opened()  # another run's
    other = place(store, "teacher").opened()
    assert not left.exists()
    assert alive.root.is_dir()
    assert below.root.is_dir()
    assert alive.root != other.root
    assert (other.root.stat().st_mode & 0o777) == 0o700


def test_ranks_have_logs_of_their_own(store):
    first, second = (place(store, "augmentation", rank).share for rank in (0, 1))
    assert first.owns("logs/augmentation.log")
    assert not second.owns("logs/augmentation.log")
    assert second.owns("logs/augmentation-rank1.log.1")
    assert not second.owns("kept_columns.json")


def test_ranks_of_one_model_share_a_copy_that_rank_0_fills(store):
    first, second = (place(store, "student-news", rank)._replace(shared_copy="a1") for rank in (0, 1))
    assert (first.led, second.led) == (False, True)
    assert first.share == second.share
    assert first.share.owns("logs/student-news-rank1.log")
    assert not first.share.owns("logs/student-news-late.log")
    follower = second.opened()
    with pytest.raises(StreamingError, match=r"ranks of one model have to be on one machine"):
        wait_for_first(follower.root, within_s=0)
    copy = first.opened()
    assert copy.root == follower.root
    place(store, "teacher").opened()  # deletes what nobody holds
    with Following(copy) as following:
        following.begin()
        wait_for_first(follower.root, within_s=0)
        assert held(copy.root) == STORED.keys() - NOT_HERE
    assert first._replace(shared_copy="b2").opened().root != copy.root


def test_a_process_that_has_a_successor_ends_with_words(store):
    copy = place(store, "student-news").opened()
    (store / "writers" / "news").mkdir(parents=True)
    (store / "writers" / "news" / "2.json").write_text("{}")
    with pytest.raises(StreamingError, match=r"fenced: writers/news/2.json of .* was begun after this process"):
        append_line(copy.root / "logs" / "student-news.log", "now")
    assert (store / "logs" / "student-news.log").read_text() == "before\n"


def test_copies_of_another_machine_in_the_same_home_folder_stay(store, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "other")
    (alive := worker_folder(store.as_uri()) / "teacher-0-12345678").mkdir(parents=True)
    (alive / MARKER).touch()  # its lock is not seen here
    monkeypatch.setattr(platform, "node", lambda: "this")
    place(store, "student-news").opened()
    assert alive.is_dir()
    monkeypatch.setattr(platform, "node", lambda: "other")
    place(store, "student-news").opened()
    assert not alive.exists()

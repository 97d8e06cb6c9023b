"""Files are complete or absent, whatever interrupts their writer; a lock ends with the process that holds it."""

import errno
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest

from streaming.errors import DiskFull, StreamingError
from streaming.store.files import (
    PART_SUFFIX,
    Staged,
    append_line,
    make_folder,
    read_json,
    replacing,
    replacing_folder,
    sync_all,
    write_json,
    write_text,
)
from streaming.store.lock import file_lock
from tests.support.waiting import PATIENCE_S


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("error", [Interrupted, OSError(errno.EIO, "broken")])
def test_an_interrupted_write_leaves_the_file_before_and_nothing_else(tmp_path, error):
    write_text(tmp_path / "config.yaml", "before")

    def interrupted():
        with replacing(tmp_path / "config.yaml") as file:
            file.write(b"aft")
            raise error

    with pytest.raises((Interrupted, OSError)):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
    assert (tmp_path / "config.yaml").read_text() == "before"


def test_a_file_is_flushed_before_it_is_moved_into_place_and_its_name_after(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    make_folder(tmp_path)
    there = []
    monkeypatch.setattr(os, "fsync", lambda _: there.append(path.exists()))
    write_text(path, "text")
    assert (there, path.read_text()) == ([False, True], "text")


@pytest.mark.parametrize("made_before", [("a",), ("a", "a/b"), ("a", "a/b", "a/b/c")])
def test_the_name_of_a_folder_is_flushed_also_where_a_process_died_before_it_could(tmp_path, monkeypatch, made_before):
    for name in made_before[:-1]:
        make_folder(tmp_path / name)
    (tmp_path / made_before[-1]).mkdir()  # and gone
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    make_folder(tmp_path / "a/b/c")
    not_yet = [tmp_path / name for name in ("a", "a/b", "a/b/c") if name not in made_before[:-1]]
    assert flushed == [folder.parent.stat().st_ino for folder in not_yet]


def test_staged_files_are_flushed_at_once_and_those_that_were_not_moved_are_deleted(tmp_path, monkeypatch):
    names = ["rows", "marks", "manifest"]
    together = threading.Barrier(len(names), timeout=10)  # each waits until all have begun

    def interrupted():
        with Staged(tmp_path) as staged:
            for name in names:
                with staged.writing(name) as file:
                    file.write(name.encode())
            monkeypatch.setattr(os, "fsync", lambda _: together.wait())
            staged.flush()
            assert all(path.suffix == PART_SUFFIX for path in tmp_path.iterdir())
            staged.move(["rows"])
            raise Interrupted

    with pytest.raises(Interrupted):
        interrupted()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"rows": "rows"}


def test_a_full_disk_is_named_with_the_file(tmp_path):
    with pytest.raises(DiskFull, match=r"no space left for .*config\.yaml"), replacing(tmp_path / "config.yaml"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_two_threads_that_write_one_path_do_not_mix_their_bytes(tmp_path):
    path, opened = tmp_path / "status.json", threading.Barrier(2, timeout=PATIENCE_S)

    def write(letter: bytes) -> None:
        with replacing(path) as file:
            opened.wait()
            file.write(letter * 100_000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in (b"a" * 100_000, b"b" * 100_000)
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]


def test_a_folder_replaces_the_one_before_as_a_whole(tmp_path):
    folder = tmp_path / "record-1"
    with replacing_folder(folder) as part:
        (part / "old").touch()

    def interrupted():
        with replacing_folder(folder) as part:
            (part / "half").touch()
            raise Interrupted

    with pytest.raises(Interrupted):
        interrupted()
    assert [path.name for path in folder.iterdir()] == ["old"]
    with replacing_folder(folder) as part:
        (part / "new").touch()
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["record-1"]


def test_json_is_read_back_and_damage_is_named(tmp_path):
    path = tmp_path / "run" / "summary.json"
    assert read_json(path) is None
    write_json(path, {"ne": 0.5})
    assert read_json(path) == {"ne": 0.5}
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"ne": float("nan")})
    assert read_json(path) == {"ne": 0.5}
    path.write_text('{"ne":')
    with pytest.raises(StreamingError, match=r"summary\.json is damaged"):
        read_json(path)


def test_a_lock_is_exclusive_or_shared_and_ends_with_its_process(tmp_path):
    path = tmp_path / "run.lock"
    holds = (
        "import sys\nfrom pathlib import Path\nfrom streaming.store.lock import file_lock\n"
        "with file_lock(Path(sys.argv[1])) as held:\n    print(held, flush=True)\n    input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holds, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout.readline() == "True\n"
        with file_lock(path) as held, file_lock(path, shared=True, wait_s=0.02) as shared:
            assert (held, shared) == (False, False)
    finally:
        other.kill()
        other.wait(timeout=PATIENCE_S)
        other.stdin.close()
        other.stdout.close()
    with file_lock(path, shared=True) as first, file_lock(path, shared=True) as second, file_lock(path) as alone:
        assert (first, second, alone) == (True, True, False)
    with file_lock(path, wait_s=None) as held:
        assert held


def test_a_forked_process_flushes_by_threads_of_its_own(tmp_path):
    (tmp_path / "a").write_text("a")
    sync_all([tmp_path / "a"])
    child = multiprocessing.get_context("fork").Process(target=sync_all, args=([tmp_path / "a"],))
    child.start()
    child.join(timeout=PATIENCE_S)
    assert child.exitcode == 0


def test_several_are_flushed_at_once_and_what_fails_is_told(tmp_path, monkeypatch):
    names = ["a", "b", "c"]
    for name in names:
        (tmp_path / name).write_text(name)
    together = threading.Barrier(len(names), timeout=PATIENCE_S)  # each waits until all have begun
    monkeypatch.setattr(os, "fsync", lambda _: together.wait())
    sync_all([tmp_path / name for name in names])
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    sync_all([tmp_path / "gone", tmp_path / "a"])
    assert flushed == [(tmp_path / "a").stat().st_ino]
    sync_all([])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"no space left for .*/b"):
        sync_all([tmp_path / "gone", tmp_path / "b"])


@pytest.mark.parametrize("write", [lambda path: write_text(path, "text"), lambda path: append_line(path, "line")])
def test_a_file_in_a_folder_whose_maker_died_before_its_name_was_flushed_has_that_flushed_once(
    tmp_path, monkeypatch, write
):
    folder = tmp_path / "a"
    folder.mkdir()  # and gone
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    write(folder / "one")
    write(folder / "two")
    assert flushed.count(tmp_path.stat().st_ino) == 1


def test_a_folder_that_this_process_has_deleted_and_makes_again_has_its_name_flushed_again(tmp_path, monkeypatch):
    make_folder(tmp_path / "a")
    (tmp_path / "a").rmdir()  # the next one may get its number
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    make_folder(tmp_path / "a")
    assert tmp_path.stat().st_ino in flushed


def test_a_folder_that_is_made_again_under_its_name_has_that_flushed_again(tmp_path, monkeypatch):
    make_folder(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "kept")  # so that the next one has another number
    (tmp_path / "a").mkdir()
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    make_folder(tmp_path / "a")
    assert flushed == [tmp_path.stat().st_ino]

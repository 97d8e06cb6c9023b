"""The record of a commit: on the disk before the commit names it, and missed in words when it is not."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

import pyarrow as pa
import pytest

from streaming.delivery.outbox import CommitRecord
from streaming.errors import DiskFull, StreamingError
from streaming.messages.dead_letters import DeadLetter, letters_to_batch
from streaming.schema import RowSchema
from streaming.settlement.label_join import late_schema

SCHEMA = RowSchema(columns=[{"name": "price"}], tasks=[{"name": "ctr", "window_s": 1}])


def record(number: int, letters: int = 2) -> CommitRecord:
    dead = [DeadLetter("impression", "null:price", "ads", 0, number, row, "why", b"\xff") for row in range(letters)]
    late = late_schema(SCHEMA).empty_table()
    return CommitRecord(number, {"merge": {"watermark_ms": 7}}, late, pa.Table.from_batches([letters_to_batch(dead)]))


def test_files_and_names_are_flushed_before_a_commit_may_name_them(tmp_path, monkeypatch):
    """What is flushed, and what is moved, in order: a power cut after `save` finds the record whole."""
    done: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def flushed(file: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    def moved(source: Path, target: Path) -> Path:
        done.append(f"-> {target.name}")
        return rename(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "rename", moved)
    folder = tmp_path / "epoch-1"
    record(7).save(folder)
    assert set(done[-6:-3]) == {"late.arrow", "dead.arrow", "meta.json"}  # at once
    assert done[-3:] == [".record-000000000007.part", "-> record-000000000007", "epoch-1"]
    assert tmp_path.name in done  # the folder that now holds epoch-1


def test_a_full_disk_leaves_no_record_and_the_next_try_makes_one(tmp_path, monkeypatch):
    def full(file: int) -> None:
        if stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match=r"no space left for .*record-"):
            record(7).save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    record(7).save(tmp_path)
    assert CommitRecord.load(tmp_path, 7) == record(7)


@pytest.mark.parametrize("name", ["late.arrow", "dead.arrow", "meta.json"])
def test_a_record_that_is_damaged_or_gone_is_told(tmp_path, name):
    record(7).save(tmp_path)
    path = tmp_path / "record-000000000007" / name
    for damage in (lambda: path.write_bytes(path.read_bytes()[:-10]), path.unlink, lambda: shutil.rmtree(path.parent)):
        damage()
        with pytest.raises(StreamingError, match=r"record of commit 7, .* cannot be read.*start a new run"):
            CommitRecord.load(tmp_path, 7)

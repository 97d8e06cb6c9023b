"""Rows are written without a gap and exactly once, whatever is killed, by one writer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError

import streaming.lake.delta.table
from streaming.errors import BadInput, StreamingError
from streaming.lake.writer import LakeTable
from streaming.schema import Column, RowSchema, Task
from tests.support.places import ROOT
from tests.support.streams.lake_rows import SCHEMA, fill, filled, rows

WRITER_THAT_IS_KILLED = """
import sys
from streaming.lake.writer import LakeTable
from tests.support.streams.lake_rows import SCHEMA, rows
writer = LakeTable(sys.argv[1], SCHEMA).open_writer()
print("open", flush=True)
while True:
    first = writer.last_lake_seq + 1
    count = 200 + first % 300
    writer.commit(rows(first, count), state=first + count, metadata={"counted": first + count})
"""


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA)


def test_what_is_written_is_read_back_whole(lake: LakeTable) -> None:
    reader = filled(lake, 500)
    table = reader.read().table
    assert table.schema.equals(SCHEMA.augmented)
    assert table.equals(pa.table(rows(0, 500)))


def test_a_new_writer_goes_on_where_the_last_one_stopped(lake: LakeTable) -> None:
    fill(lake.open_writer(), 300, 200)
    writer = lake.open_writer()
    assert (writer.last_lake_seq, writer.last_block, writer.state, writer.epoch) == (499, 499, 500, 2)
    assert writer.metadata == {"rows": 500}
    fill(writer, 100)
    assert lake.open_reader().read(columns=["lake_seq"]).table["lake_seq"].to_pylist() == list(range(600))


@pytest.mark.parametrize(("first", "fault"), [(501, "a gap"), (499, "an overlap"), (0, "an overlap")])
def test_rows_that_skip_or_repeat_positions_are_refused(lake: LakeTable, first: int, fault: str) -> None:
    writer = lake.open_writer()
    fill(writer, 500)
    with pytest.raises(StreamingError, match=rf"{fault}: .* ends at lake_seq 499, .* 500; these rows begin at {first}"):
        writer.commit(rows(first, 10, block=1000), state=1, metadata={})
    assert lake.open_reader().last_lake_seq == 499


def test_a_hole_inside_the_rows_is_refused(lake: LakeTable) -> None:
    batches = [rows(0, 10), rows(11, 5)]
    with pytest.raises(StreamingError, match="from 9 to 11"):
        lake.open_writer().commit(batches, state=1, metadata={})


def test_a_block_is_committed_whole(lake: LakeTable) -> None:
    writer = lake.open_writer()
    writer.commit(rows(0, 10, block=3), state=1, metadata={})
    with pytest.raises(StreamingError, match=r"holds block 3 already.*blocks 3 to 3"):
        writer.commit(rows(10, 10, block=3), state=2, metadata={})
    writer.commit([rows(10, 10, block=4), rows(20, 5, block=5)], state=2, metadata={})
    assert writer.last_block == 5


def test_rows_of_another_shape_are_refused_naming_the_column(lake: LakeTable) -> None:
    table = pa.table(rows(0, 5))
    wrong = table.set_column(5, "user_id", table["user_id"].cast(pa.string()))
    with pytest.raises(StreamingError, match="`user_id` is string, not int64"):
        lake.open_writer().commit(wrong, state=1, metadata={})


def test_progress_without_rows_is_kept(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, 10)
    assert writer.commit(None, state=77, metadata={"impressions_read": 5}) == 9
    again = lake.open_writer()
    assert (again.last_lake_seq, again.state, again.metadata) == (9, 77, {"impressions_read": 5})


def test_an_existing_lake_with_other_columns_is_refused_naming_them(lake: LakeTable) -> None:
    lake.open_writer()
    other = RowSchema(
        columns=(Column(name="user_id", type="string"), Column(name="age")), tasks=(Task(name="ctr", window_s=60),)
    )
    for opener in (LakeTable(lake.path, other).open_writer, LakeTable(lake.path, other).open_reader):
        with pytest.raises(BadInput, match=r"`user_id` is int64, not string; `age` \(int64\) is missing"):
            opener()


def test_a_folder_that_cannot_be_written_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file")
    with pytest.raises(BadInput, match="occupied"):
        LakeTable(tmp_path / "occupied" / "lake", SCHEMA).open_writer()


def test_the_older_of_two_writers_is_fenced(lake: LakeTable) -> None:
    older = lake.open_writer()
    fill(older, 100)
    newer = lake.open_writer()
    with pytest.raises(StreamingError, match=r"fenced: .* epoch 1, the lake has 2"):
        fill(older, 100)
    fill(newer, 50)
    with pytest.raises(StreamingError, match="fenced"):
        older.commit(None, state=1, metadata={})
    assert lake.open_reader().read(columns=["lake_seq"]).table["lake_seq"].to_pylist() == list(range(150))


def test_a_commit_reported_as_failed_after_it_was_stored_is_not_made_twice(
    lake: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = lake.open_writer()
    write, lies = streaming.lake.delta.table.append_rows, 1

    def stored_and_denied(*args: Any, **kwargs: Any) -> None:
        nonlocal lies
        write(*args, **kwargs)
        if lies:
            lies -= 1
            raise CommitFailedError("somebody else was first")

    monkeypatch.setattr(streaming.lake.delta.table, "append_rows", stored_and_denied)
    fill(writer, 100, 50)
    assert lies == 0
    assert lake.open_reader().read(columns=["lake_seq"]).table["lake_seq"].to_pylist() == list(range(150))


def test_a_commit_is_on_the_disk_when_it_returns_its_files_before_the_entry_that_names_them(
    lake: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, flushed = lake.open_writer(), []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (flushed.append(os.readlink(f"/proc/self/fd/{handle}")), real(handle))
    )
    fill(writer, 3000)
    files = set(DeltaTable(lake.path).file_uris())
    entry = str(lake.path / "_delta_log" / f"{DeltaTable(lake.path).version():020d}.json")
    assert len(files) > 1
    last = max(flushed.index(file) for file in files)
    assert last < flushed.index(entry)
    assert {entry, str(lake.path / "_delta_log")} <= set(flushed[last:])


def test_a_writer_that_is_taken_over_from_while_it_commits_is_told_so(
    lake: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are in the lake; what follows the commit, publishing above all, is the newer one's business."""
    older, write = lake.open_writer(), streaming.lake.delta.table.append_rows

    def stopped_for_long(*given: Any, **named: Any) -> None:
        write(*given, **named)
        monkeypatch.undo()
        lake.open_writer()

    monkeypatch.setattr("streaming.lake.delta.table.append_rows", stopped_for_long)
    with pytest.raises(StreamingError, match=r"fenced: .* epoch 1, the lake has 2"):
        fill(older, 100)
    assert lake.open_writer().last_lake_seq == 99


def test_a_compaction_in_between_does_not_stop_the_writer(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, 100, 100)
    DeltaTable(lake.path).optimize.compact()
    fill(writer, 100)
    assert lake.open_reader().read(columns=["lake_seq"]).table["lake_seq"].to_pylist() == list(range(300))


def test_metadata_outlives_checkpoints_and_log_cleaning_by_others(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, 10, 10)
    for _ in range(3):
        fill(writer, 5)
        table = DeltaTable(lake.path)
        table.optimize.compact(post_commithook_properties=PostCommitHookProperties(create_checkpoint=True))
        table.create_checkpoint()
    assert lake.open_writer().metadata == {"rows": 35}


def test_a_log_of_many_commits_stays_bounded(lake: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.lake.delta.table.LOG_RETENTION", "interval 0 seconds")
    monkeypatch.setattr("streaming.lake.delta.table.CHECKPOINT_EVERY_COMMITS", 10)
    writer, reader = lake.open_writer(), lake.open_reader()
    fill(writer, *[3] * 55)
    assert len(list((lake.path / "_delta_log").iterdir())) <= 25
    reader.refresh()  # from a version whose log files are gone
    assert reader.read(columns=["lake_seq"]).table["lake_seq"].to_pylist() == list(range(165))
    assert lake.open_writer().metadata == {"rows": 165}


def test_writers_killed_at_random_moments_leave_every_row_once(lake: LakeTable) -> None:
    chance = random.Random(7)
    seen = -1
    for killed in range(1, 9):
        script = [sys.executable, "-c", WRITER_THAT_IS_KILLED, str(lake.path)]
        process = subprocess.Popen(script, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            process.wait(chance.uniform(0.0, 0.25))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()

        table = DeltaTable(lake.path)
        seq = lake.open_reader().read(columns=["lake_seq"]).table["lake_seq"].to_numpy()
        assert len(seq) == len(np.unique(seq)) == table.transaction_version("exfm/lake_seq") + 1
        assert np.array_equal(seq, np.arange(len(seq)))
        assert len(seq) - 1 >= seen
        seen = len(seq) - 1
        assert table.transaction_version("exfm/epoch") == killed
        assert table.transaction_version("exfm/state") == (len(seq) or -1)
    assert seen > 1000, "the writers were killed before they wrote anything worth checking"
    assert lake.open_writer().metadata == {"counted": seen + 1}

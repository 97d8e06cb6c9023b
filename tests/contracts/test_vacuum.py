"""Files that nothing names are deleted, but under no reader and beside no commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from streaming.lake.delta.lock import housekeeping_lock, in_flight_lock
from streaming.lake.delta.vacuum import vacuum_table
from streaming.lake.reader import LakeReader
from streaming.lake.writer import LakeTable
from tests.support.places import ROOT
from tests.support.streams.housework import compacted, data_files, fill, whole
from tests.support.streams.lake_rows import SCHEMA


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA)


def test_replaced_files_go_when_they_have_been_so_for_long_enough(lake: LakeTable) -> None:
    fill(lake.open_writer(), *[100] * 4)
    written = data_files(lake)
    for path in written:
        os.utime(path, (1, 1))  # written long ago, replaced now
    compacted(lake)
    assert vacuum_table(lake.path, 60.0) == (0, 0, len(written), False)
    assert written <= data_files(lake)
    for path in written:
        os.utime(path, (time.time() - 61, time.time() - 61))
    swept = vacuum_table(lake.path, 60.0)
    assert (swept.files, swept.waiting) == (16, 0)
    assert not written & data_files(lake)
    whole(lake)


def test_what_a_killed_commit_left_behind_goes_and_nothing_else(lake: LakeTable) -> None:
    fill(lake.open_writer(), 100)
    good = data_files(lake)
    script = (
        "import os, signal, sys, streaming.lake.delta.table as d\n"
        "from pathlib import Path\n"
        "from streaming.lake.writer import LakeTable\n"
        "from tests.support.streams.lake_rows import SCHEMA, rows\n"
        "writer = LakeTable(sys.argv[1], SCHEMA).open_writer()\n"
        "path = Path(sys.argv[1]) / 'vertical=news/event_date=2026-01-01'\n"
        "def killed(*_, **__):\n"
        "    (path / 'part-00000-dead-c000.zstd.parquet').write_bytes(b'x')\n"
        "    (path / 'part-00000-dead-c000.zstd.parquet#1').write_bytes(b'x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "d.append_rows = killed\n"
        "writer.commit(rows(100, 10), state=1, metadata={})\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(lake.path)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert vacuum_table(lake.path, 60.0) == (0, 0, 2, False)
    assert vacuum_table(lake.path, 0.0).files == 2
    assert data_files(lake) == good
    whole(lake)


def test_nothing_is_deleted_while_a_commit_is_in_flight(lake: LakeTable) -> None:
    fill(lake.open_writer(), 100)
    left = lake.path / "part-00000-x-c000.zstd.parquet"
    left.write_bytes(b"x")
    with in_flight_lock(lake.path):
        assert vacuum_table(lake.path, 0.0, wait_s=0.02).busy
        assert left.exists()
    assert vacuum_table(lake.path, 0.0).files == 1


def test_one_keeps_house_at_a_time(lake: LakeTable) -> None:
    lake.open_writer()
    with housekeeping_lock(lake.path, 0.0) as first, housekeeping_lock(lake.path, 0.02) as second:
        assert (first, second) == (True, False)


def test_readers_go_on_while_everything_is_merged_and_deleted_under_them(lake: LakeTable) -> None:
    """Whole reads, limited reads and blocks, each from an old look, with files gone from one moment to the next."""
    writer = lake.open_writer()
    fill(writer, *[40] * 30)
    stop = threading.Event()
    faults: list[BaseException] = []
    reads = [0, 0, 0]

    def watch(kind: int) -> None:
        try:
            reader = LakeReader(lake.path, SCHEMA, chunk_rows=256)
            while not stop.is_set() or not reads[kind]:
                reader.refresh()
                end = reader.last_lake_seq
                if kind == 0:
                    seq = reader.read(-1, columns=["lake_seq"]).table["lake_seq"].to_numpy()
                elif kind == 1:
                    parts, place = [], -1
                    while place < end:
                        read = reader.read(place, upto=end, limit_rows=97, columns=["lake_seq"])
                        parts.append(read.table["lake_seq"].to_numpy())
                        place = read.complete_upto
                    seq = np.concatenate(parts)
                else:
                    blocks = list(reader.blocks())
                    assert all(len(block["block"].unique()) == 1 for block in blocks)
                    seq = np.concatenate([block["lake_seq"].to_numpy() for block in blocks])[: end + 1]
                assert np.array_equal(seq, np.arange(end + 1))
                reads[kind] += 1
        except BaseException as error:  # told to the test below
            faults.append(error)

    threads = [threading.Thread(target=watch, args=(kind,)) for kind in range(3)]
    for thread in threads:
        thread.start()
    merged = 0
    for _ in range(10):
        fill(writer, *[40] * 3)
        merged += compacted(lake, compact_files=2).merged_files
        vacuum_table(lake.path, 0.0)
    stop.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert merged > 60
    assert len(data_files(lake)) == lake.open_reader().files
    whole(lake)

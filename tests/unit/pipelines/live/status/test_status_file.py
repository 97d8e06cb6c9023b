"""status.json is whole at every moment, and is rewritten on a disk that takes nothing more."""

from __future__ import annotations

import json
import os
import threading
from functools import partial

import pytest

from pipelines.live.status.file import ROOM, StatusFile
from streaming.store.files import read_json
from tests.support.pipelines.disks import disk_of_its_own, fill


@pytest.fixture
def small_disk(tmp_path):
    with disk_of_its_own(tmp_path / "disk") as place:
        yield place


def test_it_is_rewritten_on_a_full_disk(small_disk):
    file = StatusFile(small_disk / "status.json")
    file.write(lambda: {"state": "running"})
    file.write(lambda: {"state": "running"})
    fill(small_disk)
    with pytest.raises(OSError, match="No space"):
        (small_disk / "other").write_text("x" * 4096)
    for number in range(5):
        value = {"state": "running", "reason": f"disk full ({number})", "more": "x" * (ROOM // 2)}
        file.write(partial(dict, value))
        assert read_json(file.path)["reason"] == f"disk full ({number})"


def test_where_there_is_no_room_at_all_the_old_text_stays_whole(small_disk):
    file = StatusFile(small_disk / "status.json")
    fill(small_disk)
    file.write(lambda: {"state": "running"})  # no error: training is not to end of this
    os.truncate(small_disk / "ballast", 900_000)
    file.write(lambda: {"state": "running"})
    fill(small_disk)
    file.write(lambda: {"long": "x" * 3 * ROOM})
    assert read_json(file.path) == {"state": "running"}


def test_a_reader_never_sees_half_of_it(tmp_path):
    file = StatusFile(tmp_path / "status.json")
    file.write(lambda: {"n": [0] * 100})
    over = threading.Event()

    def write():
        for n in range(1, 500):
            file.write(partial(dict, n=[n] * (100 + n)))
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        value = json.loads(file.path.read_text())["n"]
        assert value == [value[0]] * (100 + value[0])
    writer.join()


def test_what_a_killed_writer_left_behind_is_in_nobodys_way(tmp_path):
    first = StatusFile(tmp_path / "status.json")
    first.write(lambda: {"n": 1})
    os.link(first.path, tmp_path / ".status.json.old")
    (tmp_path / ".status.json.spare").write_text("half")
    again = StatusFile(tmp_path / "status.json")
    again.write(lambda: {"n": 2})
    assert read_json(again.path) == {"n": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".status.json.spare", "status.json"]

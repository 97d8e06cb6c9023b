"""The lake on a disk that is full, and after a crash of the machine that cut files short."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from streaming.errors import DiskFull, StreamingError
from streaming.lake.housekeeping import Housekeeper
from streaming.lake.readers import Readers
from streaming.lake.settings import LakeSettings
from streaming.lake.side_tables import DEAD_LETTERS, SideTable
from streaming.lake.writer import LakeTable, LakeWriter
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from tests.support.streams.lake_rows import SCHEMA, VERTICALS, rows


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 4 MB of its own."""
    place = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here (it takes root)")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class Ballast:
    """Fills the disk up to some bytes."""

    def __init__(self, disk: Path) -> None:
        self._disk, self._file = disk, disk / "ballast"

    def leave(self, bytes_: int) -> None:
        state = os.statvfs(self._disk)
        self._file.write_bytes(b"x" * max(0, state.f_bavail * state.f_frsize - bytes_))

    def drop(self) -> None:
        self._file.unlink(missing_ok=True)


@pytest.fixture
def ballast(disk: Path) -> Iterator[Ballast]:
    ballast = Ballast(disk)
    yield ballast
    ballast.drop()
    shutil.rmtree(disk / "lake", ignore_errors=True)


def fill(writer: LakeWriter, count: int) -> None:
    first = writer.last_lake_seq + 1
    writer.commit(rows(first, count), state=first + count, metadata={"rows": first + count})


def files(lake: LakeTable) -> list[Path]:
    return sorted(path for path in lake.path.rglob("*") if path.is_file())


def sequence(lake: LakeTable) -> list[int]:
    found: list[int] = lake.open_reader().read(columns=["lake_seq"]).table["lake_seq"].to_pylist()
    return found


@pytest.mark.parametrize("left", [0, 12_288, 28_672, 40_960, 49_152])
def test_a_commit_that_finds_the_disk_full_never_happened_and_goes_through_later(
    disk: Path, ballast: Ballast, left: int
) -> None:
    """With room for nothing, for some of its files, and for all of them but not for its entry in the log."""
    lake = LakeTable(disk / "lake" / "table", SCHEMA)
    writer = lake.open_writer()
    fill(writer, 400)
    ballast.leave(left)
    before = files(lake)
    for _ in range(3):  # as often as it is tried
        with pytest.raises(DiskFull, match=r"the disk is full: 400 rows could not be committed to .*free some space"):
            fill(writer, 400)
        assert sequence(lake) == list(range(400))
    # A file that was still being written when the last try ended is deleted by the next one.
    assert len(set(files(lake)) - set(before)) < len(VERTICALS), "tries leave files behind, and so fill the disk"
    ballast.drop()
    fill(writer, 400)
    other = lake.open_writer()
    assert (other.last_lake_seq, other.state, other.metadata) == (799, 800, {"rows": 800})
    fill(other, 400)
    assert sequence(lake) == list(range(1200))


def test_a_commit_that_is_in_the_table_when_the_disk_fills_up_is_not_made_twice(
    disk: Path, ballast: Ballast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are stored, the checkpoint after them finds no room."""
    monkeypatch.setattr("streaming.lake.delta.table.CHECKPOINT_EVERY_COMMITS", 2)
    lake = LakeTable(disk / "lake" / "table", SCHEMA)
    writer, failed, said = lake.open_writer(), 0, set()
    for left in range(50_000, 90_000, 2_000):
        ballast.leave(left)
        for _ in range(2):  # a checkpoint is due at one of them
            try:
                fill(writer, 100)
            except DiskFull as full:
                failed += 1
                there = len(sequence(lake)) > writer.last_lake_seq + 1
                said.add(("rows are in" in str(full), there))
                ballast.drop()
                fill(writer, 100)
        ballast.drop()
        assert sequence(lake) == list(range(writer.last_lake_seq + 1))
        if writer.last_lake_seq > 2_000:
            break
    assert failed
    assert (True, True) in said
    assert all(claimed == there for claimed, there in said)


def test_dead_letters_wait_for_room_too(disk: Path, ballast: Ballast) -> None:
    table = SideTable(disk / "lake", DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    letters = letters_to_batch([DeadLetter("impression", "undecodable", "ads", 0, 7, 0, "", b"?")])
    ballast.leave(0)
    with pytest.raises(DiskFull):
        table.append(letters, number=1)
    ballast.drop()
    assert table.append(letters, number=1) == 1
    assert table.append(letters, number=1) == 0


def test_housekeeping_without_room_changes_nothing_and_is_made_up_for(disk: Path, ballast: Ballast) -> None:
    lake = LakeTable(disk / "lake" / "table", SCHEMA)
    writer = lake.open_writer()
    for _ in range(8):
        fill(writer, 400)
    keeper = Housekeeper(lake.path, [], Readers(disk / "lake" / "readers"), LakeSettings(compact_files=2))
    ballast.leave(8_192)
    keeper.maybe()
    assert keeper.wait(30)
    assert keeper.trouble is not None
    assert sequence(lake) == list(range(3200))
    ballast.drop()
    keeper.maybe()
    assert keeper.wait(30)
    assert keeper.trouble is None
    keeper.close()
    assert lake.open_reader().files <= 8
    assert sequence(lake) == list(range(3200))


# --- files cut short


@pytest.fixture
def written(tmp_path: Path) -> LakeTable:
    """A lake of 52 log entries and checkpoints at 19 and 39."""
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    writer = lake.open_writer()
    for _ in range(50):
        fill(writer, 10)
    return lake


def entry(lake: LakeTable, version: int, ending: str = ".json") -> Path:
    return lake.path / "_delta_log" / f"{version:020d}{ending}"


def test_a_checkpoint_cut_short_is_named_and_what_helps_helps(written: LakeTable) -> None:
    checkpoint = entry(written, 39, ".checkpoint.parquet")
    os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    said = (
        r"0039.checkpoint.parquet is cut short or damaged\. Move it away, and .*_last_checkpoint too: "
        "the log's entries from 20 on hold all that it held"
    )
    for opener in (written.open_reader, written.open_writer):
        with pytest.raises(StreamingError, match=said):
            opener()
    checkpoint.unlink()
    (written.path / "_delta_log" / "_last_checkpoint").unlink()
    assert sequence(written) == list(range(500))
    fill(written.open_writer(), 10)


def test_a_checkpoint_that_nothing_replaces_is_told_as_lost(written: LakeTable) -> None:
    checkpoint = entry(written, 39, ".checkpoint.parquet")
    os.truncate(checkpoint, 100)
    entry(written, 30).unlink()
    with pytest.raises(StreamingError, match=r"The entries 30 to 30 that it stands for have been deleted"):
        written.open_reader()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lake: entry(lake, 39, ".checkpoint.parquet").unlink(), r"checkpoint .*0039.checkpoint.parquet is gone"),
        (lambda lake: os.truncate(entry(lake, 39, ".checkpoint.parquet"), 0), r"0039.checkpoint.parquet is cut short"),
        (lambda lake: entry(lake, 45).unlink(), r"the log entry .*0045.json is gone, and 46 is there"),
        (lambda lake: os.truncate(entry(lake, 51), 100), r"newest log entry .*0051.json is cut short.* made again"),
        (lambda lake: os.truncate(entry(lake, 45), 100), r"the log entry .*0045.json is damaged"),
    ],
    ids=["no checkpoint", "empty checkpoint", "missing entry", "newest entry cut short", "older entry cut short"],
)
def test_damage_is_told_by_file_and_remedy(written: LakeTable, damage: Callable[[LakeTable], None], said: str) -> None:
    damage(written)
    with pytest.raises(StreamingError, match=said) as error:
        written.open_reader()
    assert "\n" not in str(error.value)


def test_a_data_file_cut_short_is_named(written: LakeTable) -> None:
    file = max(written.path.rglob("vertical=*/**/*.parquet"))
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises((StreamingError, OSError, pa.ArrowInvalid), match=file.name):
        written.open_reader().read()


def test_files_and_folders_that_a_commit_added_reach_the_disk_before_its_entry_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeTable(tmp_path / "lake", SCHEMA)
    writer = lake.open_writer()
    done: list[Path] = []
    fsync = os.fsync

    def flushed(file: int) -> None:
        fsync(file)
        done.append(Path(os.readlink(f"/proc/self/fd/{file}")))

    monkeypatch.setattr(os, "fsync", flushed)
    fill(writer, 400)
    added = {path for path in lake.path.rglob("*.parquet") if "_delta_log" not in path.parts}
    log = lake.path / "_delta_log"
    entry = max(log.glob("*.json"))
    first = set(done[: done.index(entry)])
    assert added | {path.parent for path in added} <= first
    assert len(added) > 1
    assert log in done

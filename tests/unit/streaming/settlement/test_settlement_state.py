"""What a settlement leaves on the disk: written once, found again whole, whatever was cut off and wherever."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streaming.errors import BadInput, DiskFull, StreamingError
from streaming.schema import RowSchema
from streaming.settlement import pending
from streaming.settlement.config import SettlementConfig
from streaming.settlement.marks import Marks
from streaming.settlement.settlement import Settlement
from streaming.store import deltas, numbered
from streaming.store.segments import store_segments
from tests.support.streams.rows import merged

TASKS = [{"name": "ctr", "window_s": 1}, {"name": "cvr", "window_s": 10, "given": "ctr"}]


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch):
    monkeypatch.setattr(pending, "SEGMENT_ROWS", 4)


def new_settlement(spill: Path | None = None, dedup_horizon_s: float = 12) -> Settlement:
    schema = RowSchema(columns=[{"name": "price"}], tasks=TASKS)
    return Settlement(schema, SettlementConfig(dedup_horizon_s=dedup_horizon_s), spill=spill)


def play(settlement: Settlement, start: int, stop: int) -> pa.RecordBatch:
    """Impressions [start, stop), one a second; every third is clicked, every sixth converts; one click is early."""
    clicks = [(i, i * 1000 + 10, "ctr") for i in range(start, stop) if i % 3 == 0]
    clicks += [(i, i * 1000 + 20, "cvr") for i in range(start, stop) if i % 6 == 0]
    clicks += [(stop + 1, (stop - 1) * 1000 + 30, "ctr")]
    ads = [(i, i * 1000) for i in range(start, stop)]
    return settlement.step(merged(settlement.schema, ads, sorted(clicks, key=lambda click: click[1]))).batch


def rest(settlement: Settlement, start: int) -> list[dict]:
    """All that still comes, when rows from `start` on follow."""
    batches = [play(settlement, start, start + 3), play(settlement, start + 3, start + 9), settlement.finish().batch]
    return [row for batch in batches for row in batch.to_pylist()] + [settlement.counters()]


def loaded(folder: Path, name: str) -> Settlement:
    settlement = new_settlement()
    settlement.load(folder, name)
    return settlement


def test_a_new_writer_links_what_is_there_and_writes_only_what_is_new(tmp_path):
    first = new_settlement()
    play(first, 0, 14)
    first.save(tmp_path / "epoch-1", "a")
    second = loaded(tmp_path / "epoch-1", "a")
    play(second, 14, 18)
    second.save(tmp_path / "epoch-2", "b")
    folders = [tmp_path / epoch for epoch in ("epoch-1", "epoch-2")]
    old, new = ({path.name: path.stat().st_ino for path in folder.glob("segment-*")} for folder in folders)
    assert old.items() <= new.items()
    assert len(new) > len(old)

    shutil.rmtree(tmp_path / "epoch-1")
    assert rest(loaded(tmp_path / "epoch-2", "b"), 18) == rest(second, 18)


def test_where_the_file_system_has_no_links_pieces_are_copied(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    first = new_settlement()
    play(first, 0, 14)
    first.save(tmp_path / "epoch-1", "a")
    second = loaded(tmp_path / "epoch-1", "a")
    monkeypatch.setattr("streaming.store.files.os.link", no_links)
    second.save(tmp_path / "epoch-2", "b")
    shutil.rmtree(tmp_path / "epoch-1")
    assert rest(loaded(tmp_path / "epoch-2", "b"), 14) == rest(second, 14)


def test_memory_holds_no_rows_that_were_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(pending, "SEGMENT_ROWS", 5000)
    settlement = new_settlement(dedup_horizon_s=1e6)
    before = pa.total_allocated_bytes()
    settlement.step(merged(settlement.schema, [(i, 1000 + i // 1000) for i in range(50_000)], []))
    rows = pa.total_allocated_bytes() - before
    accounted = settlement.state_bytes
    settlement.save(tmp_path, "a")
    assert pa.total_allocated_bytes() - before < rows / 20
    assert settlement.state_bytes < accounted / 2
    assert settlement.state_bytes < 50_000 * (
        8 + 4 + 8 + 8 + 1 + 4 + 2 * 8
    )  # index, key and event time, marks, label times
    assert settlement.disk_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())

    again = new_settlement(dedup_horizon_s=1e6)
    again.load(tmp_path, "a")
    assert pa.total_allocated_bytes() - before < rows / 20
    assert again.finish().batch.equals(settlement.finish().batch)


def test_what_waits_for_a_first_commit_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(pending, "SPILL_BYTES", 2000)
    folder = tmp_path / "epoch-1"
    spilling, holding = new_settlement(spill=folder), new_settlement()
    for start in range(0, 600, 20):
        clicks = [(i, 5000 + i, "ctr") for i in range(start, start + 20, 3)]
        chunk = merged(holding.schema, [(i, 5000 + i // 10) for i in range(start, start + 20)], clicks)
        assert spilling.step(chunk).batch.equals(holding.step(chunk).batch)
    assert list(folder.glob("segment-*"))
    assert not list(folder.glob("*.json"))
    assert spilling.state_bytes < holding.state_bytes - 10_000
    spilling.save(folder, "a")
    assert rest(loaded(folder, "a"), 700) == rest(holding, 700)


class Killed(BaseException):
    """The process is gone: nothing it would have cleaned up is."""


def test_a_save_killed_at_any_file_leaves_the_state_before_and_its_own_or_none(tmp_path, monkeypatch):
    """Killed before the 1st, 2nd, … flush, link and deletion, in a new writer's folder and in the same one."""
    base = new_settlement()
    for start, name, earlier in ((0, "z", ""), (7, "a", "z")):
        play(base, start, start + 7)
        base.save(tmp_path / "base", name, keep=[earlier])
    expected_a, expected_b = rest(loaded(tmp_path / "base", "a"), 14), None
    calls = limit = 0

    def killing(original):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > limit:
                raise Killed
            return original(*args, **kwargs)

        return call

    for target in ("epoch-1", "epoch-2"):
        killed = True
        for limit in range(200):
            root = tmp_path / f"{target}-{limit}"
            shutil.copytree(tmp_path / "base", root / "epoch-1")
            settlement = loaded(root / "epoch-1", "a")
            for start in (14, 16, 18):
                play(settlement, start, start + 2)
            with monkeypatch.context() as patch:
                for name in ("fsync", "link", "unlink"):
                    patch.setattr(os, name, killing(getattr(os, name)))
                calls = 0
                try:
                    settlement.save(root / target, "b", keep=["a"])
                    killed = False
                except Killed:
                    pass
            assert rest(loaded(root / "epoch-1", "a"), 14) == expected_a
            expected_b = expected_b or rest(settlement, 20)
            if (root / target / "b.json").exists():
                assert rest(loaded(root / target, "b"), 20) == expected_b
            if not killed:
                break
        assert not killed
        assert calls > 10
        assert not list((root / target).glob("*.part"))


def test_pieces_and_their_names_are_flushed_before_the_manifest_moves_in(tmp_path, monkeypatch):
    """So that after a power cut a manifest that is there has all it needs."""
    settlement, done = new_settlement(), []
    play(settlement, 0, 14)
    fsync, replace = os.fsync, Path.replace

    def flushed(file: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{file}")).name
        done.append(name[1:].rsplit(".", 2)[0] if name.endswith(".part") else name)
        fsync(file)

    def moved(source: Path, target: Path) -> Path:
        done.append(f"-> {target.name}")
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", flushed)
        patch.setattr(Path, "replace", moved)
        settlement.save(tmp_path / "epoch-1", "a")
    segments = {path.name for path in (tmp_path / "epoch-1").glob("*.arrow")}
    manifest = done.index("-> a.json")
    assert len(segments) > 4
    names = manifest - 1  # of the segments, flushed
    assert all(done.index(name) < done.index(f"-> {name}") < names for name in segments)
    assert done.index("a.json") < names
    assert done[names:] == ["epoch-1", "-> a.json", "epoch-1"]


def test_a_later_save_flushes_its_new_files_and_its_folder_twice(tmp_path, monkeypatch):
    """The folder's own name lasts since the first one."""
    settlement, done = new_settlement(), []
    play(settlement, 0, 14)
    settlement.save(tmp_path / "epoch-1", "a")
    before = {path.name for path in (tmp_path / "epoch-1").iterdir()}
    play(settlement, 14, 20)
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    settlement.save(tmp_path / "epoch-1", "b", keep=["a"])
    new = {path.name for path in (tmp_path / "epoch-1").iterdir()} - before
    assert len(done) == len(new) + 2
    assert done.count(str(tmp_path / "epoch-1")) == 2


def test_a_name_saved_again_is_never_half_the_old_and_half_the_new(tmp_path, monkeypatch):
    settlement = new_settlement()
    play(settlement, 0, 6)
    settlement.save(tmp_path, "a")
    expected = rest(loaded(tmp_path, "a"), 6)
    play(settlement, 6, 9)
    replace = Path.replace

    def moved(source: Path, target: Path) -> Path:
        if target.name == "a.json":
            raise Killed
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", moved)
        with pytest.raises(Killed):
            settlement.save(tmp_path, "a")
    assert rest(loaded(tmp_path, "a"), 6) == expected


def test_a_full_disk_is_told_and_the_save_can_be_tried_again(tmp_path, monkeypatch):
    settlement = new_settlement()
    play(settlement, 0, 6)
    settlement.save(tmp_path, "a")
    expected = rest(loaded(tmp_path, "a"), 6)
    play(settlement, 6, 20)

    flush = os.fsync

    def full(fd):
        if "segment-" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(fd)

    with monkeypatch.context() as patch:
        patch.setattr("streaming.store.files.os.fsync", full)
        with pytest.raises(DiskFull, match=r"no space left for .*segment-"):
            settlement.save(tmp_path, "b", keep=["a"])
    assert not list(tmp_path.glob("*.part"))
    assert rest(loaded(tmp_path, "a"), 6) == expected
    settlement.save(tmp_path, "b", keep=["a"])
    assert rest(loaded(tmp_path, "b"), 20) == rest(settlement, 20)


@pytest.mark.parametrize("kind", ["segment-", "segment_head-", "base-", "waiting_head-"])
def test_a_piece_that_is_damaged_or_gone_is_named(tmp_path, kind):
    settlement = new_settlement()
    play(settlement, 0, 14)
    settlement.save(tmp_path, "a")
    segment = next(tmp_path.glob(f"{kind}*"))
    for damage in (lambda: segment.write_bytes(segment.read_bytes()[:-20]), segment.unlink):
        damage()
        with pytest.raises(
            StreamingError, match=rf"{segment.name} of a settlement state cannot be read.*copy of the run"
        ):
            new_settlement().load(tmp_path, "a")


def test_a_manifest_that_is_damaged_or_of_another_format_is_named(tmp_path):
    settlement = new_settlement()
    play(settlement, 0, 6)
    settlement.save(tmp_path, "a")
    path = tmp_path / "a.json"
    whole = path.read_text()
    for text in (whole[:50], "[]", whole.replace('"segments"', '"fragments"')):
        path.write_text(text)
        with pytest.raises(StreamingError, match=r"a.json of a settlement state cannot be read"):
            new_settlement().load(tmp_path, "a")
    for number in (1, 4):
        path.write_text(whole.replace('"format": 3', f'"format": {number}'))
        with pytest.raises(BadInput, match=f"has format {number}, this ExFM reads 3; .* --fresh"):
            new_settlement().load(tmp_path, "a")


def test_a_fenced_writer_whose_folder_was_taken_away_says_so(tmp_path):
    settlement = new_settlement()
    play(settlement, 0, 14)
    settlement.save(tmp_path / "epoch-1", "a")
    shutil.rmtree(tmp_path / "epoch-1")
    with pytest.raises(StreamingError, match=r"is gone; where another writer has taken this run over, stop this one"):
        settlement.save(tmp_path / "epoch-1", "b")
    with pytest.raises(StreamingError, match="another writer has taken this run over"):
        settlement.finish()


def store(labels: Marks, folder: Path) -> None:
    state = labels.state()
    store_segments(state, folder)
    labels.stored(state, folder)


class TestMarks:
    def files(self, folder: Path) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in folder.iterdir()}

    def test_a_store_writes_what_changed_and_few_deltas_stand_at_a_time(self, tmp_path, monkeypatch):
        monkeypatch.setattr("streaming.store.files.os.fsync", lambda _: None)
        monkeypatch.setattr(deltas, "FEW", 0)
        monkeypatch.setattr(numbered, "CHUNK_ROWS", 10_000)
        random, rows, written = np.random.default_rng(0), 64_000, 0
        labels = Marks(np.uint8)
        labels.append(np.zeros(rows, np.uint8))
        expected = np.zeros(rows, np.uint8)
        for step in range(400):
            numbers = np.unique(random.integers(0, rows, 100))
            bit = 1 << step % 3
            labels.mark(numbers, bit)
            expected[numbers] |= bit
            before = self.files(tmp_path)
            store(labels, tmp_path)
            written += sum(segment.count for segment in labels.state().segments if segment.file not in before)
            assert len(labels.state().segments) <= 8  # a base, and deltas that halve: 4,000, 2,000, … 100
            assert sum(segment.count for segment in labels.state().segments[1:]) <= rows / 16
            again = Marks(np.uint8)
            if step % 50 == 49:
                again.restore(labels.state(), rows)
                assert (again.view(0, rows) == expected).all()
        # 40,000 marks; each is written anew in a delta of twice the size at most 5 times, and in one base in 40.
        assert written < 40_000 * 6 + rows * 14

    def test_marks_of_forgotten_rows_go(self, tmp_path, monkeypatch):
        monkeypatch.setattr(deltas, "FEW", 0)
        labels = Marks(np.uint8)
        labels.append(np.zeros(1000, np.uint8))
        store(labels, tmp_path)
        labels.mark(np.arange(0, 20), 1)
        store(labels, tmp_path)
        labels.append(np.zeros(50, np.uint8))
        labels.mark(np.array([1, 999, 1049]), 2)
        labels.drop(500)
        store(labels, tmp_path)
        again = Marks(np.uint8, 500)
        again.restore(labels.state(), 1050)
        assert np.flatnonzero(again.view(500, 1050)).tolist() == [499, 549]
        labels.drop(900)
        store(labels, tmp_path)
        (base,) = labels.state().segments  # rather than a base of which most is forgotten
        assert (base.first, base.count) == (900, 150)

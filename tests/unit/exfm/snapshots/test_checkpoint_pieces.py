"""Checkpoints that several ranks write together, and that others read in other windows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.errors import ModelError
from exfm.snapshots import staging
from exfm.snapshots.checkpoint import (
    Together,
    checkpoint_names,
    load_checkpoint,
    open_checkpoint,
    save_checkpoint,
    verified_checkpoint,
)
from exfm.snapshots.manifest import read_manifest
from exfm.snapshots.windows import TensorPieces, fill_window, narrowed

ROWS, WIDTH = 12, 6
TABLE = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
DENSE = torch.randn(5, generator=torch.Generator().manual_seed(1))
META = {"lake_seq": 41}


def window(rows, columns):
    return (rows.start, columns.start), TABLE[rows, columns].clone()


CUTS = {
    "table-wise": [[], [window(slice(0, 12), slice(0, 6))]],
    "row-wise": [[window(slice(0, 5), slice(0, 6))], [window(slice(5, 12), slice(0, 6))]],
    "column-wise": [[window(slice(0, 12), slice(0, 4))], [window(slice(0, 12), slice(4, 6))]],
    "grid": [
        [window(slice(0, 8), slice(0, 3)), window(slice(8, 12), slice(3, 6))],
        [window(slice(8, 12), slice(0, 3)), window(slice(0, 8), slice(3, 6))],
    ],
    "over three": [[window(slice(n * 4, n * 4 + 4), slice(0, 6))] for n in range(3)],
}


def state(held):
    return {"dense/w": DENSE, "table/ad/weight": TensorPieces((ROWS, WIDTH), held), "rng": torch.tensor([7, 2])}


def save_by(root, cut, meta=META, attempt="a"):
    """Every rank in a thread of its own, as they are in processes of their own."""
    ranks = CUTS[cut] if isinstance(cut, str) else cut
    with ThreadPoolExecutor(len(ranks)) as threads:
        saves = [
            threads.submit(save_checkpoint, root, "v1", state(held), meta, together=Together(rank, len(ranks), attempt))
            for rank, held in reversed(list(enumerate(ranks)))
        ]
        return [done.result() for done in saves][-1]


def same_as_whole(path):
    stored = load_checkpoint(path)
    assert torch.equal(stored.tensors["table/ad/weight"], TABLE)
    assert torch.equal(stored.tensors["dense/w"], DENSE)
    assert stored.meta == META


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(staging, "PIECE_BYTES", 40)


@pytest.mark.parametrize("cut", CUTS)
def test_what_ranks_write_in_pieces_is_read_whole_and_in_any_window(tmp_path, cut):
    path = save_by(tmp_path, cut)
    same_as_whole(path)
    table = open_checkpoint(path).tensors["table/ad/weight"]
    assert (table.shape, table.dtype) == ((ROWS, WIDTH), torch.float32)
    for others in CUTS.values():
        for start, piece in (piece for rank in others for piece in rank):
            out = torch.full_like(piece, torch.nan)
            fill_window(out, table, start)
            assert torch.equal(out, piece)
    assert sorted(os.listdir(path)) == [
        "manifest.json",
        *(f"tensors-{rank:05}-of-{len(CUTS[cut]):05}.bin" for rank in range(len(CUTS[cut]))),
    ]
    assert os.listdir(tmp_path) == ["v1"]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_window_is_what_the_whole_has_there_also_into_memory_with_gaps(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "windows" / "v1"
    if not path.exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging, "PIECE_BYTES", 40)
            save_by(path.parent, "grid")
    table = open_checkpoint(path).tensors["table/ad/weight"]
    start = [data.draw(st.integers(0, n - 1)) for n in (ROWS, WIDTH)]
    shape = [data.draw(st.integers(0, n - a)) for n, a in zip((ROWS, WIDTH), start, strict=True)]
    out = torch.zeros(ROWS, WIDTH)[: shape[0], : shape[1]]
    fill_window(out, table, start)
    assert torch.equal(out, narrowed(TABLE, start, shape))


def test_the_same_content_saved_again_in_other_pieces_changes_nothing_and_other_content_is_refused(tmp_path):
    path = save_by(tmp_path, "row-wise")
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    for cut in CUTS:
        assert save_by(tmp_path, cut, attempt="b") == path
    whole = {"dense/w": DENSE, "table/ad/weight": TABLE, "rng": torch.tensor([7, 2])}
    assert save_checkpoint(tmp_path, "v1", whole, META) == path
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == before
    changed = [[(start, piece + 1) for start, piece in rank] for rank in CUTS["row-wise"]]
    for other in (changed, changed[:1] + CUTS["row-wise"][1:]):
        with pytest.raises(ModelError, match="`v1` exists with other content"):
            save_by(tmp_path, other, attempt="c")
    with pytest.raises(ModelError, match="`v1` exists with other content"):
        save_by(tmp_path, "grid", meta={"lake_seq": 42}, attempt="d")
    assert os.listdir(tmp_path) == ["v1"]


def test_a_rank_that_never_comes_is_named_and_nothing_is_there(tmp_path):
    one, three = CUTS["over three"][0], CUTS["over three"][2]
    save_checkpoint(tmp_path, "v1", state(three), META, together=Together(2, 3, "a"))
    with pytest.raises(ModelError, match=r"`v1` is not saved: of 3 ranks, 1 did not write their part, and for 0.05 s"):
        save_checkpoint(tmp_path, "v1", state(one), META, together=Together(0, 3, "a", timeout_s=0.05))
    assert checkpoint_names(tmp_path) == []
    assert os.listdir(tmp_path) == []


def test_what_killed_ranks_left_is_never_taken_for_this_attempts(tmp_path):
    """Rank 1 of an earlier start was done; rank 0 died. The new rank 1 has other bytes, and comes late."""
    stale = [[(start, piece * 0) for start, piece in rank] for rank in CUTS["row-wise"]]
    save_checkpoint(tmp_path, "v1", state(stale[1]), META, together=Together(1, 2, "earlier"))
    assert len(os.listdir(tmp_path)) == 1
    together = Together(0, 2, "now", timeout_s=0.05)
    with pytest.raises(ModelError, match="1 did not write"):
        save_checkpoint(tmp_path, "v1", state(CUTS["row-wise"][0]), META, together=together)
    save_checkpoint(tmp_path, "v1", state(stale[1]), META, together=Together(1, 2, "earlier"))
    same_as_whole(save_by(tmp_path, "row-wise", attempt="now"))
    assert os.listdir(tmp_path) == ["v1"]


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([CUTS["row-wise"][0], []], "its pieces have 30 of 72 values"),
        ([CUTS["row-wise"][0], [window(slice(4, 11), slice(0, 6))]], "two of its pieces overlap"),
        ([CUTS["row-wise"][0], [((6, 0), TABLE[5:])]], "a piece at"),
    ],
)
def test_pieces_that_do_not_make_up_their_tensor_are_refused(tmp_path, held, words):
    with pytest.raises(ModelError, match=words):
        save_by(tmp_path, held)
    assert os.listdir(tmp_path) == []


def test_damage_is_found_in_the_piece_that_has_it_and_reading_others_goes_on(tmp_path, small_pieces):
    path = save_by(tmp_path, "row-wise")
    file = path / "tensors-00001-of-00002.bin"
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    table = open_checkpoint(path).tensors["table/ad/weight"]
    out = torch.empty(5, WIDTH)
    fill_window(out, table, (0, 0))
    assert torch.equal(out, TABLE[:5])
    for broken in (
        lambda: fill_window(out, table, (2, 0)),
        lambda: load_checkpoint(path),
        lambda: verified_checkpoint(path),
    ):
        with pytest.raises(ModelError, match=r"`v1` was altered: sha256 of 24 bytes at 0 of tensors-00001-of-00002"):
            broken()
    file.write_bytes(data[:-5])
    with pytest.raises(ModelError, match=r"truncated: tensors-00001-of-00002.bin has 163 bytes, its manifest says 168"):
        open_checkpoint(path)
    file.unlink()
    with pytest.raises(ModelError, match=r"lost its file tensors-00001-of-00002\.bin"):
        open_checkpoint(path)
    same_as_whole(save_by(tmp_path, "grid", attempt="b"))
    assert sorted(os.listdir(tmp_path)) == [".damaged-v1", "v1"]


def test_large_windows_are_stored_in_bounded_pieces(tmp_path, small_pieces):
    path = save_by(tmp_path, "row-wise")
    index = read_manifest(path)["tensors"]["table/ad/weight"]
    assert [piece["bytes"] for piece in index["pieces"]] == [24] * 12
    assert index["shape"] == [ROWS, WIDTH]
    same_as_whole(path)


def test_what_is_stored_is_saved_again_piece_by_piece_and_cut_anew(tmp_path, monkeypatch):
    """A snapshot is made again of a checkpoint by one rank, without ever being whole in memory."""
    monkeypatch.setattr(staging, "PIECE_BYTES", 40)
    source = open_checkpoint(save_by(tmp_path / "from", "grid"))
    path = save_checkpoint(tmp_path / "to", "v1", source.tensors, source.meta)
    same_as_whole(path)
    assert save_by(tmp_path / "to", "column-wise") == path


def test_only_the_pieces_that_a_window_touches_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "PIECE_BYTES", 1 << 18)
    big = torch.arange(1 << 20, dtype=torch.float32).view(-1, 16)
    path = save_checkpoint(tmp_path, "v1", {"big": big}, {})
    tensor, out = open_checkpoint(path).tensors["big"], torch.empty(1000, 16)
    for number in {*range(16)} - {9, 10}:  # of 16 pieces of 4,096 rows; one that is read is verified
        damage(path, number << 18)
    fill_window(out, tensor, (40_000, 0))
    assert torch.equal(out, big[40_000:41_000])
    damage(path, 9 << 18)
    with pytest.raises(ModelError, match="altered"):
        fill_window(out, tensor, (40_000, 0))


def damage(path, offset):
    with (path / "tensors.bin").open("r+b") as file:
        file.seek(offset)
        file.write(b"?")

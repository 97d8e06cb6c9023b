"""A state whose tables are packed on disk, and any rank's windows of it."""

from __future__ import annotations

from threading import Thread

import pytest
import torch

from exfm.snapshots.checkpoint import Together, open_checkpoint, save_checkpoint
from exfm.snapshots.quantised_state import dequantise_tables, quantise_tables
from exfm.snapshots.row_quantisation import dequantise_rows, quantise_rows
from exfm.snapshots.windows import TensorPieces, fill_window, whole_tensor

TABLE = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
STATE = {"table/ad/weight": TABLE, "dense/bias": torch.arange(3.0), "table/pair/weight": torch.ones(4, 1)}


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_every_window_is_the_unpacked_tables_and_what_is_no_table_keeps_its_bits(tmp_path, bits):
    stored = dequantise_tables(
        open_checkpoint(save_checkpoint(tmp_path, "v1", quantise_tables(STATE, bits), {})).tensors
    )
    whole = dequantise_rows(quantise_rows(TABLE, bits), bits)
    assert torch.equal(whole_tensor(stored["table/ad/weight"]), whole)
    fill_window(window := torch.empty(5, 7), stored["table/ad/weight"], (11, 3))
    assert torch.equal(window, whole[11:16, 3:10])
    assert torch.equal(whole_tensor(stored["dense/bias"]), STATE["dense/bias"])


def test_halves_of_two_ranks_make_up_the_bytes_of_the_whole():
    halves = TensorPieces((40, 16), [((0, 0), TABLE[:20]), ((20, 0), TABLE[20:])])
    assert torch.equal(
        whole_tensor(quantise_tables({"table/ad/weight": halves}, 4)["table/ad/weight:4bit"]), quantise_rows(TABLE, 4)
    )


def test_a_table_that_only_the_other_rank_holds_is_stored_packed(tmp_path):
    def save(rank: int) -> None:
        held = TensorPieces((40, 16), [((0, 0), TABLE)] if rank else [])
        together = Together(rank, 2, "attempt")
        save_checkpoint(tmp_path, "v1", quantise_tables({"table/ad/weight": held}, 2), {}, together=together)

    other = Thread(target=save, args=(1,))
    other.start()
    save(0)
    other.join()
    stored = dequantise_tables(open_checkpoint(tmp_path / "v1").tensors)
    assert torch.equal(whole_tensor(stored["table/ad/weight"]), dequantise_rows(quantise_rows(TABLE, 2), 2))


def test_a_feature_may_have_any_name():
    state = {"table/user:ad:4bit/weight": TABLE, "dense/user:ad.bias": torch.zeros(2)}
    for bits in (4, None):
        assert list(dequantise_tables(quantise_tables(state, bits))) == list(state)

"""The loops over bags and chunks are what torch and NumPy compute in several passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.embeddings.kinds.fiited import UTILITIES, decoded, encoded
from exfm.kernels.bags import add_norms, distinct, keep_present
from exfm.kernels.chunks import MOST_CODE, PRUNED, UNSEEN, count_codes, earn, prune, read_addresses

B, K, C, W, V = 40, 3, 2, 5, 60


@pytest.fixture(params=[0, 1])
def random(request):
    return np.random.default_rng(request.param)


@pytest.mark.parametrize("count", [0, 1, 500])
def test_distinct_ids_come_in_order_of_their_first_occurrence(random, count):
    ids = torch.from_numpy(random.choice([-5, 0, 7, 8, 2**40, 2**63 - 1], count))
    found = distinct(ids)
    wanted, counts = ids.unique(return_counts=True)
    ordered, at = found.ids.sort()
    assert torch.equal(ordered, wanted)
    assert torch.equal(found.counts[at], counts)
    assert torch.equal(found.ids[found.at], ids)
    firsts = [ids.tolist().index(i) for i in found.ids.tolist()]
    assert firsts == sorted(firsts)


def test_rows_that_are_not_there_are_left_out_of_their_bags(random):
    lengths = random.integers(0, 4, K * B)
    rows = random.integers(-2, 9, lengths.sum())
    bags = np.repeat(np.arange(K * B), lengths)[rows >= 0]
    wanted = rows[rows >= 0]
    there = keep_present(rows, lengths)
    assert rows[:there].tolist() == wanted.tolist()
    assert lengths.tolist() == np.bincount(bags, minlength=K * B).tolist()


def test_norms_of_equal_parts_are_summed_over_the_occurrences_of_an_id(random):
    lengths = torch.from_numpy(random.integers(0, 4, K * B))
    ids = torch.from_numpy(random.integers(0, 9, int(lengths.sum())))
    g = torch.from_numpy(random.normal(size=(B, 4 + K * C * W)).astype(np.float32))[:, 4:]
    found = distinct(ids)
    norms = torch.zeros(len(found.ids), C, dtype=torch.float64)
    add_norms(g.numpy(), lengths.numpy(), K, found.at.numpy(), norms.numpy())
    of_bags = g.double().reshape(B, K, C, W).norm(dim=3).transpose(0, 1).reshape(-1, C)
    wanted = torch.zeros_like(norms).index_add_(0, found.at, of_bags.repeat_interleave(lengths, dim=0))
    torch.testing.assert_close(norms, wanted)


def test_an_id_reads_the_addresses_of_its_virtual_row(random):
    address = random.integers(-2, 9, (V, C)).astype(np.int32)
    ids = np.array([0, V - 1, V, 2**62, -1, *random.integers(0, V, 90)])
    rows = np.empty((C, len(ids)), np.int64)
    read_addresses(ids, address, rows)
    assert np.array_equal(rows, address[ids % V].T)


def test_utilities_are_added_in_their_codes(random):
    codes = random.integers(0, MOST_CODE + 1, (V, C)).astype(np.int16)
    ids = random.choice(V, 30, replace=False)
    gained = np.where(random.random((30, C)) < 0.2, 0.0, 10.0 ** random.uniform(-12, 12, (30, C)))
    wanted = codes.copy()
    wanted[ids] = encoded(decoded(codes[ids]) + gained)
    earn(ids, gained, UTILITIES, codes)
    assert np.array_equal(codes, wanted)
    assert not decoded(codes[codes == 0]).any()


@pytest.mark.parametrize("most", [0, 1, 37, V * C])
def test_the_largest_codes_have_rows_and_of_equal_ones_the_first(random, most):
    codes = random.integers(0, 6, (V, C)).astype(np.int16)
    address = np.arange(V * C).reshape(V, C).astype(np.int32)
    address[random.random((V, C)) < 0.5] = PRUNED
    address[::3], codes[::6] = UNSEEN, 0
    had, was = address.copy(), codes.copy()
    counts = np.zeros(MOST_CODE + 1, np.int64)
    judged = (had[:, 0] != UNSEEN) | was.any(1)
    assert count_codes(address, codes, counts) == judged.sum()
    assert np.array_equal(counts[:6], np.bincount(was[judged].ravel(), minlength=6))
    keys = np.where(judged[:, None], was, -1).ravel()
    order = np.lexsort((np.arange(V * C), -keys))
    wanted = np.zeros(V * C, bool)
    wanted[order[: min(most, judged.sum() * C)]] = True
    kept = np.sort(keys[wanted])
    least = int(kept[0]) if len(kept) else MOST_CODE
    ties = int((kept == least).sum())
    gained, lost = np.empty(V * C, np.int64), np.empty(V * C, np.int64)
    G, L, left = prune(address, codes, least, ties, np.int16(2), gained, lost)
    assert left == 0, "as many of the equal ones have rows as may"
    had_row = (had >= 0).ravel()
    assert gained[:G].tolist() == np.flatnonzero(wanted & ~had_row).tolist()
    assert lost[:L].tolist() == had.ravel()[had_row & ~wanted].tolist()
    assert (address.ravel()[had_row & ~wanted] == PRUNED).all()
    assert np.array_equal(codes, np.where(judged[:, None], np.maximum(was - 2, 0), was))

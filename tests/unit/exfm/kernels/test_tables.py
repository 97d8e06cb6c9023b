"""The loops over ids are what torch computes: rows summed by bag, duplicate gradients summed, one AdaGrad step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.kernels.tables import find_first, learn_by_element, learn_by_row, sum_rows_of_bags

N, P, R, LR, EPS = 500, 90, 40, np.float32(0.1), np.float32(1e-8)


@pytest.fixture(params=[1, 4, 8, 12, 64])
def given(request):
    """Rows and gradients of ids, weights, and accumulators that are not all 0."""
    random, D = torch.Generator().manual_seed(request.param), request.param
    rows, bags = torch.randint(0, R, (N,), generator=random), torch.randint(0, P, (N,), generator=random)
    g, w = (torch.randn(n, D, generator=random) for n in (N, R))
    return rows, bags, g, w, torch.rand(R, D, generator=random)


def first_of(rows: torch.Tensor) -> np.ndarray:
    first = np.empty(N, np.int32)
    find_first(rows.numpy(), first)
    return first


def test_rows_are_summed_by_bag(given):
    rows, bags, _, w, _ = given
    bags, pooled = bags.sort().values, torch.zeros(P, w.shape[1])
    sum_rows_of_bags(rows.numpy(), bags.int().numpy(), w.numpy(), pooled.numpy())
    torch.testing.assert_close(pooled, torch.zeros(P, w.shape[1]).index_add_(0, bags, w[rows]))


def test_the_first_id_of_each_row_stands_for_it(given):
    rows, first = given[0], first_of(given[0])
    _, inverse = torch.unique(rows, return_inverse=True)
    wanted = torch.full((R,), N).scatter_reduce_(0, inverse, torch.arange(N), "amin")[inverse]
    assert first.tolist() == wanted.tolist()


@pytest.mark.parametrize(("learn", "by_row"), [(learn_by_row, True), (learn_by_element, False)])
def test_a_row_moves_once_by_the_sum_of_its_gradients(given, learn, by_row):
    rows, _, g, w, m = given
    m = m[:, 0].clone() if by_row else m.clone()
    total = torch.zeros_like(w).index_add_(0, rows, g)
    wanted_m = m + (total.square().mean(1) if by_row else total.square())
    rate = float(LR) / (wanted_m.sqrt() + float(EPS))
    wanted_w = w - (rate.unsqueeze(1) if by_row else rate) * total
    at = np.arange(N, dtype=np.int32)
    learn(rows.numpy(), first_of(rows), at, g.clone().numpy(), w.numpy(), m.numpy(), LR, EPS)
    torch.testing.assert_close(m, wanted_m)
    torch.testing.assert_close(w, wanted_w)

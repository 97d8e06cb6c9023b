"""A Wukong layer by loops is the same function as by torch's operators (wukong.py), and learns the same."""

from __future__ import annotations

import pytest
import torch

from exfm.interactions import wukong_loops
from exfm.interactions.wukong import WukongLayer
from exfm.threads import parts_of, set_threads

SHAPES = [
    {"n": 15, "d": 16, "num_fmb": 8, "num_lcb": 8, "rank": 8},  # a learned residual; rows that are no multiple of four
    {"n": 5, "d": 8, "num_fmb": 3, "num_lcb": 2, "rank": 16},  # the identity
    {"n": 28, "d": 16, "num_fmb": 16, "num_lcb": 16, "rank": 24},
    {"n": 1, "d": 24, "num_fmb": 1, "num_lcb": 1, "rank": 8},
]


@pytest.fixture(autouse=True)
def one_thread_again():
    yield
    set_threads(1)


def layer(n, d, **sizes):
    rng = torch.Generator().manual_seed(0)
    made = WukongLayer(n, d, hidden=(12,), generator=rng, **sizes)
    for norm in (made.fm_norm, made.norm):
        norm.weight.data.normal_(1.0, 0.3, generator=rng)
        norm.bias.data.normal_(0.0, 0.3, generator=rng)
    return made


def examples(rows, n, d):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(rows, n, d, generator=rng) + 0.3


def learned(of, X):
    """The output, the gradient of X and those of the parameters."""
    X = X.clone().requires_grad_()
    y = of(X)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    return [y.detach(), *torch.autograd.grad(y, [X, *of.parameters()], upstream)]


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_as_near_to_double_precision_as_operators_are(shape, rows, monkeypatch):
    of, X = layer(**shape), examples(rows, shape["n"], shape["d"])
    assert wukong_loops.suit(of, X)
    by_loops = learned(of, X)
    monkeypatch.setattr(wukong_loops, "suit", lambda *asked: False)
    by_operators, exact = learned(of, X), learned(of.double(), X.double())
    for found, other, expected in zip(by_loops, by_operators, exact, strict=True):
        allowed = 3 * (other - expected).norm() + 2e-6 * rows  # sums over rows, of numbers of about 1
        assert (found - expected).norm() <= allowed


def test_double_precision_bf16_and_other_sizes_go_by_operators():
    shape = SHAPES[0]
    of, X = layer(**shape), examples(2, shape["n"], shape["d"])
    with torch.autocast("cpu", torch.bfloat16):
        assert not wukong_loops.suit(of, X)
    assert not wukong_loops.suit(of, X.double())
    assert not wukong_loops.suit(layer(**shape | {"rank": 6}), X)
    assert not wukong_loops.suit(layer(**shape, attentive=True), X)
    assert not wukong_loops.suit(WukongLayer(15, 16, **_blocks(shape), layer_norm=False), X)


def _blocks(shape):
    return {k: shape[k] for k in ("num_fmb", "num_lcb", "rank")} | {"hidden": (), "generator": torch.Generator()}


def test_scoring_has_the_bits_of_training_and_a_row_those_it_has_alone():
    shape = SHAPES[0]
    of, X = layer(**shape), examples(5, shape["n"], shape["d"])
    trained = of(X).detach()
    with torch.no_grad():
        assert torch.equal(of(X), trained)
        products = [wukong_loops.by_example(of, X[n : n + 1]) for n in range(5)]
    torch.testing.assert_close(torch.cat(products), trained)  # the products between the loops are torch's


def test_no_rows_are_none():
    shape = SHAPES[1]
    y, of_X, *of_parameters = learned(layer(**shape), examples(0, shape["n"], shape["d"]))
    assert [y.shape, of_X.shape] == [(0, 5, 8), (0, 5, 8)]
    assert not any(gradient.any() for gradient in of_parameters)


def test_several_threads_have_a_part_of_the_rows_each_and_the_same_bits_each_time():
    shape = SHAPES[2]
    of, X = layer(**shape), examples(1000, shape["n"], shape["d"])
    one = learned(of, X)
    set_threads(3)
    assert [parts_of(rows) for rows in (1000, 300, 5)] == [3, 2, 1]
    first, second = learned(of, X), learned(of, X)
    assert all(map(torch.equal, first, second))
    for of_parts, of_all in zip(first, one, strict=True):
        assert (of_parts - of_all).norm() <= 1e-5 * of_all.norm()


def test_embeddings_that_lie_otherwise_are_taken_too():
    shape = SHAPES[0]
    of, X = layer(**shape), examples(7, shape["n"], shape["d"])
    turned = X.transpose(0, 1).contiguous().transpose(0, 1)
    assert not turned.is_contiguous()
    assert torch.equal(of(turned), of(X))

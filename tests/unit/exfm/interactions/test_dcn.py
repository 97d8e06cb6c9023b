import pytest
import torch
from pydantic import ValidationError
from torch import nn

from exfm.errors import ConfigError
from exfm.interactions.dcn import DCN, CrossConfig, FullCross, LowRankCross, MixtureCross


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def x(seed, d=6, rows=5):
    return torch.randn(rows, d, generator=rng(seed))


def test_a_full_cross_is_its_equation():
    cross, x_0, x_l = FullCross(6, rng()), x(1), x(2)
    expected = torch.stack([x_0[b] * (cross.W.weight @ x_l[b] + cross.W.bias) + x_l[b] for b in range(5)])
    torch.testing.assert_close(cross(x_0, x_l), expected)


def test_a_low_rank_cross_is_a_full_one_whose_matrix_is_a_product():
    low, full, x_0, x_l = LowRankCross(6, 2, rng()), FullCross(6, rng()), x(1), x(2)
    with torch.no_grad():
        full.W.weight.copy_(low.U.weight @ low.V_T.weight)
        full.W.bias.copy_(low.U.bias)
    torch.testing.assert_close(low(x_0, x_l), full(x_0, x_l))


def test_a_mixture_is_the_gated_sum_over_its_experts():
    """Expert by expert, as the paper writes it: Σ_i G_i(x_l) · x_0 ⊙ (U_i g(C_i g(V_iᵀ x_l)) + b) + x_l."""
    K, R = 3, 2
    mixture, x_0, x_l = MixtureCross(6, R, K, rng()), x(1), x(2)
    V, U = mixture.V_T.weight.view(K, R, 6), mixture.U.weight.view(6, K, R)
    gates = torch.softmax(x_l @ mixture.G.weight.T, 1)
    expected = x_l.clone()
    for i in range(K):
        inner = torch.tanh(torch.tanh(x_l @ V[i].T) @ mixture.C[i].T)
        expected += gates[:, i : i + 1] * x_0 * (inner @ U[:, i].T + mixture.U.bias)
    torch.testing.assert_close(mixture(x_0, x_l), expected)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_l_layers_cross_up_to_order_l_plus_1(layers):
    """Along t·x_0 the crosses alone are a polynomial of that degree, none higher."""
    dcn = DCN(3, 2, 0, cross=CrossConfig(layers=layers), deep=(), generator=rng()).double()
    t = torch.linspace(-1, 1, layers + 4, dtype=torch.float64)
    e = torch.randn(1, 3, 2, generator=rng(1), dtype=torch.float64)
    y = dcn(t.view(-1, 1, 1) * e, torch.empty(len(t), 0, dtype=torch.float64))
    size = y.abs().max()
    for _ in range(layers + 1):
        y = y.diff(dim=0)
    assert y.abs().max() > 1e-6 * size
    assert y.diff(dim=0).abs().max() < 1e-10 * size


@pytest.mark.parametrize("options", [{}, {"rank": 2}, {"rank": 2, "experts": 3}])
def test_the_deep_part_stands_behind_the_crosses_or_beside_them(options):
    e, dense = torch.randn(5, 3, 2, generator=rng(1)), torch.randn(5, 1, generator=rng(2))
    x_0 = torch.cat([e.flatten(1), dense], 1)
    stacked = DCN(3, 2, 1, cross=CrossConfig(**options), deep=(8, 4), generator=rng())
    crossed = x_0
    for cross in stacked.crosses:
        crossed = cross(x_0, crossed)
    torch.testing.assert_close(stacked(e, dense), stacked.deep(crossed))
    beside = DCN(3, 2, 1, cross=CrossConfig(structure="parallel", **options), deep=(8, 4), generator=rng())
    torch.testing.assert_close(beside(e, dense), torch.cat([crossed, beside.deep(x_0)], 1))
    assert (stacked.out_width, beside.out_width) == (4, 11)
    assert stacked(e[:0], dense[:0]).shape == (0, 4)


def test_every_parameter_learns():
    for options in ({}, {"rank": 2}, {"rank": 2, "experts": 3}):
        dcn = DCN(3, 2, 1, cross=CrossConfig(**options), deep=(8, 4), generator=rng())
        dcn(torch.randn(7, 3, 2, generator=rng(1)), torch.randn(7, 1, generator=rng(2))).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in dcn.parameters())


def test_initial_weights_come_from_the_generator_alone():
    one, two = (DCN(3, 2, 1, cross=CrossConfig(rank=2, experts=2), deep=(4,), generator=rng(7)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert isinstance(one.crosses[0].C, nn.Parameter)


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="needs a deep network, and it has 0 layers"):
        DCN(3, 2, 1, cross=CrossConfig(structure="parallel"), deep=(), generator=rng())
    with pytest.raises(ValidationError, match="4 experts of a cross need a `rank`"):
        CrossConfig(experts=4)

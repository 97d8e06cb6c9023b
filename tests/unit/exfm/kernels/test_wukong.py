"""Wukong as a compiler is given it computes what Wukong computes."""

from __future__ import annotations

import pytest
import torch

from exfm.interactions.wukong import Wukong

SHAPES = {
    "residual maps": {},
    "identities": {"num_fmb": 4, "num_lcb": 3},
    "no dense features": {"num_dense": 0},
    "several dense units": {"dense_units": 2},
    "attentive": {"attentive": True},
    "without norms": {"layer_norm": False},
    "without hidden layers": {"hidden": ()},
    "two hidden layers": {"hidden": (8, 6)},
}


def made(*, num_dense=3, rows=5, seed=0, **options):
    sizes = {"layers": 2, "num_fmb": 3, "num_lcb": 2, "rank": 2, "hidden": (8,)} | options
    trunk = Wukong(6, 4, num_dense, generator=torch.Generator().manual_seed(seed), **sizes).double()
    for norm in (part for part in trunk.modules() if isinstance(part, torch.nn.LayerNorm)):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(norm.bias, -0.5, 0.5)
    return trunk, torch.randn(rows, 6, 4).double(), torch.randn(rows, num_dense).double()


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_it_has_the_representation_of_the_interaction_and_all_its_gradients(options):
    torch.manual_seed(0)
    trunk, e, dense = made(**options)
    found = []
    for way in (trunk, trunk.exportable):
        units = e.clone().requires_grad_()
        h = way(units, dense)
        gradients = torch.autograd.grad(h.square().sum(), [units, *trunk.parameters()])
        found.append([h, *gradients])
    assert found[0][0].shape == (5, trunk.out_width)
    for expected, of_code in zip(*found, strict=True):
        torch.testing.assert_close(of_code, expected)


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_in_bf16_it_is_as_near_to_fp32_as_the_interaction_is(options):
    """Each rounds at other places, so one network says little."""
    eager = code = 0.0
    for seed in range(12):
        torch.manual_seed(seed)
        trunk, e, dense = (part.float() for part in made(rows=100, seed=seed, **options))
        exact = found(trunk, trunk, e, dense)
        with torch.autocast("cpu", torch.bfloat16):
            eager += off(found(trunk, trunk, e, dense), exact)
            code += off(found(trunk, trunk.exportable, e, dense), exact)
    assert 0 < code < 1.25 * eager


def found(trunk, way, e, dense):
    """The representation, and its gradients."""
    units = e.clone().requires_grad_()
    h = way(units, dense)
    with torch.autocast("cpu", enabled=False):
        return [h.detach(), *torch.autograd.grad(h.float().square().mean(), [units, *trunk.parameters()])]


def off(found, exact):
    """Relative, the mean of all tensors."""
    return float(torch.stack([(a - b).norm() / b.norm() for a, b in zip(found, exact, strict=True)]).mean())


@pytest.mark.parametrize("level", [0.0, 1.0, 13.0, 73.0, 1e6])
def test_in_bf16_what_does_not_vary_has_a_norm_and_gradients(level):
    """mean(x²) − mean(x)² may come out below 0 then."""
    trunk, _, _ = made(rows=1, num_dense=0, rank=101)
    trunk = trunk.float()
    torch.nn.init.ones_(trunk.layers[0].Y_T)
    e, dense = torch.full((9, 6, 4), level), torch.empty(9, 0)
    with torch.autocast("cpu", torch.bfloat16):
        found_there = found(trunk, trunk.exportable, e, dense)
    assert all(bool(tensor.isfinite().all()) for tensor in found_there)

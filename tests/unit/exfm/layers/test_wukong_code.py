"""Wukong as a compiler is given it computes what Wukong computes."""

from __future__ import annotations

import pytest
import torch

from exfm.layers import Wukong

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


def made(*, num_dense=3, **options):
    sizes = {"layers": 2, "num_fmb": 3, "num_lcb": 2, "rank": 2, "hidden": (8,)} | options
    trunk = Wukong(6, 4, num_dense, generator=torch.Generator().manual_seed(0), **sizes).double()
    for norm in (part for part in trunk.modules() if isinstance(part, torch.nn.LayerNorm)):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(norm.bias, -0.5, 0.5)
    return trunk, torch.randn(5, 6, 4).double(), torch.randn(5, num_dense).double()


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES.keys())
def test_it_has_the_representation_of_the_interaction_and_all_its_gradients(options):
    torch.manual_seed(0)
    trunk, e, dense = made(**options)
    found = []
    for way in (trunk, trunk.as_code):
        units = e.clone().requires_grad_()
        h = way(units, dense)
        gradients = torch.autograd.grad(h.square().sum(), [units, *trunk.parameters()])
        found.append([h, *gradients])
    assert found[0][0].shape == (5, trunk.out_width)
    for expected, of_code in zip(*found, strict=True):
        torch.testing.assert_close(of_code, expected)


@pytest.mark.parametrize("options", [SHAPES["residual maps"], SHAPES["identities"]], ids=["maps", "identities"])
def test_in_bf16_it_is_as_near_to_fp32_as_the_interaction_is(options):
    torch.manual_seed(0)
    trunk, e, dense = made(**options)
    trunk, e, dense = trunk.float(), e.float(), dense.float()
    exact = trunk(e, dense).detach()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        off = [float((way(e, dense) - exact).abs().mean()) for way in (trunk, trunk.as_code)]
    assert 0 < off[1] < 1.25 * off[0]

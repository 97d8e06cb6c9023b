"""Passes through units and trunk: which trunks go by hand, and that the others have their gradients."""

import pytest
import torch
from torch import nn

from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.interactions.dlrm import DLRM
from exfm.interactions.mlp import ConcatMLP
from exfm.interactions.passes import forward_pass, representation
from exfm.interactions.units import Units

FEATURES = FeatureSet(sparse=[SparseFeature(name=name, rows=9) for name in ("ad", "user", "hour")])


class Doubled(DLRM):
    """Another forward, and no passes by hand."""

    def forward(self, e_BFD, dense_BN):
        return 2 * super().forward(e_BFD, dense_BN)


def net_with(trunk: nn.Module) -> nn.Module:
    net = nn.Module()
    net.units, net.trunk = Units(FEATURES, 4, seed=0), trunk
    return net


def dlrm(kind):
    return kind(3, 4, 2, bottom=(4,), top=(6, 5), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("trunk", "by_hand"),
    [
        (dlrm(DLRM), True),
        (dlrm(Doubled), False),
        (ConcatMLP(3, 4, 2, sizes=(5,), generator=torch.Generator().manual_seed(1)), False),
    ],
)
def test_every_trunk_has_its_own_output_and_gradients(trunk, by_hand, monkeypatch):
    asked = []
    monkeypatch.setattr(DLRM, "by_hand", lambda *of, real=DLRM.by_hand: (asked.append(True), real(*of))[1])
    net, pooled, dense = net_with(trunk), torch.randn(7, 12), torch.randn(7, 2)
    of_h = torch.randn(7, 5)
    h = trunk(pooled.requires_grad_().view(7, 3, 4), dense)
    of_pooled, *of_each = torch.autograd.grad(h, [pooled, *trunk.parameters()], of_h)
    done = forward_pass(net, pooled.detach(), None, dense)
    assert torch.equal(done.h, h)
    assert not done.h.requires_grad
    found, gradients = done.back(of_h.clone())
    assert torch.equal(found, of_pooled)
    for (name, _), gradient in zip(trunk.named_parameters(), of_each, strict=True):
        assert torch.equal(gradients[f"trunk.{name}"], gradient)
    assert torch.equal(representation(net, pooled.detach(), None, dense), h)
    assert bool(asked) == by_hand

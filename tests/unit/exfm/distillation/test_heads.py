"""The gradients of a student's heads are those of autograd through `objective` and `scale_gradient`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from exfm.distillation.arm import Arm
from exfm.distillation.heads import Heads, slopes_of
from exfm.distillation.loss import objective, scale_gradient
from exfm.distillation.terms import Lesson, RowMasks, terms_of

B, T, H = 40, 2, 6

ARMS = [
    Arm(kind="none"),
    Arm(kind="single_head", weight=0.7, temperature=2),
    Arm(weight=1.5, gradient_scale=3, label_scale=1.2),
    Arm(adapter=True, gradient_scale=0),
    Arm(adapter=True, weight=2, gradient_scale=0.5, single_head_rows=1, single_head_weight=1.7),
]


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("label", [True, False])
def test_gradients_are_those_of_autograd(arm, label):
    g = torch.Generator().manual_seed(1)
    net = nn.Module()
    for name in ("serving", "auxiliary", "adapted"):
        net.add_module(name, nn.Linear(H, T).double())
    x, offset = torch.randn(B, H, generator=g, dtype=torch.float64), torch.randn(T, generator=g, dtype=torch.float64)
    z_F, adapted = torch.randn(2, B, T, generator=g, dtype=torch.float64)
    labels, cold = (torch.rand(B, T, generator=g) < 0.3).double(), torch.rand(B, generator=g) < 0.5
    rows, lesson = RowMasks(cold=cold if arm.single_head_rows else None), Lesson(z_F, adapted)

    leaf = x.clone().requires_grad_()
    kept = leaf if rows.cold is None else torch.where(cold.unsqueeze(1), leaf.detach(), leaf)
    scaled = scale_gradient(kept, arm.gradient_scale)
    z_D, z_D2 = net.auxiliary(scaled) + offset, net.adapted(scaled) + offset
    whole = objective(arm, net.serving(leaf) + offset, labels, lesson, z_D=z_D, z_D2=z_D2, rows=rows)
    loss = whole.total if label else whole.of_teacher
    named = {f"{name}.{part}": p for name, head in net.named_children() for part, p in head.named_parameters()}
    expected = torch.autograd.grad(loss, [leaf, *named.values()], materialize_grads=True)

    heads = Heads(net, arm)
    terms = terms_of(arm, labels, lesson, rows, heads.served(x, offset), *heads.others(x, offset))
    slopes = slopes_of(arm, terms, label=label, scheduled=rows.cold is not None)
    if not label and arm.kind == "none":
        assert slopes == (None, None)
        return
    of_x, found = heads.gradients(x, slopes, rows.cold)
    torch.testing.assert_close(of_x, expected[0])
    for (name, p), of_autograd in zip(named.items(), expected[1:], strict=True):
        torch.testing.assert_close(found.get(name, torch.zeros_like(p)), of_autograd)
    learns_labels = label or arm.kind == "single_head" or rows.cold is not None
    assert ("serving.weight" in found) == learns_labels
    there = {"serving", *["auxiliary"] * (arm.kind == "auxiliary_head"), *["adapted"] * arm.adapter}
    assert {name.partition(".")[0] for name in found} <= there

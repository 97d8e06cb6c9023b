"""A student's heads: logits from the trunk's output, and the gradient of a loss whose slopes by the logits are known.

    z_S = o + W_S x + b_S       z_D, z_D2 = o + W x + b, of the auxiliary and of the adapted head, in training only
    ∂W = gᵀ x    ∂b = Σ_B g     ∂x = g_S W_S + β · (g_D W_D + g_D2 W_D2)         g = ∂L/∂z; on cold rows ∂x = g_S W_S

They are worked out here and not by autograd: with a hundred rows it is the calls that take the time. The serving head
stands alone, so that its logits and gradients have the bits that they have in a student without a teacher.

B examples, T tasks, H width of the trunk's output, o the prior's offset.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from exfm.distillation.arm import Arm
from exfm.distillation.terms import Terms


class Slopes(NamedTuple):
    """A loss's derivatives by z_S (B, T), and by z_D and z_D2 next to each other, (B, T) or (B, 2T); None where it is
    not of them."""

    of_serving: Tensor | None
    of_others: Tensor | None


def slopes_of(arm: Arm, terms: Terms, *, label: bool, scheduled: bool) -> Slopes:
    """Those of an arm's loss, with or without the term of its labels. `scheduled`: there are cold rows."""
    of_label, distillation, adapted, single_head = terms.slopes.unbind()
    serving: list[Tensor] = [of_label] if label else []
    others: list[Tensor] = []
    if arm.distils:
        (serving if arm.kind == "single_head" else others).append(arm.weight * distillation)
    if scheduled:
        serving.append(arm.single_head_weight * single_head)
    if arm.adapter:
        others.append(adapted)
    return Slopes(
        sum(serving[1:], serving[0]) if serving else None,
        torch.cat(others, dim=1) if others else None,
    )


class Heads:
    """The heads of a network that has `serving`, and those of `auxiliary` and `adapted` that its arm asks for."""

    def __init__(self, net: nn.Module, arm: Arm) -> None:
        self._serving, self._beta = _named("serving", net), arm.gradient_scale
        names = ["auxiliary"] * (arm.kind == "auxiliary_head") + ["adapted"] * arm.adapter
        self._others = [_named(name, net) for name in names]

    def served(self, x: Tensor, offset: Tensor) -> Tensor:
        """z_S (B, T), from x (B, H) without gradient."""
        return nnf.linear(x, self._serving.weight, self._serving.bias) + offset

    def others(self, x: Tensor, offset: Tensor) -> list[Tensor]:
        """z_D and z_D2 (B, T), of the heads that there are."""
        return [nnf.linear(x, head.weight, head.bias) + offset for head in self._others]

    def gradients(self, x: Tensor, slopes: Slopes, cold: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """By x (B, H), and by name of those heads that the loss is of. `cold`: (B,) bool; None: no row is."""
        found: dict[str, Tensor] = {}
        of_x = None
        if (g := slopes.of_serving) is not None:
            of_x = g @ self._serving.weight
            found |= zip(self._serving.names, (g.T @ x, g.sum(0)), strict=True)
        if (g := slopes.of_others) is not None:
            T = g.shape[1] // len(self._others)
            of_W, of_b = (g.T @ x).split(T), g.sum(0).split(T)
            for head, W, b in zip(self._others, of_W, of_b, strict=True):
                found |= zip(head.names, (W, b), strict=True)
            g = g if self._beta == 1 else g * self._beta
            g = g if cold is None else g.masked_fill(cold.unsqueeze(1), 0.0)
            W = torch.cat([head.weight for head in self._others])
            of_x = g @ W if of_x is None else of_x.addmm_(g, W)
        assert of_x is not None
        return of_x, found


class _Head(NamedTuple):
    """One of them: weight (T, H) and bias (T,), without gradient, and their names."""

    weight: Tensor
    bias: Tensor
    names: tuple[str, str]


def _named(name: str, net: nn.Module) -> _Head:
    head: Any = net.get_submodule(name)
    return _Head(head.weight.detach(), head.bias.detach(), (f"{name}.weight", f"{name}.bias"))

"""Through a network's units and trunk and back: by hand where the trunk has that (`Interaction.by_hand`), else by its
modules and autograd. The bits are the same.

B examples, E columns that the tables give, H width of the trunk's output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.interactions.interaction import Interaction, Pass
from exfm.interactions.units import Units


def forward_pass(net: nn.Module, pooled_BE: Tensor, sparse: KeyedJaggedTensor, dense: Tensor) -> Pass:
    """Of the modules `units` and `trunk` of a network; `back` gives ∂L/∂pooled (B, E), and gradients by their names in
    the network, of those parameters that have one."""
    if (done := _by_hand(net, pooled_BE, dense)) is not None:
        return Pass(done.h, lambda of_h: _named(*done.back(of_h)))
    parameters = {f"{part}.{name}": p for part in ("units", "trunk") for name, p in _part(net, part).named_parameters()}
    with torch.enable_grad():
        pooled_BE = pooled_BE.detach().requires_grad_()
        h = _by_modules(net, pooled_BE, sparse, dense)

    def back(of_h: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        of_pooled, *of_each = torch.autograd.grad(h, [pooled_BE, *parameters.values()], of_h, allow_unused=True)
        return of_pooled, {name: g for name, g in zip(parameters, of_each, strict=True) if g is not None}

    return Pass(h.detach(), back)


def representation(net: nn.Module, pooled_BE: Tensor, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
    """h (B, H) of such a network, without gradient."""
    if (done := _by_hand(net, pooled_BE, dense)) is not None:
        return done.h
    with torch.no_grad():
        return _by_modules(net, pooled_BE, sparse, dense)


def _by_hand(net: nn.Module, pooled_BE: Tensor, dense: Tensor) -> Pass | None:
    units, trunk = _part(net, "units"), _part(net, "trunk")
    if not (isinstance(trunk, Interaction) and isinstance(units, Units) and units.has_no_sequences):
        return None
    if not (pooled_BE.is_cpu and pooled_BE.dtype == dense.dtype == torch.float32 and _has_both(trunk)):
        return None
    return trunk.by_hand(pooled_BE.view(len(pooled_BE), units.count, units.width), dense)


def _named(of_e: Tensor, of_trunk: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    return of_e.flatten(1), {f"trunk.{name}": g for name, g in of_trunk.items()}


def _by_modules(net: nn.Module, pooled_BE: Tensor, sparse: KeyedJaggedTensor, dense: Tensor) -> Tensor:
    h: Tensor = _part(net, "trunk")(_part(net, "units")(pooled_BE, sparse), dense)
    return h


def _has_both(trunk: Interaction) -> bool:
    """Whether `by_hand` is of the class that has `forward`: a class that changes the one needs another of the other."""
    return "by_hand" in vars(next(kind for kind in type(trunk).__mro__ if "forward" in vars(kind)))


def _part(net: nn.Module, name: str) -> nn.Module:
    found: nn.Module = net._modules[name]  # type: ignore[assignment]
    return found

"""A teacher's dense part as machine code (exfm/machine_code.py): what lies between units and logits.

    score   (units, dense, parameters…) -> logits
    judge   (units, dense, offset, labels, mask, weights, rows, parameters…) -> logits, loss, gradients of units and of
            each parameter

A training step is one call: forward pass, loss and backward pass are one graph, so what lies between products of
matrices is few loops that the compiler fuses, and the rest of the step is as it is without. It is made from a batch of
one size, whatever batch comes first, so two runs and a resumed one compute with the same code.

B examples, N units, D width, C dense features, T tasks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from exfm.errors import ConfigError
from exfm.machine_code import Code, machine_code
from exfm.models.teacher_config import TeacherConfig
from exfm.models.teacher_net import Targets, TeacherNet, loss_of

WHAT = "teacher.model.compile"


def compiled_dense(cfg: TeacherConfig, net: TeacherNet, *, learns: bool) -> CompiledDense:
    """Code for this network's shape, from the user's cache or made now. Raises ConfigError and ModelError as
    `machine_code` does, and for a network on another device than a CPU."""
    parameters = {n: p for n, p in net.named_parameters() if n.startswith(("trunk.", "heads."))}
    device = next(iter(parameters.values())).device
    if device.type != "cpu":
        raise ConfigError(f"{WHAT} is for CPUs, and the teacher is on {device}; leave it out")
    return CompiledDense(cfg, net, parameters, learns=learns)


class CompiledDense:
    """`score`, and for one that `learns` also `judge`, for a network whose parameters stay where they are."""

    def __init__(
        self, cfg: TeacherConfig, net: TeacherNet, parameters: dict[str, torch.nn.Parameter], *, learns: bool
    ) -> None:
        self._parameters = list(parameters.values())
        names, T = list(parameters), len(net.heads)
        settings = cfg.interaction_settings().model_dump(mode="json")
        sizes = [net.units.count, net.units.width, net.dense_inputs, T, cfg.head]
        about = [cfg.interaction, settings, sizes, cfg.dense_dtype, cfg.precision]
        copies = [torch.zeros_like(p) for p in self._parameters]

        def inputs(rows: int) -> list[Tensor]:
            shapes = ((rows, net.units.count, net.units.width), (rows, net.dense_inputs))
            return [torch.zeros(shape, dtype=net.dtype) for shape in shapes]

        def targets(rows: int) -> list[Tensor]:
            offset, labels, known = torch.zeros(T, dtype=net.dtype), torch.zeros(rows, T), torch.ones(T).double()
            return [offset, labels, labels > 0, torch.zeros(rows), known]

        def score(units: Tensor, dense: Tensor, *parameters: Tensor) -> list[Tensor]:
            return [_dense_part(net, dict(zip(names, parameters, strict=True)), units, dense)]

        def judge(units: Tensor, dense: Tensor, offset: Tensor, *others: Tensor) -> list[Tensor]:
            targets, parameters = Targets(*others[:4]), others[4:]
            learned = [tensor.detach().requires_grad_() for tensor in (units, *parameters)]
            z = _dense_part(net, dict(zip(names, learned[1:], strict=True)), learned[0], dense) + offset
            loss = loss_of(z, targets)
            return [z.detach(), loss.detach(), *torch.autograd.grad(loss, learned, materialize_grads=True)]

        whole = [False] * len(copies)
        rowwise = [True, True]
        self._score = machine_code(
            score, lambda rows: [*inputs(rows), *copies], [*rowwise, *whole], ["score", *about], WHAT
        )
        self._judge: Code | None = None
        if learns:
            known = [False, True, True, True, False]
            self._judge = machine_code(
                judge,
                lambda rows: [*inputs(rows), *targets(rows), *copies],
                [*rowwise, *known, *whole],
                ["judge", *about],
                WHAT,
            )

    def score(self, units: Tensor, dense: Tensor) -> Tensor:
        (z,) = self._score([units.contiguous(), dense.contiguous(), *(p.detach() for p in self._parameters)])
        return z

    def judge(self, units: Tensor, dense: Tensor, offset: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        assert self._judge is not None
        return _Judge.apply(self._judge, units, dense, offset, *targets, *self._parameters)


class _Judge(torch.autograd.Function):
    """Logits and loss; the gradients, which the code has made along with them, are handed out when the loss is
    differentiated."""

    @staticmethod
    def forward(ctx: Any, code: Code, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        z, loss, *ctx.gradients = code([tensor.detach().contiguous() for tensor in tensors])
        ctx.mark_non_differentiable(z)
        return z, loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        units, *parameters = ctx.gradients
        return (None, units, *[None] * 6, *parameters)


def _dense_part(net: TeacherNet, parameters: dict[str, Tensor], units: Tensor, dense: Tensor) -> Tensor:
    """`TeacherNet.dense_part` with these parameters."""
    return torch.func.functional_call(_DensePart(net), {f"net.{n}": p for n, p in parameters.items()}, (units, dense))


class _DensePart(torch.nn.Module):
    def __init__(self, net: TeacherNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, units: Tensor, dense: Tensor) -> Tensor:
        return self.net.dense_part(units, dense)

"""The optimizer of dense weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Adam:
    """torch's fused Adam (arXiv 1412.6980) over parameters by name, whose gradients are given to each step.

    `state`, by parameter: exp_avg, exp_avg_sq, step. It is there from the start, to be saved and loaded.

    >>> parameters = {"w": torch.zeros(2)}
    >>> optimizer = Adam(parameters)
    >>> optimizer.step({"w": torch.tensor([1.0, -4.0])}, lr=0.5)
    >>> parameters["w"]  # the first step moves every weight by the rate
    tensor([-0.5000,  0.5000])
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self.state: dict[str, dict[str, Tensor]] = {
            name: {
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
                "step": torch.zeros((), device=p.device),
            }
            for name, p in parameters.items()
        }

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], lr: float) -> None:
        """A step of the parameters that have a gradient."""
        averages, squares, steps = zip(*(self.state[name].values() for name in gradients), strict=True)
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            [self._parameters[name] for name in gradients],
            list(gradients.values()),
            averages,
            squares,
            [],
            steps,
            lr=lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

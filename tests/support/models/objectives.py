"""The objective of a batch whose parts come by name, as tests draw and change them."""

from __future__ import annotations

from torch import Tensor

from exfm.distillation.arm import Arm
from exfm.distillation.loss import Objective, objective
from exfm.distillation.targets import RowMasks, Targets


def objective_of(arm: Arm, z_S: Tensor, labels: Tensor, teacher_logits: Tensor, **parts: Tensor) -> Objective:
    targets, rows = ({k: t for k, t in parts.items() if k in kind._fields} for kind in (Targets, RowMasks))
    heads = {k: t for k, t in parts.items() if k in ("z_D", "z_D2")}
    assert len(targets) + len(rows) + len(heads) == len(parts)
    return objective(arm, z_S, labels, Targets(teacher_logits, **targets), rows=RowMasks(**rows), **heads)

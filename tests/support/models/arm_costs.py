"""Students of every arm with their twins, and the FLOPs of what is served."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from exfm.distillation.arm import Arm
from exfm.features.batch import Batch
from exfm.models.served import ServedStudent

TWIN = "no teacher"


AGAIN = "no teacher, again"


EVERY_ARM = {
    TWIN: Arm(kind="none"),
    AGAIN: Arm(kind="none"),
    "single head": Arm(kind="single_head"),
    "auxiliary head": Arm(kind="auxiliary_head", weight=2.0),
    "AH + Platt": Arm(kind="auxiliary_head", recalibration="platt", weight=2.0),
    "AH + SA": Arm(kind="auxiliary_head", adapter=True, weight=2.0),
    "AH + SA, context": Arm(kind="auxiliary_head", adapter=True, adapter_input="context", weight=2.0),
    "AH + SA, schedule": Arm(kind="auxiliary_head", adapter=True, single_head_rows=1 << 40, weight=2.0),
    "AH + SA, follows": Arm(kind="auxiliary_head", adapter=True, follows="advantage", weight=2.0),
}


def flops_per_example(served: ServedStudent, batch: Batch) -> int:
    """Of one forward pass, as torch counts them: two per multiplication and addition of a product of matrices."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        served(batch.sparse, batch.dense)
    flops, rest = divmod(counter.get_total_flops(), len(batch))
    assert not rest
    return flops

"""Arms of every kind that have more than heads, and batches whose logits have an age."""

from dataclasses import replace

import numpy as np
import torch

from exfm.distillation.arm import Arm

ARMS = {
    "platt, single head": Arm(kind="single_head", recalibration="platt"),
    "platt": Arm(recalibration="platt", weight=1.5, label_scale=1.2),
    "context": Arm(adapter=True, adapter_input="context"),
    "schedule": Arm(adapter=True, single_head_rows=700, single_head_weight=2.0),
    "follows": Arm(adapter=True, follows="advantage"),
    "follows, single head": Arm(kind="single_head", follows="advantage"),
    "everything": Arm(
        adapter=True,
        adapter_input="context",
        recalibration="platt",
        single_head_rows=700,
        single_head_weight=0.5,
        follows="advantage",
        rows="all",
        temperature=2.0,
        gradient_scale=3.0,
    ),
}


def aged(batches):
    """As if snapshots had scored them that were a few thousand rows old."""
    rng = np.random.default_rng(4)
    ages = [torch.from_numpy(rng.integers(0, 50_000, len(batch)).astype(np.float32)) for batch in batches]
    return [replace(batch, teacher_age=age) for batch, age in zip(batches, ages, strict=True)]


def learn(one, batches):
    return [one.train_step(batch) for batch in batches]

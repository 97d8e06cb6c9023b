"""Cost of serving a student, computed from its architecture without training or timing."""

from __future__ import annotations

import logging
from typing import NamedTuple

import pyarrow as pa
import torch

from exfm.features.batch import BatchBuilder
from exfm.models.served import ServedStudent
from pipelines.core.config.models import StudentSettings
from pipelines.core.config.settings import Config

SAMPLE_ROWS = 64


class ServingCost(NamedTuple):
    """Cost of a served student: `parameters` including tables; `flops` of a forward pass per row, two per
    multiply-add of a matrix product; None without rows."""

    parameters: int
    flops: int | None


def serving_of(config: Config, student: StudentSettings, rows: pa.Table) -> ServingCost:
    """Serving cost of a student with these settings; `rows`: a sample of its stream."""
    tasks, features = config.student_tasks(student), config.student_features(student).without_teacher()
    cfg = student.model
    served = ServedStudent(cfg.trunk, cfg.width, features, tasks, wide=cfg.wide)
    sample = rows.slice(0, SAMPLE_ROWS).combine_chunks()
    if not sample.num_rows:
        return ServingCost(served.parameter_count, None)
    batch = BatchBuilder(features, tasks)(sample)
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # it warns of kernels that no student has
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        served(batch.sparse, batch.dense, batch.raw)
    return ServingCost(served.parameter_count, int(counter.get_total_flops() // len(batch)))

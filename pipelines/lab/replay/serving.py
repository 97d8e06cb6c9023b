"""What serving a student costs, counted from the student that is served, without training or timing anything."""

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


class Serving(NamedTuple):
    """`parameters` of what is served, tables included; `flops` of a forward pass per row: two per multiplication and
    addition of a product of matrices; None where the stream has no row."""

    parameters: int
    flops: int | None


def serving_of(config: Config, student: StudentSettings, rows: pa.Table) -> Serving:
    """Of the student that these settings make; `rows`: some of its stream, as a lake holds it."""
    tasks, features = config.student_tasks(student), config.student_features(student).without_teacher()
    cfg = student.model
    served = ServedStudent(cfg.trunk, cfg.width, features, tasks, wide=cfg.wide)
    sample = rows.slice(0, SAMPLE_ROWS).combine_chunks()
    if not sample.num_rows:
        return Serving(served.parameter_count, None)
    batch = BatchBuilder(features, tasks)(sample)
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # it warns of kernels that no student has
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        served(batch.sparse, batch.dense, batch.raw)
    return Serving(served.parameter_count, int(counter.get_total_flops() // len(batch)))

"""Training steps of a student: labels alone against bare torch, and the default arm against labels alone."""

from __future__ import annotations

import logging
from collections.abc import Callable

from exfm.features.batch import Batch
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from pipelines.bench.benchmark import Benchmark, Demand
from pipelines.bench.figures import Work
from pipelines.bench.shape import BATCH, FEATURES, ROWS, SEED, TASKS, WIDTH, batches, table_bytes
from pipelines.bench.sketches import DLRMSketch, SketchStep

CONFIG = StudentConfig(width=WIDTH)
AT_MOST_OVER_TWIN = 1.35


def flops(call: Callable[[], object]) -> int:
    """FLOPs of matrix products of a call."""
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # its import warns where triton is not
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def training(student: Student, each: list[Batch]) -> Work:
    """All rows once; the first time, which is not kept, takes a student past what is special of its first rows."""

    def call() -> None:
        for batch in each:
            student.train_step(batch)

    return Work(call, ROWS)


def student_of(config: StudentConfig) -> Student:
    return Student(config, FEATURES, TASKS, SEED)


def student_step() -> Benchmark:
    return _against_sketch("student-step", CONFIG.without_teacher())


def student_network() -> Benchmark:
    return _against_sketch("student-network", CONFIG.without_teacher().model_copy(update={"wide": False}))


def _against_sketch(name: str, config: StudentConfig) -> Benchmark:
    each = batches(BATCH)
    sketch = SketchStep(DLRMSketch(config.trunk.bottom, config.trunk.mlp), each)
    return Benchmark(
        name,
        "rows / CPU s",
        training(student_of(config), each),
        target=0.85,
        reference=Work(sketch, ROWS),
        reference_is="bare torch",
        demand=Demand(flops(lambda: sketch.step(each[0])) / BATCH, table_bytes(learned=True)),
    )


def default_arm(size: int) -> Benchmark:
    each = batches(size)
    return Benchmark(
        f"default-arm-{size}",
        "rows / CPU s",
        training(student_of(CONFIG), each),
        target=1 / AT_MOST_OVER_TWIN,
        reference=training(student_of(CONFIG.without_teacher()), each),
        reference_is="no teacher",
    )

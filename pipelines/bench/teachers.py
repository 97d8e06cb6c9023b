"""A teacher: a Wukong of three layers, its training step and the forward pass that scores rows."""

from __future__ import annotations

from exfm.models import Teacher, TeacherConfig
from pipelines.bench.benchmark import Benchmark, Demand
from pipelines.bench.figures import Work
from pipelines.bench.shape import BATCH, FEATURES, ROWS, SEED, TASKS, WIDTH, batches, table_bytes
from pipelines.bench.sketches import SketchStep, WukongSketch
from pipelines.bench.students import flops

CONFIG = TeacherConfig(width=WIDTH, layers=3, num_fmb=16, num_lcb=16, rank=24, mlp=(512,))


def _sketch() -> SketchStep:
    layers = WukongSketch(CONFIG.layers, CONFIG.num_fmb, CONFIG.num_lcb, CONFIG.rank, CONFIG.mlp[0])
    return SketchStep(layers, batches(BATCH))


def teacher_step() -> Benchmark:
    teacher, sketch, each = Teacher(CONFIG, FEATURES, TASKS, SEED), _sketch(), batches(BATCH)

    def call() -> None:
        for batch in each:
            teacher.train_step(batch)

    return Benchmark(
        "teacher-step",
        "rows / CPU s",
        Work(call, ROWS),
        target=0.6,
        reference=Work(sketch, ROWS),
        reference_is="bare torch",
        demand=Demand(flops(lambda: sketch.step(each[0])) / BATCH, table_bytes(learned=True)),
        against="limit",
    )


def teacher_forward() -> Benchmark:
    teacher, sketch, each = Teacher(CONFIG, FEATURES, TASKS, SEED), _sketch(), batches(BATCH)

    def call() -> None:
        for batch in each:
            teacher.score(batch)

    return Benchmark(
        "teacher-forward",
        "rows / CPU s",
        Work(call, ROWS),
        target=0.75,
        reference=Work(sketch.score, ROWS),
        reference_is="bare torch",
        demand=Demand(flops(sketch.score) / ROWS, table_bytes(learned=False)),
        against="limit",
    )

"""A teacher: a Wukong of three layers, its training step and the forward pass that scores rows, in fp32, in bf16 and in
bf16 as machine code. The sketch has the same precision, and is never compiled."""

from __future__ import annotations

from typing import Literal, NamedTuple

from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from pipelines.bench.benchmark import Benchmark, Demand
from pipelines.bench.figures import Work
from pipelines.bench.shape import BATCH, FEATURES, ROWS, SEED, TASKS, WIDTH, batches, table_bytes
from pipelines.bench.sketches import SketchStep, WukongSketch
from pipelines.bench.students import flops

CONFIG = TeacherConfig(width=WIDTH, layers=3, num_fmb=16, num_lcb=16, rank=24, mlp=(512,))


class Way(NamedTuple):
    """How a teacher computes."""

    name: str = ""
    precision: Literal["fp32", "bf16"] = "fp32"
    compiled: bool = False

    @property
    def config(self) -> TeacherConfig:
        return CONFIG.model_copy(update={"precision": self.precision, "compile": self.compiled})


FP32, BF16, COMPILED = Way(), Way("-bf16", "bf16"), Way("-compiled", "bf16", True)


def _sketch(way: Way) -> SketchStep:
    layers = WukongSketch(CONFIG.layers, CONFIG.num_fmb, CONFIG.num_lcb, CONFIG.rank, CONFIG.mlp[0])
    return SketchStep(layers, batches(BATCH), bf16=way.precision == "bf16")


def teacher_step(way: Way) -> Benchmark:
    teacher, sketch, each = Teacher(way.config, FEATURES, TASKS, SEED), _sketch(way), batches(BATCH)

    def call() -> None:
        for batch in each:
            teacher.train_step(batch)

    return Benchmark(
        f"teacher-step{way.name}",
        "rows / CPU s",
        Work(call, ROWS),
        target=0.6,
        reference=Work(sketch, ROWS),
        reference_is="bare torch",
        demand=Demand(flops(lambda: sketch.step(each[0])) / BATCH, table_bytes(learned=True)),
        against="limit",
    )


def teacher_forward(way: Way) -> Benchmark:
    teacher, sketch, each = Teacher(way.config, FEATURES, TASKS, SEED), _sketch(way), batches(BATCH)

    def call() -> None:
        for batch in each:
            teacher.score(batch)

    return Benchmark(
        f"teacher-forward{way.name}",
        "rows / CPU s",
        Work(call, ROWS),
        target=0.75,
        reference=Work(sketch.score, ROWS),
        reference_is="bare torch",
        demand=Demand(flops(sketch.score) / ROWS, table_bytes(learned=False)),
        against="limit",
    )

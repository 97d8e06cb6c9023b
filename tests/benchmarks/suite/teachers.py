"""A teacher: a Wukong of three layers with a head of 512-256. Its training step and the forward pass that scores rows,
in fp32, in bf16 and in bf16 as machine code. The sketch has the same precision, and is never compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from exfm.features.batch import Batch
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from tests.benchmarks.suite.limits import GEMM_BF16, GEMM_FP32
from tests.benchmarks.suite.measuring import Benchmark, Demand, Work
from tests.benchmarks.suite.shape import BATCH, FEATURES, SEED, TASKS, WIDTH, new_batches
from tests.benchmarks.suite.sketches import SketchStep, WukongSketch, flops

WUKONG = TeacherConfig(width=WIDTH, layers=3, num_fmb=16, num_lcb=16, rank=24, mlp=(512,), head=(512, 256))


class Form(NamedTuple):
    """The form in which a teacher computes."""

    suffix: str = ""
    precision: Literal["fp32", "bf16"] = "fp32"
    compiled: bool = False

    @property
    def rate(self) -> str:
        return GEMM_BF16 if self.precision == "bf16" else GEMM_FP32


FP32, BF16, COMPILED = Form(), Form("-bf16", "bf16"), Form("-compiled", "bf16", True)


def wukong(form: Form) -> Benchmark:
    teacher, sketch = _teacher(form), _sketch(form)
    return _benchmark(f"teacher-wukong{form.suffix}", form, teacher.train_step, sketch.step, target=0.85)


def wukong_forward(form: Form) -> Benchmark:
    teacher, sketch = _teacher(form), _sketch(form)
    return _benchmark(f"teacher-forward{form.suffix}", form, teacher.score, sketch.score, target=0.75)


def _benchmark(
    name: str, form: Form, call: Callable[[Batch], object], reference: Callable[[Batch], object], *, target: float
) -> Benchmark:
    new = new_batches(BATCH)
    return Benchmark(
        name,
        "rows / CPU s",
        Work(call, BATCH, new),
        target=target,
        reference=Work(reference, BATCH, new),
        reference_is="bare torch, without the linear part",
        demand=Demand(form.rate, flops(lambda: reference(new())) / BATCH),
        against="limit",
    )


def make_machine_code() -> None:
    """Load the code of a compiled teacher, which a compiler makes where it is not there."""
    teacher, new = _teacher(COMPILED), new_batches(BATCH)
    teacher.train_step(new())
    teacher.score(new())


def _teacher(form: Form) -> Teacher:
    config = WUKONG.model_copy(update={"precision": form.precision, "compile": form.compiled})
    return Teacher(config, FEATURES, TASKS, SEED)


def _sketch(form: Form) -> SketchStep:
    net = WukongSketch(WUKONG.layers, WUKONG.num_fmb, WUKONG.num_lcb, WUKONG.rank, WUKONG.mlp[0], WUKONG.head)
    return SketchStep(net, bf16=form.precision == "bf16")

"""Training steps of a student: two networks by name on labels alone, and the default arm against labels alone.

The networks are those of published DLRM configurations: the large one is bound by products of matrices and is held to
their rate; the small one, the default of a student, by everything else, and is held to bare torch.
"""

from __future__ import annotations

from exfm.interactions.registry import TrunkConfig
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from tests.benchmarks.suite.limits import GEMM_FP32
from tests.benchmarks.suite.measuring import Benchmark, Demand, Work
from tests.benchmarks.suite.shape import BATCH, FEATURES, SEED, TASKS, WIDTH, new_batches
from tests.benchmarks.suite.sketches import DLRMSketch, SketchStep, flops

SMALL = StudentConfig(width=WIDTH)  # 32-16 / 64-32
LARGE = StudentConfig(width=WIDTH, trunk=TrunkConfig(bottom=(512, 256, 64), mlp=(512, 256)))  # 512-256-64-16 / 512-256
AT_MOST_OVER_TWIN = 1.35


def training(config: StudentConfig, size: int) -> Work:
    return Work(Student(config, FEATURES, TASKS, SEED).train_step, size, new_batches(size))


def dlrm() -> Benchmark:
    return _against_sketch("student-dlrm", LARGE, target=0.85, against="limit")


def dlrm_small() -> Benchmark:
    return _against_sketch("student-dlrm-small", SMALL, target=3.0, against="reference")


def _against_sketch(name: str, config: StudentConfig, *, target: float, against: str) -> Benchmark:
    sketch, new = SketchStep(DLRMSketch(config.trunk.bottom, config.trunk.mlp)), new_batches(BATCH)
    return Benchmark(
        name,
        "rows / CPU s",
        training(config.without_teacher(), BATCH),
        target=target,
        reference=Work(sketch.step, BATCH, new),
        reference_is="bare torch, without the linear part",
        demand=Demand(GEMM_FP32, flops(lambda: sketch.step(new())) / BATCH),
        against=against,
    )


def default_arm(size: int) -> Benchmark:
    return Benchmark(
        f"student-arm-{size}",
        "rows / CPU s",
        training(SMALL, size),
        target=1 / AT_MOST_OVER_TWIN,
        reference=training(SMALL.without_teacher(), size),
        reference_is="no teacher",
    )

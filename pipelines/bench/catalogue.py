"""All benchmarks, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from exfm.errors import ConfigError
from exfm.machine_code import has_compiler
from exfm.memory import keep_memory
from exfm.threads import set_threads
from pipelines.bench.benchmark import Benchmark, measured
from pipelines.bench.figures import Figure
from pipelines.bench.limits import machine_figures
from pipelines.bench.processes import imports, memory
from pipelines.bench.rows import batch_building, hashing, lake_reading, message_decoding
from pipelines.bench.serving import serving, slowest_answer
from pipelines.bench.students import default_arm, student_network, student_step
from pipelines.bench.tables import embedding_step
from pipelines.bench.teachers import BF16, COMPILED, FP32, teacher_forward, teacher_step


def _compared(make: Callable[[], Benchmark]) -> Callable[[int], list[Figure]]:
    return lambda runs: [measured(make(), runs)]


def _alone(measure: Callable[[int], Figure]) -> Callable[[int], list[Figure]]:
    return lambda runs: [measure(runs)]


_ALL: dict[str, Callable[[int], list[Figure]]] = {
    "machine": machine_figures,
    "student-step": _compared(student_step),
    "student-network": _compared(student_network),
    "default-arm-2048": _compared(partial(default_arm, 2048)),
    "default-arm-512": _compared(partial(default_arm, 512)),
    "default-arm-128": _compared(partial(default_arm, 128)),
    "teacher-step": _compared(partial(teacher_step, FP32)),
    "teacher-step-bf16": _compared(partial(teacher_step, BF16)),
    "teacher-step-compiled": _compared(partial(teacher_step, COMPILED)),
    "teacher-forward": _compared(partial(teacher_forward, FP32)),
    "teacher-forward-bf16": _compared(partial(teacher_forward, BF16)),
    "teacher-forward-compiled": _compared(partial(teacher_forward, COMPILED)),
    "embedding-step": _compared(embedding_step),
    "batch-building": _compared(batch_building),
    "hashing-integers": _compared(partial(hashing, "integers")),
    "hashing-strings": _compared(partial(hashing, "strings")),
    "arrow-to-tensors": _compared(partial(message_decoding, "arrow")),
    "json-to-tensors": _compared(partial(message_decoding, "json")),
    "lake-to-tensors": _compared(lake_reading),
    "serving-100": _compared(serving),
    "serving-100-p99": _alone(slowest_answer),
    "imports": _alone(imports),
    "worker-memory": _alone(memory),
}

NAMES = tuple(_ALL)


def measure(name: str | None, runs: int) -> Iterator[Figure]:
    """The figures of a benchmark, of those whose name begins so, or of all, each when it is measured. What needs a
    compiler is among those of all only where there is one.

    Raises ConfigError where no benchmark has the name.
    """
    able = [each for each in NAMES if has_compiler() or not each.endswith("-compiled")]
    asked = [name] if name in NAMES else [each for each in able if each.startswith(name or "")]
    if not asked:
        raise ConfigError(f"there is no benchmark `{name}`; there are: {', '.join(NAMES)}")
    set_threads(1)
    keep_memory()
    for each in asked:
        yield from _ALL[each](runs)

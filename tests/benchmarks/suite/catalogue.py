"""All benchmarks, by name, with the settings of the worker that does the work, and how long each takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from exfm.errors import ConfigError
from exfm.machine_code import has_compiler
from exfm.memory import keep_memory
from exfm.processor import multiplies_bf16
from exfm.threads import set_threads
from tests.benchmarks.suite.limits import SILICON, machine_figures
from tests.benchmarks.suite.measuring import Benchmark, Figure, measured, planned_s
from tests.benchmarks.suite.processes import worker_start
from tests.benchmarks.suite.rows import batch_building, hashing, lake_reading, message_decoding
from tests.benchmarks.suite.serving import serving, slowest_answer
from tests.benchmarks.suite.students import default_arm, dlrm, dlrm_small
from tests.benchmarks.suite.tables import embedding_step
from tests.benchmarks.suite.teachers import BF16, COMPILED, FP32, Form, wukong, wukong_forward

START_S = 6.0
"""Seconds in which this program imports torch and the rest."""


@dataclass(frozen=True)
class Entry:
    """A benchmark, and how long it takes.

    works        how many take turns
    fixed_s      seconds for what is made before, and measured beside the turns
    keep_memory  the worker that does this work has called `exfm.memory.keep_memory`
    """

    measure: Callable[[int], list[Figure]]
    works: int
    fixed_s: float = 2.0
    keep_memory: bool = False
    bf16: bool = False
    compiled: bool = False

    def seconds(self, runs: int) -> float:
        return self.fixed_s + planned_s(self.works, runs)

    @property
    def missing(self) -> str | None:
        """What this machine lacks for it; None: nothing."""
        if self.bf16 and not multiplies_bf16():
            return "this processor has no instructions for bf16 (avx512_bf16, amx_bf16); emulated it is 18 × slower"
        if self.compiled and not has_compiler():
            return "there is no C++ compiler (g++ or clang++)"
        return None


def _compared(make: Callable[[], Benchmark]) -> Callable[[int], list[Figure]]:
    return lambda runs: [measured(make(), runs, SILICON)]


def _of_a_teacher(make: Callable[[Form], Benchmark], form: Form) -> Entry:
    return Entry(
        _compared(partial(make, form)),
        works=3,
        fixed_s=120.0 if form.compiled else 4.0,
        keep_memory=True,
        bf16=form.precision == "bf16",
        compiled=form.compiled,
    )


CATALOGUE: dict[str, Entry] = {
    "machine": Entry(machine_figures, works=3),
    "student-dlrm": Entry(_compared(dlrm), works=3),
    "student-dlrm-small": Entry(_compared(dlrm_small), works=3),
    **{f"student-arm-{size}": Entry(_compared(partial(default_arm, size)), works=2) for size in (2048, 512, 128)},
    "embedding-step": Entry(_compared(embedding_step), works=3),
    "batch-building": Entry(_compared(batch_building), works=3),
    "hashing-integers": Entry(_compared(partial(hashing, "integers")), works=2),
    "hashing-strings": Entry(_compared(partial(hashing, "strings")), works=2),
    "arrow-to-tensors": Entry(_compared(partial(message_decoding, "arrow")), works=2),
    "json-to-tensors": Entry(_compared(partial(message_decoding, "json")), works=2),
    "lake-to-tensors": Entry(_compared(lake_reading), works=3, fixed_s=6.0),
    "serving-100": Entry(_compared(serving), works=2),
    "serving-100-p99": Entry(slowest_answer, works=1, fixed_s=6.0),
    "worker-start": Entry(worker_start, works=0, fixed_s=24.0),
    # What keeps memory comes last: a process cannot go back.
    "teacher-wukong": _of_a_teacher(wukong, FP32),
    "teacher-wukong-bf16": _of_a_teacher(wukong, BF16),
    "teacher-wukong-compiled": _of_a_teacher(wukong, COMPILED),
    "teacher-forward": _of_a_teacher(wukong_forward, FP32),
    "teacher-forward-bf16": _of_a_teacher(wukong_forward, BF16),
    "teacher-forward-compiled": _of_a_teacher(wukong_forward, COMPILED),
}


def chosen(name: str | None) -> dict[str, Entry]:
    """The benchmark of this name, else those whose name begins so, else all; in the order of the catalogue.

    Raises ConfigError if there is none.
    """
    entries = {each: entry for each, entry in CATALOGUE.items() if each.startswith(name or "")}
    if not entries:
        raise ConfigError(f"unknown benchmark `{name}`; choose from {', '.join(CATALOGUE)}")
    return {name: entries[name]} if name in entries else entries


def estimated_s(entries: dict[str, Entry], runs: int) -> float:
    """Seconds by the clock that `figures` takes for them, with the start of the program."""
    return START_S + sum(entry.seconds(runs) for entry in entries.values() if entry.missing is None)


def figures(entries: dict[str, Entry], runs: int) -> Iterator[Figure]:
    """The figures of benchmarks for which nothing is missing, each when it is measured."""
    set_threads(1)
    for entry in entries.values():
        if entry.missing is None:
            if entry.keep_memory:
                keep_memory()
            yield from entry.measure(runs)

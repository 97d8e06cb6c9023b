"""All benchmarks, by name, with the settings of the worker that does the work, and how long each takes.

Turns take the time by the clock that is planned for them (measuring.py). What is made before them, and calls that are
longer than a turn, take longer on a machine that is slower or busy. How much longer, the start of the program shows:
it takes `START_S` on the machine on which the seconds of the catalogue were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from exfm.errors import ConfigError
from exfm.kernels.machine_code import has_compiler
from exfm.machine import keep_memory, multiplies_bf16, set_threads
from tests.benchmarks.suite.limits import SILICON, machine_figures
from tests.benchmarks.suite.measuring import FEWEST_RUNS, Benchmark, Figure, measured, planned_s
from tests.benchmarks.suite.processes import worker_start
from tests.benchmarks.suite.rows import batch_building, hashing, lake_reading, message_decoding
from tests.benchmarks.suite.serving import serving, slowest_answer
from tests.benchmarks.suite.students import default_arm, dlrm, dlrm_small
from tests.benchmarks.suite.tables import embedding_step
from tests.benchmarks.suite.teachers import BF16, COMPILED, FP32, Form, make_machine_code, wukong, wukong_forward

START_S = 6.0
"""Seconds in which this program is loaded, on a core of its own (AMD EPYC with AVX-512, 2026-11-27)."""


@dataclass(frozen=True)
class Entry:
    """A benchmark, and how long it takes.

    works        how many take turns
    fixed_s      seconds for what is made before, and measured beside the turns
    call_s       seconds of a call of each work together, where they may be longer than turns
    keep_memory  the worker that does this work has called `exfm.machine.keep_memory`
    """

    measure: Callable[[int], list[Figure]]
    works: int
    fixed_s: float = 2.0
    call_s: float = 0.0
    keep_memory: bool = False
    bf16: bool = False
    compiled: bool = False

    def seconds(self, runs: int, slowness: float) -> float:
        fewest = (min(runs, FEWEST_RUNS) + 1) * self.call_s * slowness
        return self.fixed_s * slowness + max(planned_s(self.works, runs), fewest)

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


def _of_a_teacher(make: Callable[[Form], Benchmark], form: Form, call_s: float) -> Entry:
    return Entry(
        _compared(partial(make, form)),
        works=3,
        fixed_s=2.5,
        call_s=call_s,
        keep_memory=True,
        bf16=form.precision == "bf16",
        compiled=form.compiled,
    )


CATALOGUE: dict[str, Entry] = {
    "machine": Entry(machine_figures, works=3, fixed_s=0.5),
    "student-dlrm": Entry(_compared(dlrm), works=3, call_s=0.4),
    "student-dlrm-small": Entry(_compared(dlrm_small), works=3),
    **{f"student-arm-{size}": Entry(_compared(partial(default_arm, size)), works=2) for size in (2048, 512, 128)},
    "embedding-step": Entry(_compared(embedding_step), works=3, fixed_s=0.7),
    "batch-building": Entry(_compared(batch_building), works=3, fixed_s=0.3),
    "hashing-integers": Entry(_compared(partial(hashing, "integers")), works=2, fixed_s=0.2),
    "hashing-strings": Entry(_compared(partial(hashing, "strings")), works=2, fixed_s=0.2),
    "arrow-to-tensors": Entry(_compared(partial(message_decoding, "arrow")), works=2, fixed_s=0.5),
    "json-to-tensors": Entry(_compared(partial(message_decoding, "json")), works=2, fixed_s=0.5),
    "lake-to-tensors": Entry(_compared(lake_reading), works=3, fixed_s=2.0),
    "serving-100": Entry(_compared(serving), works=2),
    "serving-100-p99": Entry(slowest_answer, works=1, fixed_s=6.0),
    "worker-start": Entry(worker_start, works=0, fixed_s=24.0),
    # What keeps memory comes last: a process cannot go back.
    "teacher-wukong": _of_a_teacher(wukong, FP32, 0.9),
    "teacher-wukong-bf16": _of_a_teacher(wukong, BF16, 0.5),
    "teacher-wukong-compiled": _of_a_teacher(wukong, COMPILED, 0.5),
    "teacher-forward": _of_a_teacher(wukong_forward, FP32, 0.4),
    "teacher-forward-bf16": _of_a_teacher(wukong_forward, BF16, 0.2),
    "teacher-forward-compiled": _of_a_teacher(wukong_forward, COMPILED, 0.2),
}


def chosen(name: str | None) -> dict[str, Entry]:
    """The benchmark of this name, else those whose name begins so, else all; in the order of the catalogue.

    Raises ConfigError if there is none.
    """
    entries = {each: entry for each, entry in CATALOGUE.items() if each.startswith(name or "")}
    if not entries:
        raise ConfigError(f"unknown benchmark `{name}`; choose from {', '.join(CATALOGUE)}")
    return {name: entries[name]} if name in entries else entries


def estimated_s(entries: dict[str, Entry], runs: int, slowness: float = 1.0) -> float:
    """Seconds by the clock that `figures` takes for them. `slowness`: how many times as long as on the machine of the
    catalogue everything takes that is not bound by the clock."""
    return sum(entry.seconds(runs, slowness) for entry in entries.values() if entry.missing is None)


def slowness(started_s: float) -> float:
    """From the seconds in which this program was loaded; at least 1.

    >>> slowness(3.0), slowness(12.0)
    (1.0, 2.0)
    """
    return max(1.0, started_s / START_S)


def make_code(entries: dict[str, Entry]) -> None:
    """Have the compiler make what the chosen benchmarks run, if it is not there: once on a machine, in minutes that no
    estimate holds."""
    if any(entry.compiled and entry.missing is None for entry in entries.values()):
        set_threads(1)
        make_machine_code()


def figures(entries: dict[str, Entry], runs: int) -> Iterator[Figure]:
    """The figures of benchmarks for which nothing is missing, each when it is measured."""
    set_threads(1)
    for entry in entries.values():
        if entry.missing is None:
            if entry.keep_memory:
                keep_memory()
            yield from entry.measure(runs)

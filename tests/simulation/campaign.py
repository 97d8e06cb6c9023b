"""Plays many histories, in several processes, and shows the first that fails, made small."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import NamedTuple

import pyarrow as pa

from tests.simulation.drawing import draw
from tests.simulation.history import History
from tests.simulation.judge import verdict
from tests.simulation.shrink import shrunk
from tests.simulation.world import World

CHUNK = 100
COLLECT_EVERY = 50


class Failure(NamedTuple):
    seed: int
    words: str


@dataclass
class Tally:
    """What was played; `points`: places where a fault could strike; `cpu_s`: seconds of processors."""

    histories: int = 0
    rows: int = 0
    points: int = 0
    cpu_s: float = 0.0

    def add(self, other: Tally) -> None:
        self.histories += other.histories
        self.rows += other.rows
        self.points += other.points
        self.cpu_s += other.cpu_s


def words_of(history: History) -> tuple[str | None, Tally]:
    """What is wrong with what a history leaves behind, and how much it was."""
    outcome = World(history).play()
    return verdict(history.settings, outcome), Tally(1, history.rows, outcome.points)


def smallest(failure: Failure) -> History:
    """The history of a failure, made small. It fails with words that begin alike, so that no other fault takes over."""
    kind = _kind(failure.words)

    def fails(history: History) -> bool:
        words = words_of(history)[0]
        return words is not None and _kind(words) == kind

    return shrunk(draw(failure.seed), fails)


def _kind(words: str) -> str:
    return " ".join("#" if any(c.isdigit() for c in word) else word for word in words.split()[:4])


def play(seeds: Iterable[int]) -> tuple[list[Failure], Tally]:
    """All histories of `seeds`, in this process."""
    failures, tally, began = [], Tally(), time.process_time()
    for number, seed in enumerate(seeds):
        words, played = words_of(draw(seed))
        tally.add(played)
        if words is not None:
            failures.append(Failure(seed, words))
            break
        if number % COLLECT_EVERY == 0:
            gc.collect()
    tally.cpu_s = time.process_time() - began
    return failures, tally


@contextmanager
def alone() -> Iterator[None]:
    """One thread, and no time for the garbage of before the first history."""
    threads = pa.cpu_count(), pa.io_thread_count()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        pa.set_cpu_count(threads[0])
        pa.set_io_thread_count(threads[1])


def campaign(first: int, histories: int, jobs: int, say: Callable[[str], None]) -> tuple[list[Failure], Tally]:
    """Play the histories of seeds `first`, `first + 1`, …; ends early where one fails."""
    chunks = [range(at, min(at + CHUNK, first + histories)) for at in range(first, first + histories, CHUNK)]
    began, said, tally = time.monotonic(), 0.0, Tally()
    failures: list[Failure] = []
    for found, played in _results(chunks, jobs):
        tally.add(played)
        failures += found
        took_s = time.monotonic() - began
        if failures or took_s - said > 10 or tally.histories == histories:
            said = took_s
            rates = (
                f"{60 * tally.histories / took_s:,.0f} a minute ({60 * tally.histories / tally.cpu_s:,.0f} of one core)"
            )
            say(f"{tally.histories:,} of {histories:,} histories, {rates}, {len(failures)} failed")
        if failures:
            break
    return sorted(failures), tally


def _results(chunks: list[range], jobs: int) -> Iterator[tuple[list[Failure], Tally]]:
    with alone():
        if jobs == 1:
            yield from map(play, chunks)
            return
        with get_context("fork").Pool(jobs) as pool:
            yield from pool.imap_unordered(play, chunks)

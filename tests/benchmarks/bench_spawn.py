"""What a spawn takes from the others: rows a second of the teacher and of other students, before it and during it.

    python -m tests.benchmarks.bench_spawn [--rate 800] [--spawn-at 60000] [--spawns 4] [--runs 3]

A real run (Ray, the embedded broker) of the demo's world, played at RATE impressions a second, less than the machine
bears: where a core is free, a backfill takes that core. When SPAWN_AT rows are in the lake, a student of every vertical
is spawned and learns them all, and when it has, the next, SPAWNS of them. Every other worker's rows a second while they
backfill are divided by those from when all of them learned until then. Where the workers are busy for more than the
machine's cores, none was free, and the figure is none: lower RATE.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.core.config.settings import dump, load
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from tests.support.pipelines.commands import Command

CONFIG = "configs/demo.yaml"
OTHERS = ("augmentation", "teacher", "student-feed", "student-shop")
LOOK_S = 0.25
BLOCK_ROWS = 1024
"""Small ones: rows reach the others a block at a time."""
CHUNKS_A_SECOND = 8

Look = tuple[float, dict[str, Any]]  # when, and what the workers had done


def one_run(root: Path, impressions: int, rate: int, spawn_at: int, spawns: int) -> dict[str, float]:
    """Rows a second during the backfill over those before, by worker."""
    students = "students=[{name: feed}, {name: shop}]"
    paced = [f"source.rate={rate}", f"source.chunk_rows={rate // CHUNKS_A_SECOND}"]
    own = [f"source.impressions={impressions}", *paced, students]
    config = load(CONFIG, [*own, "tracking.enabled=false", f"pace.block_rows={BLOCK_ROWS}"])
    path = root / "run.yaml"
    path.write_text(dump(config))
    command = Command(path, root / "run", root / "run.log", patience_s=1800)
    looks: list[Look] = []

    def look(until: Any) -> None:
        while True:
            status = command.until(lambda found: found)
            looks.append((time.monotonic(), status["workers"]))
            if until(status):
                return
            time.sleep(LOOK_S)

    try:
        look(lambda status: status["lake"]["rows"] >= spawn_at)
        began = looks[-1][0]
        for n in range(spawns):
            Pipeline(root / "run").spawn(SpawnRequest(f"more{n}", verticals=("all",), like="feed"))
            look(partial(_live, f"student-more{n}"))
        ended = looks[-1][0]
    finally:
        command.clean_up()
    first = next(when for when, workers in looks if all(workers.get(name, {}).get("rows") for name in OTHERS))
    during, before = _busy(looks, began, ended), _busy(looks, first, began)
    print(f"backfills of {ended - began:.0f} s; workers busy for {during:.2f} cores during it, {before:.2f} before")
    return {name: _rate(looks, name, began, ended) / _rate(looks, name, first, began) for name in OTHERS}


def _live(worker: str, status: dict[str, Any]) -> bool:
    """Whether a worker has learned what there was."""
    told = status["workers"].get(worker) or {}
    return bool(told.get("rows")) and told["lag_rows"] < 4 * BLOCK_ROWS


def _at(looks: list[Look], when: float) -> Look:
    return min(looks, key=lambda look: abs(look[0] - when))


def _rate(looks: list[Look], worker: str, first: float, last: float) -> float:
    (a, before), (b, after) = _at(looks, first), _at(looks, last)
    rows = after[worker]["rows"] - before[worker]["rows"]
    return float(rows / (b - a)) if rows else math.nan


def _busy(looks: list[Look], first: float, last: float) -> float:
    (a, before), (b, after) = _at(looks, first), _at(looks, last)
    return float(sum(w["busy_s"] - before.get(name, w)["busy_s"] for name, w in after.items()) / (b - a))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impressions", type=int, default=120_000)
    options.add_argument("--rate", type=int, default=800)
    options.add_argument("--spawn-at", type=int, default=60_000)
    options.add_argument("--spawns", type=int, default=4)
    options.add_argument("--runs", type=int, default=3)
    asked = options.parse_args()
    found: list[dict[str, float]] = []
    for _ in range(asked.runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(one_run(Path(folder), asked.impressions, asked.rate, asked.spawn_at, asked.spawns))
            print({name: round(ratio, 3) for name, ratio in found[-1].items()}, flush=True)
    for name in OTHERS:
        ratios = [each[name] for each in found]
        print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()

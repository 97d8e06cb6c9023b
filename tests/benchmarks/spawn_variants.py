"""What is a student worth that is spawned at mid-stream? python -m tests.benchmarks.spawn_variants

The demo's world, with seeds that no setting was chosen with. When half of the stream is in the lake the run is stopped,
the same student is spawned in every way below, and each learns the lake by itself: the core's seconds of that are the
cost of its backfill. Then the run goes on to its end with all of them. NE is that of the rows of the second half, by
predictions made before a row was learned, and compared with the student that learned the whole first half (`full`).

Minutes on one core for each seed. A seed that is finished is taken as it is, so the command resumes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from exfm.metrics.classification import cross_entropy, normalised_entropy
from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from pipelines.live.rules.states import RunState
from pipelines.live.training.predictions import read_predictions
from streaming.lake.reader import LakeReader
from streaming.store.files import read_json, write_json

FULL = "full"
T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""Student's t by number of seeds."""


class Way(NamedTuple):
    """One way to spawn the student: what is asked for beyond its rows."""

    words: str
    asked: Mapping[str, Any] = MappingProxyType({})
    settings: tuple[str, ...] = ()


WAYS = {
    FULL: Way("the whole first half, with the teacher's logits"),
    "labels": Way("the whole first half, labels alone", settings=("model.arm={kind: none}",)),
    "since": Way("the last quarter of it", {"since": "6h"}),
    "warm": Way("no row of it; begins with the weights of `feed`", {"start": "feed", "live": True}),
    "warm_since": Way("the last quarter of it; begins with the weights of `feed`", {"start": "feed", "since": "6h"}),
    "live": Way("no row of it", {"live": True}),
    "batches": Way("the whole first half, in batches of 2,048 rows", settings=("batch_rows=2048",)),
    "warm_sampled": Way(
        "the whole first half, a fifth of its negatives; begins with the weights of `feed`",
        {"start": "feed"},
        ("negative_rate={ctr: 0.2, cvr: 0.2}",),
    ),
    "sampled": Way("the whole first half, a fifth of its negatives", settings=("negative_rate={ctr: 0.2, cvr: 0.2}",)),
}


def config_of(seed: int, impressions: int) -> Config:
    settings = ("tracking.enabled=false", "resources.read_ahead=0")
    students = "students=[{name: feed, twin: false, baselines: false}]"
    own = (f"seed={seed}", f"source.seed={seed}", f"source.impressions={impressions}", students)
    return load("configs/demo.yaml", [*own, *settings])


def first_half(config: Config, run_dir: RunDir, rows: int) -> int:
    """Run until the lake has so many rows; the first `lake_seq` after them."""

    def attend(live: Any) -> None:
        if live.lake_rows >= rows:
            live.stop("half of the stream")

    status, _ = run(config, run_dir, local=True, attend=attend)
    assert status.state is RunState.STOPPED, status.reason
    return LakeReader(run_dir.lake, config.rows).last_lake_seq + 1


def backfilled(run_dir: RunDir, name: str, way: Way) -> dict[str, float]:
    """Spawn the student in this way, and have it learn the lake; rows and seconds of the core."""
    settings = ("twin=false", "baselines=false", *way.settings)
    pipeline = Pipeline(run_dir.root)
    pipeline.spawn(SpawnRequest(name, ("all",), "device == 2", like="feed", overrides=settings, **way.asked))
    began = time.process_time()
    rows = pipeline.learn_offline(name)
    return {"rows": rows, "seconds": time.process_time() - began}


def judged(run_dir: RunDir, name: str, since: int) -> pa.Table:
    """A student's predictions from a row on, by `lake_seq`."""
    table = read_predictions(run_dir.predictions(name))
    assert table is not None
    return table.filter(pc.field("lake_seq") >= since)


def compared(way: pa.Table, full: pa.Table, task: str) -> dict[str, float]:
    """NE of both on the rows that both predicted, and the difference in % of `full`'s."""
    own, base = way.column("lake_seq").to_numpy(), full.column("lake_seq").to_numpy()
    _, at, base_at = np.intersect1d(own, base, return_indices=True)
    way, full = way.take(at), full.take(base_at)
    known = way[f"label_{task}"].is_valid().to_numpy()
    labels = way[f"label_{task}"].fill_null(0).to_numpy().astype(np.float64)[known]
    weighted = f"weight_{task}" in way.schema.names
    weights = way[f"weight_{task}"].to_numpy().astype(np.float64)[known] if weighted else np.ones(len(labels))
    logits = [table[f"student_{task}"].to_numpy().astype(np.float64)[known] for table in (way, full)]
    losses = [float((cross_entropy(z, labels) * weights).sum()) for z in logits]
    ne = normalised_entropy(logits[0], labels, weights)
    return {"ne": float(ne or np.nan), "worse": 100 * (losses[0] / losses[1] - 1), "positives": float(labels.sum())}


def one_seed(seed: int, impressions: int, root: Path) -> dict[str, Any]:
    folder = root / f"seed-{seed}"
    if (done := read_json(folder / "spawn_variants.json")) is not None:
        found: dict[str, Any] = done
        return found
    config, run_dir = config_of(seed, impressions), RunDir(folder)
    half = first_half(config, run_dir, impressions // 2)
    costs = {name: backfilled(run_dir, name, way) for name, way in WAYS.items()}
    status, _ = run(config, run_dir, local=True)
    assert status.state is RunState.DONE, status.reason
    full = judged(run_dir, FULL, half)
    value = {
        name: costs[name] | {task: compared(judged(run_dir, name, half), full, task) for task in config.tasks}
        for name in WAYS
    }
    write_json(folder / "spawn_variants.json", value)
    return value


def mean_and_interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:+.2f}"
    half = T_975.get(len(values), 2.0) * statistics.stdev(values) / len(values) ** 0.5
    mean = statistics.mean(values)
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def main(seeds: list[int], impressions: int, root: Path) -> None:
    found = []
    for seed in seeds:
        found.append(one_seed(seed, impressions, root))
        print(f"seed {seed}: {found[-1]}", flush=True)
    head = ["rows learned before", "seconds of a core", "of `full`", "NE ctr", "% worse than `full`: ctr", "cvr"]
    print(f"\n| way | {' | '.join(head)} |\n{'|---' * (len(head) + 1)}|")
    for name, way in WAYS.items():
        of = [value[name] for value in found]
        rows, seconds = (statistics.mean(v[key] for v in of) for key in ("rows", "seconds"))
        share = statistics.mean(v[name]["seconds"] / v[FULL]["seconds"] for v in found)
        worse = [mean_and_interval([v[task]["worse"] for v in of]) if name != FULL else "–" for task in ("ctr", "cvr")]
        ne = statistics.mean(v["ctr"]["ne"] for v in of)
        print(f"| `{name}`: {way.words} | {rows:,.0f} | {seconds:.1f} | {share:.2f} | {ne:.4f} | {' | '.join(worse)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[41, 42, 43, 44, 45])
    parser.add_argument("--impressions", type=int, default=600_000)
    parser.add_argument("--out", type=Path, default=Path("runs/spawn-variants"))
    given = parser.parse_args()
    main(given.seeds, given.impressions, given.out)

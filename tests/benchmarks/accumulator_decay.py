"""Does AdaGrad that forgets follow drift better? python tests/benchmarks/accumulator_decay.py --seeds 1 2 3

A teacher learns a generated stream whose tastes turn while users and ads stay, each batch judged before it is learned.
Every way of keeping accumulators gets the same learning rates to choose from, chooses by NE on the stream's second
quarter, and is compared with accumulators that only grow on the second half, on the same rows. Printed for every seed:
NE and the paired difference with its 95 % interval (below 0: better than growing); then the mean over seeds.
`--turnover` plays the demo's world instead: users and ads come and go, tastes turn slowly.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from exfm.batch import Batch, BatchBuilder
from exfm.decay import Accumulators
from exfm.features import DenseFeature, FeatureSet, SparseFeature
from exfm.metrics.classification import normalised_entropy
from exfm.metrics.paired import consecutive_blocks, paired_ne_difference, student_t_975
from exfm.ranks import RankGroup
from exfm.teacher import Teacher
from exfm.teacher_net import TeacherConfig
from exfm.threads import set_threads
from streaming.sources.generated import GeneratedStream, GeneratorConfig, Vertical

RATES = (0.03, 0.1, 0.3)
BATCH_ROWS = 1024
CLUSTERS = 60

STAYING = {
    "verticals": (Vertical(name="feed", share=1.0, base_rate=0.15, drift=0.8),),
    "users": 500,
    "ads": 100,
    "user_stay": 100.0,
    "ad_stay": 100.0,
    "rotation": 1.5,
    "drift_period": 0.4,
    "taste": 2.0,
}
"""Few users and ads that stay: their accumulators grow over the whole stream while what they like turns 1½ times."""

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="user_id", rows=40_000),
        SparseFeature(name="ad_id", rows=4_000),
        SparseFeature(name="advertiser_id", rows=1_000),
        SparseFeature(name="category_id", rows=100),
        SparseFeature(name="vertical", rows=16),
        *(SparseFeature(name=f"interest_{axis}", rows=5, transform="index") for axis in range(8)),
    ],
    dense=[DenseFeature(name="session_minutes", transform="log1p")],
)


class Run(NamedTuple):
    way: str
    rate: float
    teacher: Teacher
    logits: list[np.ndarray]


def ways(rows: int) -> dict[str, Accumulators]:
    return {
        "grow": Accumulators(),
        "halve every 1/4": Accumulators(half_life_rows=rows // 4),
        "halve every 1/16": Accumulators(half_life_rows=rows // 16),
        "reset every 1/8": Accumulators(reset_every_rows=rows // 8),
    }


def batches(rows: int, seed: int, world: dict) -> Iterator[Batch]:
    """Impressions labelled with whether they are ever clicked."""
    config = GeneratorConfig(
        seed=seed, impressions=rows, lost_rate=0.0, duplicate_rate=0.0, malformed_rate=0.0, **world
    )
    build = BatchBuilder(FEATURES, ["ctr"])
    for chunk in GeneratedStream(config, {"ctr": 3600.0}).chunks(BATCH_ROWS):
        if chunk.impressions.num_rows:
            clicked = chunk.truth["click_delay_ms"].is_valid().cast(pa.int8())
            yield build(
                pa.table(
                    dict(zip(chunk.impressions.schema.names, chunk.impressions.columns, strict=True))
                    | {"label_ctr": clicked}
                )
            )


def learned(rows: int, seed: int, world: dict) -> tuple[list[Run], np.ndarray]:
    """Every way at every rate over the same stream, side by side; and the labels (N,)."""
    with RankGroup() as group:
        runs = [
            Run(way, rate, Teacher(model(rate, accumulators), FEATURES, ["ctr"], 0, group=group), [])
            for way, accumulators in ways(rows).items()
            for rate in RATES
        ]
        labels = []
        for batch in batches(rows, seed, world):
            labels.append(batch.labels[:, 0].numpy())
            for run in runs:
                run.logits.append(run.teacher.train_step(batch).logits[:, 0])
    return runs, np.concatenate(labels)


def model(rate: float, accumulators: Accumulators) -> TeacherConfig:
    return TeacherConfig(layers=1, sparse_lr=rate, accumulators=accumulators)


def compared(rows: int, seed: int, world: dict) -> dict[str, float]:
    """Print one seed's table; relative NE differences from `grow`, percent, by way."""
    runs, labels = learned(rows, seed, world)
    choose, judge = slice(rows // 4, rows // 2), slice(rows // 2, rows)
    chosen: dict[str, tuple[float, np.ndarray]] = {}
    for way in ways(rows):
        of_way = {run.rate: np.concatenate(run.logits) for run in runs if run.way == way}
        rate = min(of_way, key=lambda r: normalised_entropy(of_way[r][choose], labels[choose]))
        chosen[way] = rate, of_way[rate]
    clusters = consecutive_blocks(rows - rows // 2, (rows - rows // 2) // CLUSTERS)
    relative = {}
    for way, (rate, logits) in chosen.items():
        ne = normalised_entropy(logits[judge], labels[judge])
        base = chosen["grow"][1]
        d = paired_ne_difference(logits[judge], base[judge], labels[judge], clusters)
        percent = 100 / normalised_entropy(base[judge], labels[judge])
        relative[way] = d.difference * percent
        interval = f"{relative[way]:+.2f} % [{d.low * percent:+.2f}, {d.high * percent:+.2f}]" if way != "grow" else ""
        print(f"| {seed} | {way} | {rate} | {ne:.4f} | {interval} |", flush=True)
    return relative


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--turnover", action="store_true")
    args = parser.parse_args()
    set_threads(1)
    print("| seed | accumulators | rate | NE, 2nd half | against growing, 95 % |\n|---|---|---|---|---|")
    of_seed = [compared(args.rows, seed, {} if args.turnover else STAYING) for seed in args.seeds]
    print(f"\nmean over {len(of_seed)} seeds, with the 95 % interval that their spread gives:")
    for way in list(of_seed[0])[1:]:
        d = np.array([relative[way] for relative in of_seed])
        reach = student_t_975(len(d) - 1) * d.std(ddof=1) / len(d) ** 0.5 if len(d) > 1 else float("nan")
        print(f"- {way}: {d.mean():+.2f} % ± {reach:.2f}")


if __name__ == "__main__":
    main()

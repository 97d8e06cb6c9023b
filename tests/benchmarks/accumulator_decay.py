"""Does AdaGrad that forgets follow drift better? python -m tests.benchmarks.accumulator_decay --seeds 1 2 3

A teacher learns a generated stream whose tastes turn while users and ads stay, each batch judged before it is learned.
Every way of keeping accumulators gets the same learning rates to choose from and takes the one that was best on the
stream's second quarter, over all seeds. It is compared with accumulators that only grow, at their own best rate, on the
second half, on the same rows. Printed: NE of every way and rate; for every seed the paired difference with its 95 %
interval (below 0: better than growing); the mean over seeds. `--turnover` plays the demo's world instead: users and ads
come and go, tastes turn slowly.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
from scipy.special import stdtrit

from exfm.embeddings.adagrad import AccumulatorConfig
from exfm.features.batch import BatchBuilder
from exfm.machine import set_threads
from exfm.metrics.classification import normalised_entropy
from exfm.metrics.paired import consecutive_blocks, paired_gain
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from tests.support.models.labelled_stream import FEATURES, STAYING, labelled

RATES = (0.05, 0.15, 0.45)
BATCH_ROWS = 1024
CLUSTERS = 60


def ways(rows: int) -> dict[str, AccumulatorConfig]:
    return {
        "grow": AccumulatorConfig(),
        "halve every 1/4": AccumulatorConfig(half_life_rows=rows // 4),
        "halve every 1/16": AccumulatorConfig(half_life_rows=rows // 16),
        "reset every 1/8": AccumulatorConfig(reset_every_rows=rows // 8),
    }


def learned(rows: int, seed: int, turnover: bool) -> tuple[dict[tuple[str, float], np.ndarray], np.ndarray]:
    """Logits (N,) of every way at every rate over the same stream, side by side; and the labels (N,)."""
    build = BatchBuilder(FEATURES, ["ctr"])
    with RankGroup() as group:
        teachers = {
            (way, rate): Teacher(
                TeacherConfig(layers=1, sparse_lr=rate, accumulators=kept), FEATURES, ["ctr"], 0, group=group
            )
            for (way, kept), rate in product(ways(rows).items(), RATES)
        }
        logits: dict[tuple[str, float], list[np.ndarray]] = {arm: [] for arm in teachers}
        labels = []
        for table in labelled(rows, seed, BATCH_ROWS, None if turnover else STAYING):
            batch = build(table)
            labels.append(batch.labels[:, 0].numpy())
            for arm, teacher in teachers.items():
                logits[arm].append(teacher.train_step(batch).logits[:, 0])
    return {arm: np.concatenate(z) for arm, z in logits.items()}, np.concatenate(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--turnover", action="store_true")
    args = parser.parse_args()
    set_threads(1)
    choose, judge = slice(args.rows // 4, args.rows // 2), slice(args.rows // 2, args.rows)
    runs = {seed: learned(args.rows, seed, args.turnover) for seed in args.seeds}

    def ne(way: str, rate: float, part: slice) -> float:
        return float(np.mean([normalised_entropy(z[way, rate][part], y[part]) for z, y in runs.values()]))

    chosen = {way: min(RATES, key=lambda rate: ne(way, rate, choose)) for way in ways(args.rows)}
    print(f"NE of the second half, mean of {len(runs)} seeds; * chosen on the second quarter\n")
    print(f"| accumulators | {' | '.join(f'rate {rate}' for rate in RATES)} |\n|---{'|---' * len(RATES)}|")
    for way, best in chosen.items():
        cells = [f"{ne(way, rate, judge):.4f}{'*' if rate == best else ''}" for rate in RATES]
        print(f"| {way} | {' | '.join(cells)} |")

    others = list(chosen)[1:]
    print("\ngain over growing in % of its NE, above 0 is better, 95 %:\n")
    print(f"| seed | {' | '.join(others)} |\n|---{'|---' * len(others)}|")
    gains: dict[str, list[float]] = {way: [] for way in others}
    for seed, (z, y) in runs.items():
        y, base = y[judge], z["grow", chosen["grow"]][judge]
        clusters = consecutive_blocks(len(y), len(y) // CLUSTERS)
        cells = []
        for way in others:
            gain = paired_gain(z[way, chosen[way]][judge], base, y, clusters)
            gains[way].append(gain.difference)
            cells.append(f"{gain.difference:+.2f} % [{gain.low:+.2f}, {gain.high:+.2f}]")
        print(f"| {seed} | {' | '.join(cells)} |")
    print("\nmean over seeds, with the 95 % interval that their spread gives:")
    for way, d in gains.items():
        reach = stdtrit(len(d) - 1, 0.975) * np.std(d, ddof=1) / len(d) ** 0.5 if len(d) > 1 else float("nan")
        print(f"- {way}: {np.mean(d):+.2f} % ± {reach:.2f}")


if __name__ == "__main__":
    main()

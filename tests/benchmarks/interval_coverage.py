"""How often does a 95 % interval of a gain hold the truth? python -m tests.benchmarks.interval_coverage

Streams of 13,306 rows whose truth is known; the interval is computed whatever the counts, by the formula of
exfm/metrics/paired.py. The limits of exfm/metrics/limits.py were chosen from these tables:

    even      positives come evenly; clusters are stretches of the stream
    users     clusters are 1,000 users of very different activity, and each model errs by user
    bursts    60 stretches whose rates differ by factors of ten: positives come in few of them

A second table is of streams whose rows share users and ads, both of which the models err by: how often do intervals
hold that are clustered by stretches of 512 rows, by user, by ad, and by both (exfm/metrics/clusters.py)?

Minutes on one core; --times 100 gives a rough table in seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from scipy.special import stdtrit

from exfm.metrics.classification import cross_entropy, sigmoid
from exfm.metrics.clusters import Clusters
from exfm.metrics.limits import MIN_CLUSTERS, MIN_POSITIVES
from exfm.metrics.paired import consecutive_blocks, paired_gain
from tests.support.tables import Table

ROWS = 13_306
POSITIVES = (5, 9, 15, 30, 50, 100, 400)

Drawn = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Losses of the student, of its twin, clusters, labels."""


def even(rng: np.random.Generator, centre: float) -> Drawn:
    cluster = np.arange(ROWS) // 512
    z = centre + rng.normal(0, 1, ROWS)
    y = rng.random(ROWS) < sigmoid(z)
    student, twin = (z + rng.normal(0, error, ROWS) for error in (0.45, 0.5))
    return cross_entropy(student, y), cross_entropy(twin, y), cluster, y


def by_cluster(rng: np.random.Generator, centre: float, sizes: np.ndarray, spread: float) -> Drawn:
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    own, z = rng.normal(0, spread, len(sizes)), centre + rng.normal(0, 0.7, len(cluster))
    y = rng.random(len(cluster)) < sigmoid(z + own[cluster])
    student, twin = (z + (own + rng.normal(0, error, len(sizes)))[cluster] for error in (0.45, 0.5))
    return cross_entropy(student, y), cross_entropy(twin, y), cluster, y


def users(rng: np.random.Generator, centre: float) -> Drawn:
    sizes = np.minimum(400, (5 * (1 + rng.pareto(1.5, 1000))).astype(int))
    return by_cluster(rng, centre, sizes, spread=1.2)


def bursts(rng: np.random.Generator, centre: float) -> Drawn:
    return by_cluster(rng, centre, np.full(60, ROWS // 60), spread=2.5)


def holds(draw: Callable[[np.random.Generator, float], Drawn], positives: int, times: int) -> tuple[float, float]:
    """The share of intervals that hold the truth, and how many clusters have a positive on average."""
    rng = np.random.default_rng(positives)
    centre = centre_of(draw, positives, rng)
    found, losses, with_positive = [], np.zeros(2), []
    for _ in range(times):
        a, b, cluster, y = draw(rng, centre)
        A, B = a.sum(), b.sum()
        losses += A, B
        count = int(cluster.max()) + 1
        pulls = np.bincount(cluster, weights=-100 * (a - A / B * b) / B, minlength=count)
        reach = stdtrit(count - 1, 0.975) * np.sqrt(count / (count - 1) * (pulls**2).sum())
        found.append((100 * (1 - A / B), reach))
        with_positive.append(len(np.unique(cluster[y])))
    gain, reach = np.array(found).T
    truth = 100 * (1 - losses[0] / losses[1])
    return float((np.abs(gain - truth) <= reach).mean()), float(np.mean(with_positive))


def centre_of(draw: Callable[[np.random.Generator, float], Drawn], positives: int, rng: np.random.Generator) -> float:
    """The logit at which so many of 13,306 rows are positive."""
    low, high = -16.0, 3.0
    for _ in range(16):
        middle = (low + high) / 2
        rates = [draw(rng, middle)[3].mean() for _ in range(20)]
        low, high = (middle, high) if np.mean(rates) * ROWS < positives else (low, middle)
    return (low + high) / 2


Population = tuple[int, int, float]
"""Users, ads, and the exponent by which users and ads are more or less active."""

TWO_WAY: dict[str, Population] = {
    "1,000 users, 100 ads": (1000, 100, 0.5),
    "1,000 users, 1,000 ads": (1000, 1000, 0.5),
    "200 users, 20 ads": (200, 20, 0.5),
    "1,000 users, 100 ads, few of them in most rows": (1000, 100, 1.0),
}


def two_way(rng: np.random.Generator, population: Population) -> tuple[np.ndarray, ...]:
    """Logits of the student and of its twin, labels, users, ads: both models err by user and by ad."""
    users, ads, exponent = population
    user, ad = (rng.choice(n, ROWS, p=_zipf(n, exponent)) for n in (users, ads))
    z = -2 + rng.normal(0, 0.8, users)[user] + rng.normal(0, 0.8, ads)[ad]
    y = rng.random(ROWS) < sigmoid(z)
    student, twin = (z + rng.normal(0, e, users)[user] + rng.normal(0, e, ads)[ad] for e in (0.45, 0.5))
    return student, twin, y, user, ad


def _zipf(n: int, exponent: float) -> np.ndarray:
    p = np.arange(1, n + 1) ** -exponent
    return p / p.sum()


def holds_two_way(population: Population, times: int) -> list[float]:
    """The share of intervals that hold the truth, clustered by stretches, users, ads, and both."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(times):
        student, twin, y, user, ad = two_way(rng, population)
        ways = (Clusters.of(consecutive_blocks(len(y), 512)), Clusters.of(user), Clusters.of(ad), Clusters.of(user, ad))
        found.append([paired_gain(student, twin, y, clusters)[:3] for clusters in ways])
    gain, low, high = np.moveaxis(np.array(found, dtype=np.float64), 2, 0)
    truth = gain.mean()
    return [float(share) for share in ((low <= truth) & (truth <= high)).mean(0)]


def main(times: int) -> None:
    print(f"intervals are given from {MIN_POSITIVES} positives in {MIN_CLUSTERS} clusters on\n")
    table = Table("stream", "positives", "clusters with a positive", "of 100 intervals hold")
    for draw in (even, users, bursts):
        for positives in POSITIVES:
            share, clusters = holds(draw, positives, times)
            table.row(draw.__name__, positives, f"{clusters:.0f}", f"{100 * share:.1f}")
    print()
    table = Table("of 100 intervals hold, clustered by", "stretches", "user", "ad", "user and ad")
    for name, population in TWO_WAY.items():
        table.row(name, *(f"{100 * share:.0f}" for share in holds_two_way(population, times)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000)
    main(parser.parse_args().times)

"""Do the intervals of a replay hold what they say? python -m tests.benchmarks.replay_statistics

Streams whose truth is known, judged by the code that judges replays. Rows share users and ads, both arms err by user,
by ad and by row, and every seed of an arm errs

    afresh       nothing is common to two seeds
    as a whole   afresh, and by all its logits at once, too high or too low
    alike        half of an arm's errors are common to all its seeds

    A/A       both arms of one law: no gain, in all rows and in four disjoint segments. Intervals of rows and of seeds
              alone, and of both
    planted   the arm's NE is lower by about 1 %; the truth is the ratio of losses over all streams
    watched   the same A/A pairs looked at after every block of 64 rows: how many would have been stopped
    choices   logs of the generated stream with known propensities, settled as in a lake, and made-up ones: IPS, SNIPS
              and doubly robust against the true value

10 to 40 minutes on one core; --streams 50 gives a rough table in a minute.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from exfm.metrics.classification import cross_entropy, sigmoid
from exfm.metrics.clusters import Clusters
from exfm.metrics.estimates import Estimate, mean_of_seeds
from pipelines.lab.judging.comparison import Comparison, JudgedRows, Sample
from pipelines.lab.judging.evidence import watched
from tests.support.models.bandits import Bandit
from tests.support.models.logged_choices import LoggedChoices
from tests.support.tables import Table

ROWS, SEEDS, FEW, USERS, ADS, RATE = 20_000, 5, 3, 4_000, 400, 0.05
ERROR = 0.5
SEGMENTS = 4
GAIN = 1.0

Losses = list[np.ndarray]


class Law(NamedTuple):
    """How seeds differ: `whole`, the standard deviation of a shift of all logits of one, and `shared`, the share of an
    arm's errors (of their variance) that is common to all its seeds."""

    words: str
    whole: float = 0.0
    shared: float = 0.0


AFRESH = Law("afresh")
LAWS = (AFRESH, Law("as a whole", whole=0.2), Law("alike", shared=0.5))


class Stream(NamedTuple):
    """Rows, and by seed the losses of the baseline and of the arm; for watching, the differences of one pair of models
    whose expected losses on this stream are equal; and which ad a row shows."""

    rows: JudgedRows
    base: Losses
    own: Losses
    fair: np.ndarray
    ad: np.ndarray


def stream(rng: np.random.Generator, law: Law, better: float) -> Stream:
    """The arm's errors are smaller by the factor `better`."""
    user, ad = (rng.choice(n, ROWS, p=_zipf(n)) for n in (USERS, ADS))
    z = np.log(RATE / (1 - RATE)) + rng.normal(0, 0.8, USERS)[user] + rng.normal(0, 0.6, ADS)[ad]
    truth = sigmoid(z)
    y = (rng.random(ROWS) < truth).astype(float)

    def errors(size: float) -> np.ndarray:
        by_user, by_ad = rng.normal(0, 0.6 * size, USERS)[user], rng.normal(0, 0.4 * size, ADS)[ad]
        return np.asarray(by_user + by_ad + rng.normal(0, 0.7 * size, ROWS))

    def models(size: float) -> list[np.ndarray]:
        common = errors(size * law.shared**0.5) if law.shared else 0.0
        own = size * (1 - law.shared) ** 0.5
        return [z + common + errors(own) + (rng.normal(0, law.whole) if law.whole else 0.0) for _ in range(SEEDS)]

    base, own = models(ERROR), models(ERROR * better)
    at = np.arange(ROWS)
    rows = JudgedRows(at, at, y, np.ones(ROWS), Clusters.of(user, ad), {}, ROWS, ROWS, 0)
    expected = cross_entropy(base[0], truth) - cross_entropy(own[0], truth)
    fair = cross_entropy(base[0], y) - cross_entropy(own[0], y) - expected.mean()
    return Stream(rows, [cross_entropy(m, y) for m in base], [cross_entropy(m, y) for m in own], fair, ad)


def _zipf(n: int) -> np.ndarray:
    p = (np.arange(n) + 30.0) ** -0.8
    return np.asarray(p / p.sum())


def of_seeds(one: Stream, seeds: int) -> Estimate:
    """The gain of so many seeds on their common rows."""
    everything = np.ones(ROWS, bool)
    found = Comparison(one.base[:seeds], one.own[:seeds], Sample([one.rows] * seeds, [everything] * seeds, True)).gain()
    assert found is not None
    return found


class Found(NamedTuple):
    """Gain, low and high of every stream, rows and seeds both, of SEEDS seeds and of FEW, (streams, 3) each; the true
    gain. Of seeds that err afresh also those of one pair of models, all rows first, (streams, 1 + SEGMENTS, 3); those
    of SEEDS streams a comparison, (streams // SEEDS, 3); and whether each equal pair was stopped when watched."""

    many: np.ndarray
    few: np.ndarray
    truth: float
    alone: np.ndarray
    apart: np.ndarray
    stopped: np.ndarray


def judged(streams: int, law: Law, better: float) -> Found:
    many, few, alone, stopped, losses = [], [], [], [], np.zeros(2)
    for seed in range(streams):
        one = stream(np.random.default_rng(seed), law, better)
        losses += _sums(one)
        many.append(_reach(of_seeds(one, SEEDS)))
        few.append(_reach(of_seeds(one, FEW)))
        if law is AFRESH:
            masks = [np.ones(ROWS, bool), *(one.ad % SEGMENTS == k for k in range(SEGMENTS))]
            alone.append(
                [_reach(Comparison(one.base[:1], one.own[:1], Sample([one.rows], [m], True)).gain()) for m in masks]
            )
            watch = watched(Comparison(one.base[:1], [one.base[0] - one.fair], Sample([one.rows], masks[:1], True)))
            stopped.append(any(measure.metric == "watched/stopped_at" for measure in watch))
    values = np.array(alone)[:, 0, 0] if alone else np.empty(0)
    whole = len(values) // SEEDS * SEEDS
    apart = [_reach(mean_of_seeds(some)) for some in values[:whole].reshape(-1, SEEDS)]
    truth = float(100 * (1 - losses[1] / losses[0]))
    return Found(np.array(many), np.array(few), truth, np.array(alone), np.array(apart), np.array(stopped))


def _sums(one: Stream) -> np.ndarray:
    return np.array([sum(x.sum() for x in of) for of in (one.base, one.own)])


def _reach(estimate: Estimate | None) -> list[float]:
    assert estimate is not None
    summary = estimate.summary()
    return [summary[key] for key in ("value", "low", "high")]


def _told(intervals: np.ndarray, truth: float) -> tuple[str, str, str]:
    """How many there are, how many of 100 hold the truth, and their mean width."""
    held = (intervals[..., 1] <= truth) & (truth <= intervals[..., 2])
    width = float((intervals[..., 2] - intervals[..., 1]).mean())
    return f"{held.size:,}", f"{100 * held.mean():.1f}", f"{width:.2f}"


def better_for(gain_percent: float, law: Law) -> float:
    """The factor on the arm's errors by which its NE is lower by so many per cent, found on some streams."""
    low, high = 0.5, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        reached = sum(_sums(stream(np.random.default_rng(10_000 + seed), law, middle)) for seed in range(4))
        low, high = (middle, high) if 100 * (1 - reached[1] / reached[0]) > gain_percent else (low, middle)
    return (low + high) / 2


def intervals(streams: int) -> None:
    table = Table("comparison", "seeds err", "intervals of", "intervals", "of 100 hold the truth", "mean width, % NE")
    notes = []
    for law in LAWS:
        for better in (1.0, better_for(GAIN, law)):
            found = judged(streams, law, better)
            truth = 0.0 if better == 1 else found.truth
            name = "A/A" if better == 1 else f"planted {truth:.2f} %"
            if law is AFRESH:
                table.row(name, law.words, "rows, one pair of models", *_told(found.alone[:, 0], truth))
                if better == 1:
                    table.row("A/A, segments", law.words, "rows, one pair", *_told(found.alone[:, 1:], truth))
                    notes.append(f"watched at every block: {100 * found.stopped.mean():.1f} of 100 equal pairs stopped")
                table.row(name, law.words, f"{SEEDS} seeds, a stream each", *_told(found.apart, truth))
            for count, of in ((SEEDS, found.many), (FEW, found.few)):
                table.row(name, law.words, f"rows and {count} seeds", *_told(of, truth))
            if better < 1:
                notes.append(f"planted, {law.words}: {100 * (found.many[:, 1] > 0).mean():.0f} of 100 lie above 0")
    print("", *notes, sep="\n", end="\n\n")


def worth(logs: int, bandits: int) -> None:
    """What choices are worth, judged from generated logs, and from made-up ones."""
    table = Table("log", "logs", "estimate", "of 100 hold the truth", "mean width")
    for name, count, draw in (("generated", logs, LoggedChoices), ("made up", bandits, Bandit)):
        held: dict[str, list[tuple[bool, float]]] = {"ips": [], "snips": [], "dr": []}
        for seed in range(count):
            log = draw(seed)
            found = log.judged()._asdict()
            for way, kept in held.items():
                low, high = found[way].low, found[way].high
                kept.append((low <= log.value <= high, high - low))
        for way, kept in held.items() if count else ():
            inside, width = np.array(kept, dtype=np.float64).mean(0)
            table.row(name, count, way.upper(), f"{100 * inside:.1f}", f"{width:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--bandits", type=int, default=1000)
    given = parser.parse_args()
    print(f"{given.streams} streams of {ROWS:,} rows, {SEEDS} seeds of each arm\n")
    if given.streams:
        intervals(given.streams)
    worth(given.logs, given.bandits)

"""How often does looking again and again promote a model that is no better? python -m tests.benchmarks.peeking

Pairs of models on streams whose truth is known, watched after every block of 64 rows. Half of them are A/A: two models
of equal expected loss on their stream, which err differently. In the other half the candidate's NE is lower by 1 % of
the champion's. Both are watched in three ways:

    anytime      the e-process of exfm/metrics/sequential.py: promoted when E ≥ 1/0.05
    plain        promoted when the plain 95 % interval of the same blocks' mean lies above 0, looked at after each
    end          the same interval, looked at once, after the last row

The streams share users, ads and sessions as generated ones do: users and ads of Zipf's kind with tastes of their own,
sessions of some rows next to each other with a mood that neither model knows, and models that err by user, by ad and by
row: a user's rows are not independent of each other, nor are an ad's. `rows` is the control without any of it.

Minutes on one core; --pairs 50 gives a rough table in seconds.
"""

from __future__ import annotations

import argparse

import numpy as np

from tests.support.models.model_pairs import BLOCK, World, differences, watched
from tests.support.tables import Table

GAIN = 0.01


WORLDS = (
    World("rows", 0.05, False),
    World("shared", 0.05, True),
    World("shared", 0.02, True),
    World("shared", 0.2, True),
)


def table(world: World, times: int, rows: int, gain: float) -> list[tuple[float, float]]:
    """For each way of watching: the share of pairs ever promoted, and the median rows until then."""
    found = np.array([watched(differences(np.random.default_rng(seed), world, rows, gain)) for seed in range(times)])
    shares = (~np.isnan(found)).mean(0)
    medians = [float(np.nanmedian(way)) if share else float("nan") for way, share in zip(found.T, shares, strict=True)]
    return [(float(share), (block + 1) * BLOCK) for share, block in zip(shares, medians, strict=True)]


def main(times: int, rows: int) -> None:
    print(f"{times:,} pairs each, {rows:,} rows, looked at after every {BLOCK} rows\n")
    shown = Table("stream", "clicks", "planted", "anytime", "median rows", "plain", "median rows", "once, at the end")
    for world in WORLDS:
        for gain in (0.0, GAIN):
            anytime, plain, end = table(world, times, rows, gain)
            planted = f"{100 * gain:g} % NE" if gain else "nothing (A/A)"
            cells = [text for share, rows_ in (anytime, plain) for text in (f"{100 * share:.1f} %", f"{rows_:,.0f}")]
            shown.row(world.name, f"{100 * world.rate:g} %", planted, *cells, f"{100 * end[0]:.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=200_000)
    given = parser.parse_args()
    main(given.pairs, given.rows)

"""`python -m tests.simulation --histories N --seed S [--jobs J]`: plays N histories from seed S on.

`--replay SEED` plays one, with what every process did; `--shrink` makes it small first.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.campaign import Failure, campaign, smallest
from tests.simulation.drawing import draw
from tests.simulation.history import History
from tests.simulation.judge import verdict
from tests.simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", action="store_true", help="stop at the first failure, and do not make it small")
    parser.add_argument("--replay", type=int, metavar="SEED")
    parser.add_argument("--shrink", action="store_true", help="with --replay: make the history small first")
    asked = parser.parse_args()
    if asked.replay is not None:
        return replay(asked.replay, asked.shrink)
    failures, _ = campaign(asked.seed, asked.histories, asked.jobs, print)
    for failure in failures[:1]:
        print(f"\nseed {failure.seed}: {failure.words}\n")
        if asked.first:
            break
        show(smallest(failure))
        print(f"\nreplay: python -m tests.simulation --replay {failure.seed} --shrink")
    return 1 if failures else 0


def replay(seed: int, shrink: bool) -> int:
    history = draw(seed)
    words = show(history)
    if shrink and words is not None:
        print("\nmade small:\n")
        words = show(smallest(Failure(seed, words)))
    return 0 if words is None else 1


def show(history: History) -> str | None:
    """Play it and print it, with what the processes did at last."""
    world = World(history, trace=True)
    outcome = world.play()
    words = verdict(history.settings, outcome)
    print(history, *(world.scheduler.trace or [])[-60:], f"verdict: {words or 'right'}", sep="\n")
    return words


sys.exit(main())

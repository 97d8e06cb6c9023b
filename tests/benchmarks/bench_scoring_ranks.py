"""What a group of ranks that scores for augmentation holds and does, beside a replica.

    python -m tests.benchmarks.bench_scoring_ranks [--rows 4000000] [--ranks 1 2 4] [--seconds 5]

A teacher with one table of ROWS × 16 (and small ones) is saved once. Then 1 rank (a replica), 2, 4 … load it and score
blocks of 16,384 rows in batches of 4,096. Printed: table bytes in each process, its peak resident memory beyond what
it had with every library imported and before any table, and rows scored a second.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.support.ranks.scoring_ranks import (
    config_of,
    measure,
    save_snapshot,
)

MB = 1 << 20


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=4_000_000)
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    options.add_argument("--seconds", type=int, default=5)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_snapshot(config_of(asked.rows, 1), Path(folder))
        print(f"{'ranks':>5} {'tables in each, MB':>24} {'peak beyond libraries, MB':>28} {'rows/s':>10}")
        for ranks in asked.ranks:
            found = measure(asked.rows, ranks, Path(folder), asked.seconds)
            held = " ".join(f"{h / MB:.0f}" for h, _, _ in found)
            peak = " ".join(f"{p / MB:.0f}" for _, p, _ in found)
            print(f"{ranks:>5} {held:>24} {peak:>28} {found[0][2]:>10,.0f}", flush=True)


if __name__ == "__main__":
    main()

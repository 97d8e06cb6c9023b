"""Bytes of deltas over a Zipf stream against whole fp32 states, for every policy of baselines, width and bits.

    python -m tests.benchmarks.bench_deltas [--rows 100000] [--intervals 20]

Ids are drawn from Zipf's law with exponent 1.05, as many an interval as touch 31 % of the table's rows. Every byte of a
file is counted: ids, scales and biases, headers.

    bandwidth   bytes of as many whole fp32 states / bytes written
    capacity    bytes of a whole fp32 state / bytes that have to be there to restore, at the worst moment

A baseline is a whole state (Check-N-Run, arXiv 2010.08679):

    one_shot        one at first, then the rows that changed since it: two files restore
    consecutive     one at first, then the rows that changed since the delta before: all files restore
    intermittent    one-shot, and another one where the sizes so far say that this costs less
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from exfm.snapshots.changed import Policy, whole_due
from exfm.snapshots.delta import ChangedRows, Delta, write_delta
from exfm.snapshots.row_quantisation import Bits, dequantise_rows, quantise_rows

TOUCHED, EXPONENT = 0.31, 1.05
POLICIES: tuple[Policy, ...] = ("one_shot", "consecutive", "intermittent")
BITS: tuple[Bits, ...] = (8, 4, 3, 2)


def intervals(rows: int, count: int) -> list[np.ndarray]:
    """Rows touched in each interval, as marks (rows,)."""
    rng, p = np.random.default_rng(0), np.arange(1, rows + 1) ** -EXPONENT
    p /= p.sum()
    low, high = 1.0, 1e9  # draws that touch the share: 1 - (1 - p)^n, summed
    for _ in range(60):
        draws = (low * high) ** 0.5
        low, high = (draws, high) if -np.expm1(draws * np.log1p(-p)).sum() < TOUCHED * rows else (low, draws)
    return [rng.poisson(low * p) > 0 for _ in range(count)]


def size(marks: np.ndarray | None, table: torch.Tensor, bits: Bits | None, path: Path) -> int:
    """Bytes of the file of the marked rows, or of the whole table."""
    at = torch.arange(len(table)) if marks is None else torch.from_numpy(np.flatnonzero(marks))
    values = table[at] if bits is None else quantise_rows(table[at], bits)
    delta = Delta({}, {"table": values}) if marks is None else Delta({"table": ChangedRows(0, at, values)}, {})
    write_delta(path, delta, {})
    return path.stat().st_size


def costs(
    policy: Policy, bits: Bits | None, touched: list[np.ndarray], table: torch.Tensor, path: Path
) -> tuple[int, int]:
    """Bytes written, and the most that had to be there at once."""
    whole, written, most, sizes, since = size(None, table, bits, path), 0, 0, list[int](), np.zeros(len(table), bool)
    for n, marks in enumerate(touched):
        if n == 0 or whole_due(policy, sizes, whole):
            sizes, since, now = [], np.zeros(len(table), bool), whole
        else:
            since = marks if policy == "consecutive" else since | marks
            sizes.append(now := size(since, table, bits, path))
        written += now
        most = max(most, whole + (sum(sizes) if policy == "consecutive" else sum(sizes[-1:])))
    return written, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--intervals", type=int, default=20)
    asked = parser.parse_args()
    touched = intervals(asked.rows, asked.intervals)
    print(f"{np.mean(touched):.3f} of the rows touched an interval")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for width in (16, 64, 128):
            table = torch.randn(asked.rows, width, generator=torch.Generator().manual_seed(0)) * 0.1
            full = size(None, table, None, path)
            for fewer in (None, *BITS):
                for policy in POLICIES:
                    written, most = costs(policy, fewer, touched, table, path)
                    ratios = f"bandwidth {asked.intervals * full / written:5.2f}  capacity {full / most:5.2f}"
                    print(f"width {width:3}  {fewer or 32:2} bits  {policy:12}  {ratios}", flush=True)
            for bits in BITS:
                began = time.perf_counter()
                lost = (dequantise_rows(quantise_rows(table, bits), bits) - table).square().mean().sqrt() / table.std()
                took = (time.perf_counter() - began) / asked.rows
                print(
                    f"width {width:3}  {bits} bits: {lost:.4f} of a standard deviation lost, {1e6 * took:.1f} us a row"
                )


if __name__ == "__main__":
    main()

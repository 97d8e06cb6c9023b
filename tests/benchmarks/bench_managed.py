"""Ids that come and go, in fewer rows than there are ids. python -m tests.benchmarks.bench_managed --seeds 1 2 3

A million examples of one id each, whose label depends on it: 20,000 ids are alive at a time, and in every batch new
ones replace some, 116,000 in all. Each kind of table has 25,000 rows, those of its fallback counted; `full` has one for
every id. Each batch is judged before it is learned. Printed: NE of the second half, and the share of the gap from
`hash` to `full` that each kind closes. `no reset` hands rows on as they are: it says what the new beginning is worth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import Composed, Seen, tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.hashed import HashedTable
from exfm.embeddings.kinds.managed import RULES, Managed, ManagedTable
from exfm.embeddings.table import Begun, Table
from exfm.machine import set_threads
from exfm.metrics.classification import normalised_entropy

ALIVE, IDS, ROWS, BATCH, WIDTH = 20_000, 116_000, 25_000, 1_000, 8
SHARED = ROWS // 17


class WithoutReset(ManagedTable):
    """Rows are handed on as they are: what another id learned is the next one's beginning."""

    def learn(self, seen: Seen) -> list[Begun]:
        super().learn(seen)
        return []


def kinds() -> dict[str, Callable[[], Table | Composed]]:
    def managed(of: type[ManagedTable] = ManagedTable, **settings: object) -> Callable[[], Composed]:
        asked = Managed(kind="managed", rows=ROWS - SHARED, fallback_rows=SHARED, **settings)
        return lambda: of("ad", ("ad",), WIDTH, asked)

    return {
        "full": lambda: Table("ad", 2 * IDS, WIDTH, ("ad",)),
        "hash": lambda: HashedTable("ad", ("ad",), WIDTH, ROWS),
        **{f"managed, {rule}": managed(evict=rule) for rule in RULES},
        "managed, from the second sight on": managed(min_count=2),
        "managed, zero for misses": lambda: ManagedTable(
            "ad", ("ad",), WIDTH, Managed(kind="managed", rows=ROWS, fallback="zero")
        ),
        "managed, no reset": managed(of=WithoutReset),
    }


def stream(rows: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids (B,) and labels (B,) of a batch."""
    rng, steps = np.random.default_rng(seed), rows // BATCH
    effect, weight = rng.normal(0, 1.3, 2 * IDS), rng.pareto(1.5, 2 * IDS) + 0.2
    names = rng.permutation(2 * IDS)  # which number an id has tells nothing of when it came
    alive, following = np.arange(ALIVE), ALIVE
    for step in range(steps):
        until = ALIVE + (IDS - ALIVE) * step // steps
        alive[rng.choice(ALIVE, until - following, replace=False)] = np.arange(following, until)
        following = until
        p = weight[alive] / weight[alive].sum()
        own = alive[rng.choice(ALIVE, BATCH, p=p)]
        yield names[own], (rng.random(BATCH) < 1 / (1 + np.exp(1.0 - effect[own]))).astype(np.float32)


def learned(table: Table | Composed, rows: int, seed: int, lr: float) -> tuple[float, float]:
    """NE of the second half, and seconds."""
    held = tables_held([table], lambda own: FusedTables(own, lr=lr, eps=1e-8), lr=lr, eps=1e-8)
    held.draw(seed)
    z, y, bias, began = list[np.ndarray](), list[np.ndarray](), -1.0, time.perf_counter()
    lengths = torch.ones(BATCH, dtype=torch.int64)
    for ids, label in stream(rows, seed):
        sparse = KeyedJaggedTensor(["ad"], torch.from_numpy(ids), lengths=lengths)
        batch = SimpleNamespace(sparse=sparse, once=lambda what, make: make())
        lookup = held.lookup(held.send(batch))
        z.append(bias + lookup.pooled.sum(1).numpy())
        y.append(label)
        g = 1 / (1 + np.exp(-z[-1])) - label
        bias -= 0.02 * float(g.mean())
        held.learn(lookup, torch.from_numpy(g)[:, None].repeat(1, WIDTH))
    half = len(z) // 2
    took = time.perf_counter() - began
    return float(normalised_entropy(np.concatenate(z[half:]), np.concatenate(y[half:]))), took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    set_threads(1)
    found = {name: [learned(new(), args.rows, s, args.lr) for s in args.seeds] for name, new in kinds().items()}
    full, hashed = ([ne for ne, _ in found[name]] for name in ("full", "hash"))
    print(f"{args.rows:,} examples, seeds {args.seeds}, rate {args.lr}: NE of the second half, mean of the seeds\n")
    print("| table | NE | closes of the gap, by seed | seconds |\n|---|---|---|---|")
    for name, of in found.items():
        closed = [(h - ne) / (h - f) for (ne, _), h, f in zip(of, hashed, full, strict=True)]
        shares = ", ".join(f"{share:.0%}" for share in closed)
        print(f"| {name} | {np.mean([ne for ne, _ in of]):.4f} | {shares} | {np.mean([s for _, s in of]):.0f} |")
    print(f"\n`hash` loses {100 * (np.mean(hashed) / np.mean(full) - 1):.1f} % NE to `full`")


if __name__ == "__main__":
    main()

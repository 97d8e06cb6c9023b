"""Kinds of tables at equal bytes, and what a step of each costs.

    python -m tests.benchmarks.bench_kinds movielens_1m_stream.parquet

Every batch is predicted, and then learned: NE and AUC of the second half of the stream. Tables of more than 900 ids are
of the kind, the others full; bytes are of all tensors in training. Differences are paired by seed, with 95 % intervals
of Student's t. Without a file only the cost is measured: a step of eight tables of 200,000 ids, full and of a kind in
turn.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.registry import settings_of
from exfm.embeddings.kinds.registry import tables_of as kinds_of_tables
from exfm.embeddings.table import Tables
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.machine import set_threads
from exfm.metrics.classification import normalised_entropy
from exfm.metrics.ranking import auc
from tests.support.tables import Table as Printed

FEATURES = ("user_id", "item_id", "zip3", "genres")
WIDTH, BATCH, LR, EPS = 16, 512, 0.05, 1e-8
ROWS_OF_BYTES = 0.6  # slots of a managed table for each row of a full one of as many bytes, its map counted
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}


class Events(NamedTuple):
    """Ids of a batch, one of each feature."""

    sparse: KeyedJaggedTensor

    def once(self, what: Any, make: Callable[[], Any]) -> Any:
        return make()


def events(names: Sequence[str], ids_FB: Tensor) -> Events:
    lengths = torch.ones(ids_FB.numel(), dtype=torch.int64)
    return Events(KeyedJaggedTensor(list(names), ids_FB.reshape(-1), lengths=lengths))


def tables_of(sizes: dict[str, int], width: int, kinds: dict[str, dict[str, Any]], seed: int) -> Tables:
    """Tables of these settings; others are full."""
    features = FeatureSet(sparse=[SparseFeature(name=name, rows=rows) for name, rows in sizes.items()])
    made = kinds_of_tables(features, width, {name: settings_of(kind) for name, kind in kinds.items()})
    held = tables_held(made, lambda plain: FusedTables(plain, lr=LR, eps=EPS), lr=LR, eps=EPS)
    held.draw(seed)
    return held


class Model:
    """Two hidden layers on the embeddings of every feature; logistic loss, AdaGrad everywhere."""

    def __init__(self, tables: Tables, columns: int, names: Sequence[str], seed: int) -> None:
        torch.manual_seed(seed)
        self.tables, self.names = tables, names
        self.dense = nn.Sequential(nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        self.optimizer = torch.optim.Adagrad(self.dense.parameters(), lr=0.02)

    def step(self, ids_FB: Tensor, labels_B: Tensor) -> Tensor:
        """Logits (B,) from before the step."""
        lookup = self.tables.lookup(self.tables.send(events(self.names, ids_FB)))
        pooled = lookup.pooled.requires_grad_()
        logits = self.dense(pooled).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels_B)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        assert pooled.grad is not None
        self.tables.learn(lookup, pooled.grad)
        return logits.detach()


def stream(path: str) -> tuple[dict[str, int], Tensor, Tensor]:
    """Sizes of features, ids (F, n), labels (n,)."""
    table = pq.read_table(path, columns=[*FEATURES, "label"])
    codes = [
        pc.dictionary_encode(table[name]).combine_chunks().indices.to_numpy().astype(np.int64) for name in FEATURES
    ]
    sizes = {name: int(of.max()) + 1 for name, of in zip(FEATURES, codes, strict=True)}
    return sizes, torch.from_numpy(np.stack(codes)), torch.from_numpy(table["label"].to_numpy().astype(np.float32))


class Judged(NamedTuple):
    """NE and AUC of the second half of the stream."""

    ne: float
    auc: float


def judged(tables: Tables, ids: Tensor, labels: Tensor, seed: int) -> Judged:
    model, n = Model(tables, WIDTH * len(FEATURES), FEATURES, seed), len(labels)
    logits = [model.step(ids[:, at : at + BATCH], labels[at : at + BATCH]) for at in range(0, n, BATCH)]
    z, y = torch.cat(logits).numpy()[n // 2 :], labels.numpy()[n // 2 :]
    return Judged(normalised_entropy(z, y) or math.nan, auc(z, y) or math.nan)


def arms(sizes: dict[str, int]) -> dict[str, dict[str, dict[str, Any]]]:
    """Settings of the tables that are larger than 900 ids, by the arm's name."""

    def of_each(settings: Callable[[int], dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: settings(rows) for name, rows in sizes.items() if rows > 900}

    def managed(rows: int, by: int) -> dict[str, Any]:
        return {"kind": "managed", "rows": round(ROWS_OF_BYTES * rows / by), "fallback_rows": rows // by // 10}

    found = {"full": of_each(lambda n: {"kind": "full"})}
    found["narrow, width 4"] = of_each(lambda n: {"kind": "mixed", "width": 4})
    found["narrow, width 8"] = of_each(lambda n: {"kind": "mixed", "width": 8})
    for by in (4, 16):
        found[f"hash {by} x"] = of_each(lambda n, by=by: {"kind": "hash", "rows": n // by})
        for op in ("mult", "add"):
            found[f"qr {op} {by} x"] = of_each(lambda n, by=by, op=op: {"kind": "qr", "collisions": by, "op": op})
        found[f"managed {by} x"] = of_each(lambda n, by=by: managed(n, by))
        for rule in ("utility", "frequency", "random"):
            found[f"fiited {rule} 1/{by}"] = of_each(
                lambda n, by=by, rule=rule: {"kind": "fiited", "keep": 1 / by, "rule": rule}
            )
    return found


def quality(args: argparse.Namespace) -> None:
    sizes, ids, labels = stream(args.data)
    print({name: rows for name, rows in sizes.items()})
    printed = Printed("kind", "bytes", "of full", "NE", "AUC", "NE by seed")
    found: dict[str, np.ndarray] = {}
    full = 0
    for name, kinds in arms(sizes).items():
        if args.only and not any(name.startswith(only) for only in (*args.only, "full")):
            continue
        results, size = [], 0
        for seed in range(args.seeds):
            tables = tables_of(sizes, WIDTH, kinds, seed)
            size = tables.nbytes
            results.append(judged(tables, ids, labels, seed))
        full = full or size
        found[name] = np.array(results)
        ne, area = found[name].mean(0)
        by_seed = " ".join(f"{value:.4f}" for value in found[name][:, 0])
        printed.row(name, f"{size:,}", f"{size / full:.3f}", f"{ne:.4f}", f"{area:.4f}", by_seed)
    print()
    printed = Printed("difference, second half", "NE, % of full's", "95 %", "AUC", "95 %")
    for one, other in PAIRS:
        if {one, other} <= found.keys():
            off = found[one] - found[other]
            off[:, 0] *= 100 / found["full"][:, 0].mean()
            half = T_95.get(args.seeds, math.nan) * off.std(0, ddof=1) / len(off) ** 0.5
            (ne, area), (of_ne, of_area) = off.mean(0), half
            printed.row(f"{one} − {other}", f"{ne:+.2f}", f"± {of_ne:.2f}", f"{area:+.4f}", f"± {of_area:.4f}")


PAIRS = [
    *((f"{kind} 4 x", other) for kind in ("qr mult", "qr add", "managed") for other in ("hash 4 x", "narrow, width 4")),
    *((f"{kind} 16 x", "hash 16 x") for kind in ("qr mult", "qr add", "managed")),
    *((f"fiited utility 1/{by}", f"fiited {rule} 1/{by}") for by in (4, 16) for rule in ("frequency", "random")),
    ("fiited utility 1/4", "narrow, width 8"),
    ("fiited utility 1/16", "narrow, width 8"),
    ("narrow, width 4", "full"),
]


def cost(args: argparse.Namespace) -> None:
    """Steps of full tables and of each kind in turn, tables alone and with the dense part."""
    random = np.random.default_rng(0)
    sizes = {f"f{n}": args.rows for n in range(8)}
    kinds = {
        "hash": {"kind": "hash", "rows": args.rows // 4},
        "qr": {"kind": "qr"},
        "qr add": {"kind": "qr", "op": "add"},
        "mixed": {"kind": "mixed", "width": args.width // 4},
        "fiited": {"kind": "fiited", "keep": 0.25},
        "managed": {"kind": "managed", "rows": args.rows // 4},
    }
    batches = [
        torch.from_numpy(np.minimum(random.zipf(1.2, (8, 2048)) * 7919 % args.rows, args.rows - 1))
        for _ in range(args.steps)
    ]
    printed = Printed("kind", "tables only, full ms", "kind ms", "ratio", "with a dense part, ratio")
    for name, kind in kinds.items():
        both = ({}, dict.fromkeys(sizes, kind))
        models = [Model(tables_of(sizes, args.width, own, 0), 8 * args.width, list(sizes), 0) for own in both]
        spent = np.zeros((2, 2, args.steps))  # tables only or all; full or the kind
        for n, ids in enumerate(batches):
            for which, model in enumerate(models):
                start = time.perf_counter()
                lookup = model.tables.lookup(model.tables.send(events(model.names, ids)))
                model.tables.learn(lookup, torch.full_like(lookup.pooled, 1e-3))
                spent[0, which, n] = time.perf_counter() - start
                start = time.perf_counter()
                model.step(ids, torch.zeros(ids.shape[1]))
                spent[1, which, n] = time.perf_counter() - start
        only, whole = np.median(spent[..., args.steps // 2 :], axis=2) * 1e3
        printed.row(name, f"{only[0]:.2f}", f"{only[1]:.2f}", f"{only[1] / only[0]:.2f}", f"{whole[1] / whole[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="the MovieLens stream, a Parquet file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="arms whose names begin so, and `full`")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    set_threads(1)
    if args.data:
        quality(args)
    else:
        cost(args)


if __name__ == "__main__":
    main()

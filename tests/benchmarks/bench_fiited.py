"""What keeps a chunk, and what pruning costs: python -m tests.benchmarks.bench_fiited movielens_1m_stream.parquet

Every batch is predicted, and then learned: AUC of each half of the stream by rule and share kept, all four id features
of kind `fiited`, beside full tables and narrow ones of as many bytes. Differences are paired by seed, with 95 %
intervals of Student's t. Without a file only the cost is measured: milliseconds of a step of eight tables of 200,000
ids, full and pruned in turn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import Composed, tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.fiited import Fiited, FiitedTable
from exfm.embeddings.table import Table, Tables
from exfm.machine import set_threads
from exfm.metrics.ranking import auc
from tests.support.tables import Table as Printed

FEATURES = ("user_id", "item_id", "zip3", "genres")
WIDTH, BATCH, LR, EPS = 16, 512, 0.05, 1e-8
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}


class Events(NamedTuple):
    """Ids of a batch, one of each feature."""

    sparse: KeyedJaggedTensor

    def once(self, what: Any, make: Callable[[], Any]) -> Any:
        return make()


def events(names: Sequence[str], ids_FB: Tensor) -> Events:
    lengths = torch.ones(ids_FB.numel(), dtype=torch.int64)
    return Events(KeyedJaggedTensor(list(names), ids_FB.reshape(-1), lengths=lengths))


def tables_of(sizes: dict[str, int], width: int, settings: Fiited | None, seed: int) -> Tables:
    """Full tables, or such as `settings` say."""
    made: list[Table | Composed] = [
        FiitedTable(name, (name,), width, settings, rows) if settings else Table(name, rows, width, (name,))
        for name, rows in sizes.items()
    ]
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


def halves(tables: Tables, width: int, ids: Tensor, labels: Tensor, seed: int) -> tuple[float, float]:
    """AUC of either half."""
    model, n = Model(tables, width * len(FEATURES), FEATURES, seed), len(labels)
    logits = torch.cat(
        [model.step(ids[:, at : at + BATCH], labels[at : at + BATCH]) for at in range(0, n, BATCH)]
    ).numpy()
    truth, half = labels.numpy(), n // 2
    return auc(logits[:half], truth[:half]) or 0.0, auc(logits[half:], truth[half:]) or 0.0


def arms(args: argparse.Namespace) -> Iterator[tuple[str, int, Fiited | None]]:
    """Names, widths and settings."""
    yield "full", WIDTH, None
    for keep, narrow in ((1 / 4, 8), (1 / 16, 4)):
        for rule in ("utility", "frequency", "random"):
            own = {"every": args.every, "decay": args.decay, "headroom": args.headroom}
            yield f"{rule} {keep:g}", WIDTH, Fiited(kind="fiited", keep=keep, rule=rule, **own)
        yield f"width {narrow}", narrow, None


def quality(args: argparse.Namespace) -> None:
    sizes, ids, labels = stream(args.data)
    printed, second = (
        Printed("arm", "bytes", "AUC first half", "second half", "second, by seed"),
        dict[str, np.ndarray](),
    )
    for name, width, settings in arms(args):
        if args.only and not any(name.startswith(only) for only in (*args.only, "full")):
            continue
        found, size = [], 0
        for seed in range(args.seeds):
            tables = tables_of(sizes, width, settings, seed)
            size = tables.nbytes
            found.append(halves(tables, width, ids, labels, seed))
        first, second[name] = np.array(found).T
        by_seed = " ".join(f"{value:.4f}" for value in second[name])
        printed.row(name, f"{size:,}", f"{first.mean():.4f}", f"{second[name].mean():.4f}", by_seed)
    print()
    printed = Printed("difference of AUC, second half", "mean", "95 %")
    for keep in ("0.25", "0.0625"):
        for other in (f"frequency {keep}", f"random {keep}", "width 8" if keep == "0.25" else "width 4", "full"):
            if {f"utility {keep}", other} <= second.keys():
                off = second[f"utility {keep}"] - second[other]
                half = T_95[args.seeds] * off.std(ddof=1) / len(off) ** 0.5 if args.seeds in T_95 else float("nan")
                printed.row(f"utility {keep} − {other}", f"{off.mean():+.4f}", f"± {half:.4f}")


def cost(args: argparse.Namespace) -> None:
    """Steps of full tables and pruned ones in turn, after the first prunings."""
    random = np.random.default_rng(0)
    printed = Printed(
        "width", "tables only, full ms", "pruned ms", "ratio", "with a dense part, ratio", "new chunks a step"
    )
    for width in args.widths:
        sizes = {f"f{n}": 200_000 for n in range(8)}
        settings = Fiited(kind="fiited", keep=0.25)
        models = [Model(tables_of(sizes, width, own, 0), 8 * width, list(sizes), 0) for own in (None, settings)]
        batches = [
            torch.from_numpy(np.minimum(random.zipf(1.2, (8, 2048)) * 7919 % 200_000, 199_999))
            for _ in range(args.steps)
        ]
        spent = np.zeros((2, 2, args.steps))  # tables only or all; full or pruned
        begun = np.zeros(args.steps)
        for n, ids in enumerate(batches):
            for which, model in enumerate(models):
                start = time.perf_counter()
                lookup = model.tables.lookup(model.tables.send(events(model.names, ids)))
                model.tables.learn(lookup, torch.full_like(lookup.pooled, 1e-3))
                spent[0, which, n] = time.perf_counter() - start
                start = time.perf_counter()
                model.step(ids, torch.zeros(ids.shape[1]))
                spent[1, which, n] = time.perf_counter() - start
            kinds = [kind for kind in models[1].tables.kinds if isinstance(kind, FiitedTable)]
            begun[n] = sum(kind.live for kind in kinds)
        half = args.steps // 2
        only, whole = np.median(spent[..., half:], axis=2) * 1e3
        mean = spent[0, 1, half:].mean() * 1e3
        printed.row(
            width,
            f"{only[0]:.2f}",
            f"{only[1]:.2f} (mean {mean:.2f})",
            f"{only[1] / only[0]:.2f}",
            f"{whole[1] / whole[0]:.2f}",
            f"{np.diff(begun[half:]).mean():.0f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="the MovieLens stream, a Parquet file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="arms whose names begin so, and `full`")
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--decay", type=float, default=0.9)
    parser.add_argument("--headroom", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--widths", type=int, nargs="*", default=[16, 64, 128])
    args = parser.parse_args()
    set_threads(1)
    if args.data:
        quality(args)
    else:
        cost(args)


if __name__ == "__main__":
    main()

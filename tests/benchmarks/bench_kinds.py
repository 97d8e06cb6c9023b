"""Kinds of tables at equal bytes, and what a step of each costs.

    python -m tests.benchmarks.bench_kinds movielens_1m_stream.parquet

Every batch is predicted, and then learned: NE and AUC of the second half of the stream. Tables of more than 900 ids are
of the kind, the others full; bytes are of all tensors in training. Differences are paired by seed, with 95 % intervals
of Student's t. Without a file only the cost is measured: a step of eight tables of 200,000 ids, and of the demo's
student and teacher as a whole, full and of every kind by turns, in core time.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
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
from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.machine import set_threads
from exfm.metrics.classification import normalised_entropy
from exfm.metrics.ranking import auc
from exfm.models.student import Student
from exfm.models.teacher import Teacher
from pipelines.core.config.settings import Config, load
from tests.support.places import CONFIGS
from tests.support.tables import Table as Printed

FEATURES = ("user_id", "item_id", "zip3", "genres")
WIDTH, BATCH, LR, EPS = 16, 512, 0.05, 1e-8
ROWS_OF_BYTES = 0.6  # slots of a managed table for each row of a full one of as many bytes, its map counted
BLOCKS = {
    "blocks 16/8/4 at 5/20/75 %": [{"share": 0.05, "width": 16}, {"share": 0.2, "width": 8}],
    "blocks 16/4 at 10/90 %": [{"share": 0.1, "width": 16}],
}
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
    for name, blocks in BLOCKS.items():
        found[name] = of_each(lambda n, blocks=blocks: {"kind": "mixed", "width": 4, "blocks": blocks})
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
    *((blocks, other) for blocks in BLOCKS for other in ("narrow, width 8", "narrow, width 4")),
    ("narrow, width 4", "full"),
]


def kinds_of_rows(rows: int, width: int) -> dict[str, dict[str, Any]]:
    """Settings of each kind, at about a quarter of the rows."""
    return {
        "hash": {"kind": "hash", "rows": rows // 4},
        "qr": {"kind": "qr"},
        "qr add": {"kind": "qr", "op": "add"},
        "mixed": {"kind": "mixed", "width": max(4, width // 4)},
        "mixed in blocks": {"kind": "mixed", "width": max(4, width // 4), "blocks": [{"share": 0.1, "width": width}]},
        "fiited": {"kind": "fiited", "keep": 0.25, "chunks": width // max(4, width // 4)},
        "fiited, all kept": {"kind": "fiited", "keep": 1, "chunks": width // max(4, width // 4)},
        "managed": {"kind": "managed", "rows": rows // 4},
    }


def by_turns(steps: Mapping[str, Callable[[int], object]], count: int) -> dict[str, float]:
    """Milliseconds of core time of a step of each, of `count` of which the second half counts: medians. All take turns,
    step by step."""
    spent = {name: np.zeros(count) for name in steps}
    for n in range(count):
        for name, step in steps.items():
            start = time.thread_time()
            step(n)
            spent[name][n] = time.thread_time() - start
    return {name: float(np.median(of[count // 2 :])) * 1e3 for name, of in spent.items()}


def print_ratios(what: str, took: Mapping[str, float], printed: Printed) -> None:
    printed.row(what, f"{took['full']:.2f}", *(f"{took[name] / took['full']:.2f}" for name in took if name != "full"))


def tables_alone(args: argparse.Namespace, width: int) -> dict[str, float]:
    """A step of eight tables."""
    random = np.random.default_rng(0)
    sizes = {f"f{n}": args.rows for n in range(8)}
    ids = [
        torch.from_numpy(np.minimum(random.zipf(1.2, (8, args.batch)) * 7919 % args.rows, args.rows - 1))
        for _ in range(args.steps)
    ]

    def step_of(kind: dict[str, Any] | None) -> Callable[[int], object]:
        tables = tables_of(sizes, width, {} if kind is None else dict.fromkeys(sizes, kind), 0)

        def step(n: int) -> None:
            lookup = tables.lookup(tables.send(events(list(sizes), ids[n])))
            tables.learn(lookup, torch.full_like(lookup.pooled, 1e-3))

        return step

    kinds = {"full": None, **kinds_of_rows(args.rows, width)}
    return by_turns({name: step_of(kind) for name, kind in kinds.items()}, args.steps)


def demo_batches(config: Config, features: FeatureSet, tasks: Sequence[str], args: argparse.Namespace) -> list[Batch]:
    """Rows of the demo's columns, with ids that are drawn as those of impressions are: few of them often."""
    rng, build, B = np.random.default_rng(0), BatchBuilder(features, tasks), 512
    bounded = {of.name: of.rows for of in features.tabled if of.transform == "index"}
    needed = [field for field in config.rows.augmented if field.name in features.needs_columns()]

    def ids(name: str, count: int) -> np.ndarray:
        return rng.zipf(1.3, count) % bounded.get(name, 20_000)

    def column(field: pa.Field) -> pa.Array:
        if pa.types.is_list(field.type):
            return pa.array(ids(field.name, 3 * B).reshape(B, 3).tolist(), field.type)
        if pa.types.is_integer(field.type):
            return pa.array(ids(field.name, B)).cast(field.type)
        if pa.types.is_floating(field.type):
            return pa.array(rng.random(B).astype(np.float32))
        return pa.array(["feed"] * B)

    found = []
    for _ in range(args.steps):
        columns = {field.name: column(field) for field in needed}
        for task in tasks:
            columns[f"label_{task}"] = pa.array(rng.integers(0, 2, B).astype(np.int8))
            columns[f"teacher_logit_{task}"] = pa.array(rng.normal(size=B).astype(np.float32))
        found.append(build(pa.table(columns)))
    return found


def whole_models(args: argparse.Namespace, width: int) -> dict[str, dict[str, float]]:
    """A whole step of the demo's first student and of its teacher, of this width; tables of more than 900 ids are of
    the kind."""
    config = load(str(CONFIGS / "demo.yaml"))
    student, found = config.students[0], {}
    roles: dict[str, tuple[Any, ...]] = {
        "student": (Student, student.model, config.student_features(student), config.student_tasks(student)),
        "teacher": (Teacher, config.teacher.model, config.teacher_features, config.tasks),
    }
    for role, (of, model, features, tasks) in roles.items():
        learned = demo_batches(config, features, tasks, args)

        def step_of(name: str, of=of, model=model, features=features, tasks=tasks, learned=learned) -> Any:
            kinds = {
                table.name: settings_of(kinds_of_rows(table.rows, width)[name])
                for table in features.tabled
                if table.rows > 900 and name != "full"
            }
            made = of(model.model_copy(update={"width": width, "embeddings": kinds}), features, tasks, 1)
            return lambda n: made.train_step(learned[n])

        names = ["full", *kinds_of_rows(1000, width)]
        found[role] = by_turns({name: step_of(name) for name in names}, args.steps)
    return found


def cost(args: argparse.Namespace) -> None:
    """Steps of full tables and of each kind, by turns: tables alone, and the demo's models as a whole."""
    printed = Printed("a step", "full, ms", *(f"{name}, × full" for name in kinds_of_rows(1000, 16)))
    for width in args.widths:
        print_ratios(f"tables alone, width {width}", tables_alone(args, width), printed)
        for role, took in whole_models(args, width).items():
            print_ratios(f"the demo's {role}, width {width}", took, printed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="the MovieLens stream, a Parquet file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="arms whose names begin so, and `full`")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 64])
    args = parser.parse_args()
    set_threads(1)
    if args.data:
        quality(args)
    else:
        cost(args)


if __name__ == "__main__":
    main()

"""Kinds of tables at equal bytes, and what a step of each costs.

    python -m tests.benchmarks.bench_kinds movielens_1m_stream.parquet
    python -m tests.benchmarks.bench_kinds generated --impressions 600000 --width 128 --kinds fiited --out found.jsonl

Every batch is predicted, and then learned: NE and AUC of the second half of the stream. Tables of more than 900 ids are
of the kind, the others full; bytes are of all tensors in training, and `resident` what a process grew by when it made
the tables and drew their weights. `generated` is the stream of configs/demo.yaml: ids and crosses of ids that its
teacher looks up, numbered in the order they come, so that a full table has no row too many; clicks within an hour.
Differences are paired by seed of the weights, with 95 % intervals of Student's t: of every arm against full and against
the widest uniform narrow table of as many bytes at most. `--out` keeps what was measured, a line of JSON for each arm
and seed; the same command goes on from there.

Without a stream only the cost is measured: a step of eight tables of 200,000 ids, and of the demo's student and teacher
as a whole, full and of every kind by turns, in core time.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import multiprocessing
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import Composed, plain, tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.registry import settings_of
from exfm.embeddings.kinds.registry import tables_of as kinds_of_tables
from exfm.embeddings.table import Tables
from exfm.errors import ConfigError
from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.machine import set_threads
from exfm.metrics.classification import normalised_entropy
from exfm.metrics.ranking import auc
from exfm.models.student import Student
from exfm.models.teacher import Teacher
from pipelines.core.config.settings import Config, load
from streaming.sources.synthetic.stream import GeneratedStream
from streaming.sources.synthetic.world_config import GeneratorConfig
from tests.support.places import CONFIGS
from tests.support.tables import Table as Printed

MOVIELENS = ("user_id", "item_id", "zip3", "genres")
BATCH, LR, EPS = 512, 0.05, 1e-8
FEW = 900  # ids of a table that stays full
CLICKED_MS = 3_600_000
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
Kinds = dict[str, dict[str, Any]]


class Events(NamedTuple):
    """Ids of a batch, one of each feature."""

    sparse: KeyedJaggedTensor

    def once(self, what: Any, make: Callable[[], Any]) -> Any:
        return make()


def events(names: Sequence[str], ids_FB: Tensor) -> Events:
    lengths = torch.ones(ids_FB.numel(), dtype=torch.int64)
    return Events(KeyedJaggedTensor(list(names), ids_FB.reshape(-1), lengths=lengths))


def tables_of(sizes: dict[str, int], width: int, kinds: Kinds, seed: int) -> Tables:
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


class Stream(NamedTuple):
    """Ids of a stream's features, and its labels."""

    sizes: dict[str, int]  # distinct ids of each feature
    ids: Tensor  # (F, n) int64
    labels: Tensor  # (n,) float32


def movielens(path: str) -> Stream:
    table = pq.read_table(path, columns=[*MOVIELENS, "label"])
    return numbered({name: table[name] for name in MOVIELENS}, table["label"])


def generated(impressions: int) -> Stream:
    """The stream of configs/demo.yaml, without its faults; ids that its teacher looks up, but for lists."""
    config = load(str(CONFIGS / "demo.yaml"))
    faults = {"lost_rate": 0.0, "duplicate_rate": 0.0, "malformed_rate": 0.0}
    own = {name: getattr(config.source, name) for name in GeneratorConfig.model_fields}
    chunks = list(GeneratedStream(GeneratorConfig(**own | faults | {"impressions": impressions}), WINDOWS_S).chunks())
    table = pa.Table.from_batches([chunk.impressions for chunk in chunks])
    clicked = pa.chunked_array([chunk.truth["click_delay_ms"] for chunk in chunks])
    columns: dict[str, pa.ChunkedArray] = {}
    for feature in config.teacher_features.sparse:
        of = [table[name].cast(pa.string()) for name in feature.columns or (feature.name,)]
        columns[feature.name] = of[0] if len(of) == 1 else pc.binary_join_element_wise(*of, "|")
    return numbered(columns, pc.fill_null(pc.less_equal(clicked, CLICKED_MS), False).cast(pa.int8()))


WINDOWS_S = {"ctr": CLICKED_MS / 1000, "cvr": 21600.0}


def numbered(columns: Mapping[str, pa.ChunkedArray], labels: pa.ChunkedArray) -> Stream:
    """Ids as numbers, in the order that they come."""
    codes = [pc.dictionary_encode(of).combine_chunks().indices.to_numpy().astype(np.int64) for of in columns.values()]
    sizes = {name: int(of.max()) + 1 for name, of in zip(columns, codes, strict=True)}
    return Stream(sizes, torch.from_numpy(np.stack(codes)), torch.from_numpy(labels.to_numpy().astype(np.float32)))


class Judged(NamedTuple):
    """An arm under one seed: NE of the first half of the stream, NE and AUC of the second."""

    ne_first: float
    ne: float
    auc: float
    seconds: float


def judged(of: Stream, width: int, kinds: Kinds, seed: int) -> Judged:
    tables, began = tables_of(of.sizes, width, kinds, seed), time.perf_counter()
    model, n = Model(tables, width * len(of.sizes), list(of.sizes), seed), len(of.labels)
    logits = [model.step(of.ids[:, at : at + BATCH], of.labels[at : at + BATCH]) for at in range(0, n, BATCH)]
    z, y, half = torch.cat(logits).numpy(), of.labels.numpy(), n // 2
    nes = [normalised_entropy(z[part], y[part]) or math.nan for part in (slice(half), slice(half, n))]
    return Judged(*nes, auc(z[half:], y[half:]) or math.nan, time.perf_counter() - began)


def bytes_of(rows: int, width: int, settings: Mapping[str, Any]) -> int:
    """Bytes in training of a table of so many ids, with row-wise accumulators. Raises ConfigError where there is
    none."""
    with torch.device("meta"):
        table = settings_of(settings).table(SparseFeature(name="any", rows=rows), width)
    state = sum(t.nbytes for t in table.tensors().values()) if isinstance(table, Composed) else 0
    return state + sum(4 * own.rows * (own.width + 1) for own in plain(table))


def resident(sizes: dict[str, int], width: int, kinds: Kinds) -> int:
    """Bytes that a process grows by when it makes the tables."""
    fork = multiprocessing.get_context("fork")
    told, tells = fork.Pipe(duplex=False)
    child = fork.Process(target=_tell_growth, args=(tells, sizes, width, kinds))
    child.start()
    tells.close()
    found = told.recv()  # EOFError where the child died
    child.join()
    return int(found)


def _tell_growth(tells: Any, sizes: dict[str, int], width: int, kinds: Kinds) -> None:
    tables_of(sizes, width, kinds, 0)  # what is loaded on first use
    before = _resident_bytes()
    held = tables_of(sizes, width, kinds, 0)
    tells.send(_resident_bytes() - before if held.nbytes else 0)


def _resident_bytes() -> int:
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def arms(sizes: dict[str, int], width: int) -> dict[str, Kinds]:
    """Settings of the tables that are not small, by the arm's name. An arm that no table can have is left out."""
    found: dict[str, Kinds] = {}

    def add(name: str, settings: Callable[[int], dict[str, Any] | None]) -> None:
        of_each = {table: settings(rows) for table, rows in sizes.items() if rows > FEW}
        if None in of_each.values():
            print(f"{name}: no table has so few bytes")
        else:
            found[name] = of_each  # type: ignore[assignment]

    add("full", lambda n: {"kind": "full"})
    for by in (4, 16):
        add(f"hash {by} x", lambda n, by=by: {"kind": "hash", "rows": n // by})
        for op in ("mult", "add"):
            add(f"qr {op} {by} x", lambda n, by=by, op=op: {"kind": "qr", "collisions": by, "op": op})
        add(f"managed {by} x", lambda n, by=by: managed(n, width, full_bytes(n, width) // by))
        add(f"fiited {by} x", lambda n, by=by: fiited(n, width, full_bytes(n, width) // by))
        for rule in ("utility", "frequency", "random"):
            add(f"fiited {rule} 1/{by}", lambda n, by=by, rule=rule: {"kind": "fiited", "keep": 1 / by, "rule": rule})
    for chunks in (1, 2, 4, 8):
        within = {"chunks": chunks}
        if width % (4 * chunks) == 0:
            name = f"fiited .35, {chunks} chunks"
            add(name, lambda n, own=within: fiited(n, width, int(0.35 * full_bytes(n, width)), [own]))
    for every, decay, headroom in (
        (10, 0.97, 0.1),
        (160, 0.7, 0.1),
        (40, 0.98, 0.1),
        (40, 0.9, 0.25),
        (10, 0.99, 0.05),
    ):
        variant = {"chunks": 4, "every": every, "decay": decay, "headroom": headroom}
        add(
            f"fiited .35, 4 chunks, every {every}, decay {decay}, headroom {headroom}",
            lambda n, own=variant: fiited(n, width, int(0.35 * full_bytes(n, width)), [own]),
        )
    if width >= 16:
        wide, middle, base = width, width // 2, width // 4
        blocks = [{"share": 0.05, "width": wide}, {"share": 0.2, "width": middle}]
        add(
            f"blocks {wide}/{middle}/{base} at 5/20/75 %",
            lambda n: {"kind": "mixed", "width": base, "blocks": blocks},
        )
        add(
            f"blocks {wide}/{base} at 10/90 %",
            lambda n: {"kind": "mixed", "width": base, "blocks": [{"share": 0.1, "width": wide}]},
        )
    sums = {name: arm_bytes(sizes, width, kinds) for name, kinds in found.items()}
    widths = {width // 4, width // 2} | {d for name in sums if (d := narrow_within(sizes, width, sums[name]))}
    for d in sorted(widths - {width}):
        add(f"narrow, width {d}", lambda n, d=d: {"kind": "mixed", "width": d})
    return found


def full_bytes(rows: int, width: int) -> int:
    return 4 * rows * (width + 1)


def arm_bytes(sizes: Mapping[str, int], width: int, kinds: Kinds) -> int:
    return sum(bytes_of(rows, width, kinds.get(name, {"kind": "full"})) for name, rows in sizes.items())


def narrow_within(sizes: Mapping[str, int], width: int, most: int) -> int | None:
    """The widest uniform narrow tables within so many bytes; None where even 4 columns are too many."""

    def total(d: int) -> int:
        narrow = {name: {"kind": "mixed", "width": d} for name, rows in sizes.items() if rows > FEW}
        return arm_bytes(sizes, width, narrow)

    fitting = [d for d in range(4, width, 4) if total(d) <= most]
    return fitting[-1] if fitting else None


def managed(rows: int, width: int, most: int) -> dict[str, Any] | None:
    """As many slots as so many bytes hold, with a tenth of rows to fall back on."""

    def settings(slots: int) -> dict[str, Any]:
        return {"kind": "managed", "rows": slots, "fallback_rows": max(1, slots // 10)}

    slots = bisect_right(range(1, rows + 1), most, key=lambda slots: bytes_of(rows, width, settings(slots)))
    return settings(slots) if slots else None


def fiited(
    rows: int, width: int, most: int, ways: Sequence[dict[str, Any]] = ({"chunks": 4}, {"chunks": 2}, {"chunks": 1})
) -> dict[str, Any] | None:
    """Chunks within so many bytes: the first way that there is."""
    for way in ways:
        settings = {"kind": "fiited", "budget_bytes": most, **way}
        try:
            bytes_of(rows, width, settings)
        except ConfigError:
            continue
        return settings
    return None


class Found:
    """What was measured, by arm and seed; kept in a file, where there is one."""

    def __init__(self, out: str | None, **of: Any) -> None:
        self._file, self._of = None if out is None else Path(out), of
        lines = self._file.read_text().splitlines() if self._file and self._file.exists() else []
        read = [json.loads(line) for line in lines if line.endswith("}")]  # the last may be half a line
        self._read = {self._key(each): each for each in read}

    def measure(self, arm: str, kinds: Kinds, seed: int, make: Callable[[], Judged]) -> Judged:
        asked = {**self._of, "arm": arm, "seed": seed, "settings": kinds}
        kept = self._read.get(self._key(asked))
        if kept is None:
            kept = {**asked, **make()._asdict()}
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(json.dumps(kept) + "\n")
        return Judged(*(kept[name] for name in Judged._fields))

    def _key(self, of: Mapping[str, Any]) -> str:
        return json.dumps({name: of.get(name) for name in (*self._of, "arm", "seed", "settings")}, sort_keys=True)


def quality(args: argparse.Namespace, width: int) -> None:
    of = generated(args.impressions) if args.data == "generated" else movielens(args.data)
    print(f"\nwidth {width}, {len(of.labels):,} rows, {of.labels.mean():.4f} of them 1; distinct ids: {of.sizes}")
    kept = Found(args.out, data=Path(args.data).name, rows=len(of.labels), width=width)
    printed = Printed("kind", "bytes", "of full", "resident", "NE, first half", "NE", "AUC", "NE by seed", "s")
    found: dict[str, np.ndarray] = {}
    made = arms(of.sizes, width)
    sizes = {name: arm_bytes(of.sizes, width, kinds) for name, kinds in made.items()}
    full = sizes["full"]
    for name, kinds in made.items():
        if args.kinds and not any(name.startswith(own) for own in (*args.kinds, "full", "narrow")):
            continue
        results = [
            kept.measure(name, kinds, seed, lambda kinds=kinds, seed=seed: judged(of, width, kinds, seed))
            for seed in args.seeds
        ]
        grown = resident(of.sizes, width, kinds)
        found[name] = np.array([(each.ne_first, each.ne, each.auc) for each in results])
        first, ne, area = found[name].mean(0)
        by_seed = " ".join(f"{each.ne:.4f}" for each in results)
        seconds = f"{np.mean([each.seconds for each in results]):.0f}"
        cells = (f"{sizes[name] / full:.3f}", f"{grown:,}", f"{first:.4f}", f"{ne:.4f}", f"{area:.4f}", by_seed)
        printed.row(name, f"{sizes[name]:,}", *cells, seconds)
    print()
    printed = Printed("difference", "NE, first half, % of full's", "95 %", "NE, second half", "95 %", "AUC", "95 %")
    for one, other in pairs(list(found), sizes):
        off = found[one] - found[other]
        off[:, :2] *= 100 / found["full"][:, :2].mean(0)
        half = T_95.get(len(off), math.nan) * off.std(0, ddof=1) / len(off) ** 0.5 if len(off) > 1 else [math.nan] * 3
        cells = zip(off.mean(0), half, ("+.2f", "+.2f", "+.4f"), strict=True)
        printed.row(f"{one} − {other}", *(c for v, h, f in cells for c in (f"{v:{f}}", f"± {h:{f[1:]}}")))


def pairs(names: Sequence[str], sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    """Arms to compare: each with full and with the widest narrow one of no more bytes; what has a better rule, and a
    simpler kind of as many rows."""
    narrow = sorted((name for name in names if name.startswith("narrow")), key=sizes.__getitem__)
    asked = list[tuple[str, str]]()
    for name in names:
        if name == "full":
            continue
        asked.append((name, "full"))
        if name not in narrow and (less := [of for of in narrow if sizes[of] <= sizes[name]]):
            asked.append((name, less[-1]))
    for by in (4, 16):
        asked += [(f"{kind} {by} x", f"hash {by} x") for kind in ("qr mult", "qr add", "managed", "fiited")]
        asked += [(f"fiited utility 1/{by}", f"fiited {rule} 1/{by}") for rule in ("frequency", "random")]
    return [pair for pair in asked if set(pair) <= set(names)]


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
    for width in args.width or [16, 64]:
        print_ratios(f"tables alone, width {width}", tables_alone(args, width), printed)
        for role, took in whole_models(args, width).items():
            print_ratios(f"the demo's {role}, width {width}", took, printed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="`generated`, or the MovieLens stream, a Parquet file")
    parser.add_argument("--impressions", type=int, default=600_000, help="of the generated stream")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="*", help="arms whose names begin so, `full` and `narrow`")
    parser.add_argument("--width", type=int, nargs="+", help="of the model: 16, or 16 and 64 without a stream")
    parser.add_argument("--out", help="a file that keeps what was measured")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=2048)
    args = parser.parse_args()
    set_threads(1)
    if args.data:
        for width in args.width or [16]:
            quality(args, width)
    else:
        cost(args)


if __name__ == "__main__":
    main()

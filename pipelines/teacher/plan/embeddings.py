"""Bytes of embedding tables under each kind, and settings that keep within a budget.

    weights      of the plain tables behind a table, float32
    optimizer    their accumulators: one a row, or one a weight
    state        what the kind keeps beside rows: addresses, id maps, counters, utilities, projections

Ids are those of the lake's rows FROM..TO, or as many as the feature's `rows`. Two ids collide where all rows that one
reads are read by the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.embeddings.composed import Composed, physical
from exfm.embeddings.kinds.mixed import TEMPERATURES
from exfm.embeddings.kinds.registry import settings_of, tables_of
from exfm.embeddings.kinds.settings import EmbeddingSettings
from exfm.embeddings.table import keys_of
from exfm.errors import ConfigError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.parallel.planning.placement import format_bytes
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.report.table import TextTable
from pipelines.report.words import count
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader

CHUNK = 200_000  # rows read at once
ALIVE = 4  # ids of the last of so many parts of the range are alive
SPARE = 1.25  # rows of a managed table for each id that is alive
MIB = 2**20


class KindBytes(NamedTuple):
    """Bytes of one table, and how many of its ids share all their rows with another."""

    kind: str  # its settings, in words
    weights: int
    optimizer: int
    state: int
    colliding: float  # ids that are one with another: of one hash, or of one code

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.state


class TableIds(NamedTuple):
    """Ids of a table: `counted` in a lake's rows, or as many as there can be."""

    table: str
    rows: int  # how many there can be
    distinct: int | None
    alive: int | None
    ids: np.ndarray | None  # (distinct,) int64


class EmbeddingPlan(NamedTuple):
    """Every table with every kind that it can have, and a budget's settings."""

    name: str
    width: int
    ids: list[TableIds]
    kinds: dict[str, list[KindBytes]]  # by table; the first is the config's own
    budget: int | None
    within: dict[str, dict[str, Any]] | None  # settings that keep the budget, by table; None: not asked

    @property
    def total(self) -> int:
        """Bytes of the config's own tables."""
        return sum(of[0].total for of in self.kinds.values())

    def as_json(self) -> dict[str, Any]:
        ids = {of.table: {"rows": of.rows, "distinct": of.distinct, "alive": of.alive} for of in self.ids}
        kinds = {name: [of._asdict() | {"total": of.total} for of in found] for name, found in self.kinds.items()}
        return {"ids": ids, "kinds": kinds, "total": self.total, "budget": self.budget, "within": self.within}

    @property
    def small(self) -> list[str]:
        """Tables of less than a hundredth of all bytes each."""
        return [name for name, of in self.kinds.items() if of[0].total * 100 < self.total]

    def tables(self) -> Iterator[TextTable]:
        """A table of kinds for each embedding table that is not small."""
        for of in self.ids:
            if of.table in self.small:
                continue
            own = self.kinds[of.table]
            seen = "" if of.distinct is None else f", {count(of.distinct)} seen, {count(of.alive)} alive"
            title = f"{of.table}: {count(of.rows)} ids{seen}"
            head = ["kind", "bytes", "of full", "weights", "optimizer", "state", "ids that collide"]
            full = next((k.total for k in own if k.kind == "full"), own[0].total)
            yield TextTable(
                title,
                head,
                [
                    [
                        k.kind,
                        format_bytes(k.total),
                        f"{k.total / full:.3g}",
                        *map(format_bytes, (k.weights, k.optimizer, k.state)),
                        count(round(k.colliding)),
                    ]
                    for k in own
                ],
            )


def embedding_plan(
    config: Config, *, run_dir: RunDir | None, rows: tuple[int, int] | None, budget_mb: float | None
) -> EmbeddingPlan:
    """Plan the tables of a config's teacher. `rows`: the range of `lake_seq` whose ids are counted, both included.

    Raises BadInput where there is no lake, ConfigError where no settings keep the budget.
    """
    features, model = config.teacher_features, config.teacher.model
    counted = None if run_dir is None else ids_in_lake(config, features, run_dir, rows)
    ids = [
        TableIds(feature.name, feature.rows, *((None, None, None) if counted is None else counted[feature.name]))
        for feature in features.tabled
    ]
    kinds = {of.table: list(_kinds(features, model.width, model.embeddings, of, model.sparse_optimizer)) for of in ids}
    budget = None if budget_mb is None else int(budget_mb * MIB)
    within = None if budget is None else settings_within(features, model.width, model.sparse_optimizer, budget)
    return EmbeddingPlan(config.name, model.width, ids, kinds, budget, within)


def ids_in_lake(
    config: Config, features: FeatureSet, run_dir: RunDir, rows: tuple[int, int] | None
) -> dict[str, tuple[int, int, np.ndarray]]:
    """Distinct ids of each table in a lake's rows, how many of them the last quarter has, and the ids themselves."""
    if not run_dir.lake.exists():
        raise BadInput(f"{run_dir.root} has no lake; name a run that has one (--from), or leave out --ids")
    lake, build = LakeReader(run_dir.lake, config.rows), BatchBuilder(features, [])
    first, last = rows or (lake.first_lake_seq, lake.last_lake_seq)
    if not lake.first_lake_seq <= first <= last <= lake.last_lake_seq:
        raise BadInput(
            f"--ids {first}..{last}: the lake has rows {lake.first_lake_seq}..{lake.last_lake_seq}; name some of these"
        )
    begins = last - (last - first) // ALIVE
    seen = {name: np.zeros(0, np.int64) for name in features.table_names}
    alive = dict(seen)
    columns = list(dict.fromkeys(["lake_seq", "event_time_ms", *features.needs_columns()]))
    at = first - 1
    while at < last:
        upto = begins - 1 if at < begins - 1 else last
        read = lake.read(at, upto=upto, limit_rows=CHUNK, columns=columns)
        at = read.complete_upto
        if not read.table.num_rows:
            continue
        sparse = build(read.table).sparse
        for feature in features.tabled:
            own = np.concatenate([sparse[key].values().numpy() for key in keys_of(feature)])
            for counted in (seen, alive) if at >= begins else (seen,):
                counted[feature.name] = np.unique(np.concatenate([counted[feature.name], own]))
    return {name: (len(ids), len(alive[name]), ids) for name, ids in seen.items()}


def settings_within(
    features: FeatureSet, width: int, optimizer: SparseOptimizer, budget: int
) -> dict[str, dict[str, Any]]:
    """The widest tables within a budget of bytes, by the power rule of mixed dimensions; `{}`: all full.

    Raises ConfigError where 4 columns a row are too many.
    """
    least = 0
    for temperature in TEMPERATURES:
        asked = {name: {"kind": "mixed", "temperature": temperature} for name in features.table_names}
        kinds = {name: settings_of(kind) for name, kind in asked.items()} if temperature else {}
        least = sum(table_bytes(features, width, kinds, name, optimizer).total for name in features.table_names)
        if least <= budget:
            widths = {t.name: t.width for t in physical(tables_of(features, width, kinds))}
            own = {f.name: getattr(f, "width", None) or width for f in features.tabled}
            return {name: {"kind": "mixed", "width": w} for name, w in widths.items() if w < own[name]}
    raise ConfigError(
        f"no table narrower than 4 columns can be had (FBGEMM), and with 4 they take {format_bytes(least)} of "
        f"{format_bytes(budget)}; give the largest features fewer `rows`, or kind `hash`, `qr` or `managed`"
    )


def table_bytes(
    features: FeatureSet,
    width: int,
    embeddings: Mapping[str, EmbeddingSettings],
    name: str,
    optimizer: SparseOptimizer,
    ids: np.ndarray | None = None,
) -> KindBytes:
    """Bytes of a table in training; rows that it shares are those of the table that has the budget of them. Nothing is
    allocated. Raises ConfigError where it cannot be had."""
    with torch.device("meta"):
        table = tables_of(features, width, embeddings)[features.table_names.index(name)]
    settings = embeddings.get(name)
    plain = physical([table]) if settings is None or settings.host() is None else []
    weights = sum(4 * of.rows * of.width for of in plain)
    accumulators = sum(4 * of.rows * (of.width if optimizer == "adagrad" else 1) for of in plain)
    state = sum(t.nbytes for t in table.tensors().values()) if isinstance(table, Composed) else 0
    words = "full" if settings is None else _words(settings)
    return KindBytes(words, weights, accumulators, state, _colliding(table, features, name, ids))


def _words(settings: EmbeddingSettings) -> str:
    given = {key: value for key, value in settings.model_dump(exclude_defaults=True).items() if key != "kind"}
    if blocks := given.pop("blocks", ()):
        given["blocks"] = " ".join(f"{block['share']:g}:{block.get('width', '')}" for block in blocks)
    return " ".join([settings.kind, *(f"{key}={value}" for key, value in given.items())])


def _kinds(
    features: FeatureSet,
    width: int,
    embeddings: Mapping[str, EmbeddingSettings],
    of: TableIds,
    optimizer: SparseOptimizer,
) -> Iterator[KindBytes]:
    """The config's own settings first, then those of every kind that the table can have."""
    n, alive = of.rows, of.alive or of.rows
    asked: list[dict[str, Any]] = [
        {"kind": "full"},
        *({"kind": "hash", "rows": max(1, (of.distinct or n) // by)} for by in (4, 16)),
        {"kind": "qr"},
        {"kind": "qr", "collisions": 16},
        {"kind": "mixed", "width": 4},
        {"kind": "mixed", "width": 8},
        {"kind": "mixed", "width": 4, "blocks": [{"share": 0.05, "width": 16}, {"share": 0.2, "width": 8}]},
        {"kind": "fiited"},
        {"kind": "managed", "rows": max(1, int(SPARE * alive))},
    ]
    own = embeddings.get(of.table)
    seen = set()
    for settings in [own, *asked]:
        try:
            kind = None if settings is None else settings_of(settings)
            kinds = embeddings if settings is own else {} if kind is None else {of.table: kind}
            found = table_bytes(features, width, kinds, of.table, optimizer, of.ids)
        except (ConfigError, ValueError, RuntimeError):
            if settings is own:
                raise
            continue  # a kind that this table cannot have
        if found.kind not in seen:
            seen.add(found.kind)
            yield found


def _colliding(table: Any, features: FeatureSet, name: str, ids: np.ndarray | None) -> float:
    """Ids that share all rows with another: those that share a hash, and of the others those that share rows: counted,
    or of random ids as many as there can be, expected."""
    feature = next(f for f in features.tabled if f.name == name)
    of_domain = 0.0
    if ids is not None and feature.transform == "hash" and len(ids) < feature.rows:
        of_domain = -feature.rows * math.log1p(-len(ids) / feature.rows) - len(ids)  # ids behind so many hashes
    if not isinstance(table, Composed) or table.tensors():
        return of_domain
    if ids is not None and len(ids):
        codes = np.stack([of.numpy() for of in table.read(torch.from_numpy(ids))])
        _, counts = np.unique(codes, axis=1, return_counts=True)
        return of_domain + float(counts[counts > 1].sum())
    n = feature.rows
    codes_there = float(np.prod([float(of.rows) for of in table.tables]))
    return n * (1 - (1 - 1 / codes_there) ** (n - 1)) if codes_there < n else 0.0


def words_within(plan: EmbeddingPlan) -> Sequence[str]:
    """Tables that are not shown, and settings that keep the budget, as a config has them."""
    total = sum(plan.kinds[name][0].total for name in plan.small)
    small = [f"and {', '.join(plan.small)}: {format_bytes(total)} together"] if plan.small else []
    if plan.within is None or plan.budget is None:
        return small
    if not plan.within:
        return [*small, f"all tables full keep within {format_bytes(plan.budget)}"]
    lines = [f"    {name}: {{kind: mixed, width: {kind['width']}}}" for name, kind in plan.within.items()]
    return [*small, f"within {format_bytes(plan.budget)}:", "  teacher.model.embeddings:", *lines]

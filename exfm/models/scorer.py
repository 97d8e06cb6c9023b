"""A teacher that only scores: a replica that holds it whole, or a group of ranks that holds it together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchrec.distributed.types import EmbeddingModuleShardingPlan

from exfm.embeddings.composed import is_served, served_tables, tables_held
from exfm.embeddings.served import ServedTables
from exfm.embeddings.table import Table, Tables
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.statistics import Statistics
from exfm.models.stack import Stack, stacked
from exfm.models.teacher_config import TeacherConfig
from exfm.models.teacher_net import TeacherNet, compiled_dense, events_with
from exfm.models.teacher_wide import TABLES, all_tables, wide_logits
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.parallel.sharding import plan_sharding
from exfm.parallel.tables import ParallelTables, of_tables
from exfm.snapshots.changed import ChangedTensor
from exfm.snapshots.named import S, copy_tensors, under
from exfm.snapshots.windows import TensorSource, windows_of


def snapshot_of(state: Mapping[str, S]) -> dict[str, S]:
    """The tensors of a teacher's state that scoring needs, not copies.

    >>> state = {"table/ad/weight": torch.ones(1), "table/ad/accumulator": torch.ones(1), "rng": torch.ones(1)}
    >>> list(snapshot_of(state))
    ['table/ad/weight']
    """
    counted = ("dense/", "prior/", "statistics/")
    dense = {name: t for name, t in state.items() if name.startswith(counted) or name == "stack/theta"}
    tables = {name: t for name, t in state.items() if name.startswith(TABLES)}
    return dense | {name: t for name, t in tables.items() if is_served(name)}


class TeacherAnswer(NamedTuple):
    """Logits (B, T) float32 of rows, and the teacher's representation of them (B, k) float32, if it has one."""

    logits: np.ndarray
    representation: np.ndarray | None

    @classmethod
    def together(cls, parts: Sequence[TeacherAnswer]) -> TeacherAnswer:
        """The answer for rows one after the other, from at least one part."""
        logits, representations = zip(*parts, strict=True)
        whole = None if representations[0] is None else np.concatenate(representations)
        return cls(np.concatenate(logits), whole)


class TeacherScorer:
    """A teacher that only scores, with the weights of a snapshot: a replica, whole in this process; or, on one rank of
    a `group` that holds its tables together, this rank's part, under a plan of its own.

    No process ever holds an optimizer's state or a gradient, and no rank of a group a whole table; the dense part is on
    every rank. The same snapshot and batch give the same bits in every process on one CPU type, with the same number of
    threads; in a group, batch for batch and rank for rank. A replica's logits differ from a group's by rounding, and
    not at all where no bag is summed in pieces (one id each, or whole tables).

    Raises ConfigError where the tables do not fit into what `sharding` allows a rank.
    """

    def __init__(
        self,
        cfg: TeacherConfig,
        features: FeatureSet,
        tasks: Sequence[str],
        *,
        group: RankGroup | None = None,
        sharding: Sharding = Sharding(),
        batch_rows: int = 2048,  # of a batch over all ranks, which is what the plan's costs are counted in
    ):
        """Make it of weight 0, with a group as a collective."""
        self.tasks = tuple(tasks)
        self._net = TeacherNet(cfg, features, tasks, seed=0).eval()
        if cfg.compile:
            self._net.compiled = compiled_dense(cfg, self._net, learns=False)
        parts, tables = all_tables(cfg, features, len(tasks), learns=False), dict[str, Tables]()
        if group is None:
            tables |= {name: served_tables(part.whole) for name, part in parts.items()}
        else:
            self.plan = plan_sharding(parts, group, sharding, batch_rows)
            for name, part in parts.items():
                plan = self.plan.plan[name]

                def hold(plain: Sequence[Table], plan: EmbeddingModuleShardingPlan = plan) -> Tables:
                    return ParallelTables(plain, of_tables(plan, plain), group, sharding)

                tables[name] = tables_held(part.whole, hold, group=group, learns=False)
        self._tables, self._events, self._wide = tables["tables"], tables.get("events"), tables.get("wide")
        self._held, self._theta = list(tables.values()), Stack(len(tasks)).theta.clone()
        self._statistics = Statistics(features)

    @property
    def held(self) -> list[Tensor]:
        """The parts of tables that are in this process."""
        return [window for of in self._held for held in of.tensors().values() for _, window in windows_of(held)]

    def weights(self) -> list[Tensor] | None:
        """All tensors that loading writes, in one order; None where tables hold more than rows."""
        modules = [self._net, self._statistics, *(of for of in self._held if isinstance(of, ServedTables))]
        found = [self._theta, *(t for module in modules for t in (*module.parameters(), *module.buffers()))]
        return found if len(modules) == 2 + len(self._held) else None

    def load(self, snapshot: Mapping[str, TensorSource], changes: Mapping[str, ChangedTensor] | None = None) -> None:
        """Load the weights of a snapshot; of the tables only this rank's windows are read. No collective. `changes`:
        all rows of tables in which it differs from the one that is loaded; None: read all.

        Raises ModelError where they are not of this configuration, or damaged: what is loaded is then undefined."""
        own = {f"dense/{n}": p.detach() for n, p in self._net.named_parameters()} | self._statistics.tensors()
        own |= {} if self._wide is None else {"stack/theta": self._theta}
        copy_tensors(own, {k: v for k, v in snapshot.items() if k.startswith(("dense/", "statistics/", "stack/"))})
        self._net.prior.load(snapshot)
        for part, tables in (("table", self._tables), ("events", self._events), ("wide", self._wide)):
            if tables is not None and changes is None:
                tables.load(under(part, snapshot))
            elif tables is not None:
                whole = {n: of for n, of in under(part, snapshot).items() if is_served(n) and not n.endswith("/weight")}
                tables.take(whole | under(part, changes or {}))

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32 of this process's rows; NaN for a task without a learned label. With a group, a
        collective."""
        return self.answer(batch).logits

    def answer(self, batch: Batch) -> TeacherAnswer:
        """Logits of this process's rows, and the representation; one inference. With a group, a collective."""
        with torch.inference_mode():
            pooled = self._tables.lookup(self._tables.send(batch)).pooled
            events = None
            if self._events is not None and batch.events is not None:
                events = events_with(batch, self._events.lookup(self._events.send(batch.events)))
            z, r = self._net(pooled, batch.sparse, self._statistics(batch.dense, batch.raw), events)
            z = z.float()
            if self._wide is not None:
                offset = self._net.prior.offset().float()
                linear = wide_logits(self._wide, self._wide.lookup(self._wide.send(batch)).pooled, len(self.tasks))
                z = stacked(self._theta, offset, z, linear + offset)
            logits = torch.where(self._net.prior.begun, z, torch.nan).numpy()
            return TeacherAnswer(logits, None if r is None else r.float().numpy())

"""A teacher that only scores: a replica that holds it whole, or a group of ranks that holds it together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedTensor

from exfm.embeddings.tables import bag_configs
from exfm.embeddings.weights import load_table_weights
from exfm.features.batch import Batch
from exfm.features.features import FeatureSet
from exfm.features.statistics import Statistics
from exfm.models.stack import stacked
from exfm.models.teacher_config import TeacherConfig
from exfm.models.teacher_net import TeacherNet, compiled_dense
from exfm.models.teacher_wide import all_tables, summed, wide_configs, wide_tables
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.parallel.sharding import plan_sharding
from exfm.parallel.tables import shard_tables, sharded_weights
from exfm.snapshots.named import copy_tensors
from exfm.snapshots.windows import TensorSource, whole_tensor

S = TypeVar("S")


def snapshot_of(state: Mapping[str, S]) -> dict[str, S]:
    """The tensors of a teacher's state that scoring needs, not copies.

    >>> state = {"table/ad/weight": torch.ones(1), "table/ad/accumulator": torch.ones(1), "rng": torch.ones(1)}
    >>> list(snapshot_of(state))
    ['table/ad/weight']
    """
    counted = ("dense/", "prior/", "statistics/")
    dense = {name: t for name, t in state.items() if name.startswith(counted) or name == "stack/theta"}
    return dense | {n: t for n, t in state.items() if n.startswith(("table/", "wide/")) and n.endswith("/weight")}


class TeacherScorer:
    """A teacher that only scores: the network unsharded, with the weights of a snapshot.

    The same snapshot and batch give the same bits in every process on one CPU type, with the same number of threads.
    """

    def __init__(self, cfg: TeacherConfig, features: FeatureSet, tasks: Sequence[str]):
        self.tasks = tuple(tasks)
        tables = EmbeddingBagCollection(bag_configs(features, cfg.width))  # drawn in place, not copied: they are loaded
        self._net = TeacherNet(cfg, features, tasks, seed=0, tables=tables).eval()
        if cfg.compile:
            self._net.compiled = compiled_dense(cfg, self._net, learns=False)
        self._wide = wide_tables(features, len(self.tasks)) if cfg.wide else None
        self._theta: Tensor | None = None
        self._statistics = Statistics(features)

    def load(self, snapshot: Mapping[str, TensorSource]) -> None:
        """Load the weights of a snapshot. Raises ModelError where they are not of this configuration."""
        _load_dense(self._net, self._statistics, snapshot)
        load_table_weights(self._net.tables, tables_of(snapshot, "weight"))
        self._theta = None
        if self._wide is not None:
            load_table_weights(self._wide, tables_of(snapshot, "weight", of="wide"))
            self._theta = whole_tensor(snapshot["stack/theta"])

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32."""
        if not len(batch):  # TorchRec's unsharded collections cannot look up nothing
            return np.empty((0, len(self.tasks)), dtype=np.float32)
        with torch.inference_mode():
            z = self._net(batch.sparse, self._statistics(batch.dense, batch.raw)).float()
            if self._theta is not None and self._wide is not None:
                z = _on_wide(self._theta, self._net, z, self._wide(batch.sparse))
            return z.numpy()


class ShardedScorer:
    """A teacher that only scores, on one rank of a group that holds its tables together, under a plan of its own.

    No rank ever holds a whole table, an optimizer's state or a gradient. The dense part is
    on every rank. One snapshot, batch for batch and rank for rank, gives the same bits every time; a replica's logits
    differ from them by rounding, and not at all where no bag is summed in pieces (one id each, or whole tables).
    """

    def __init__(
        self,
        cfg: TeacherConfig,
        features: FeatureSet,
        tasks: Sequence[str],
        *,
        group: RankGroup,
        sharding: Sharding = Sharding(),
        batch_rows: int = 2048,  # of a batch over all ranks, which is what the plan's costs are counted in
    ):
        """A collective. Raises ConfigError where the tables do not fit into what `sharding` allows a rank."""
        self.tasks = tuple(tasks)
        tables = EmbeddingBagCollection(bag_configs(features, cfg.width), device=torch.device("meta"))
        self._net = TeacherNet(cfg, features, tasks, seed=0, tables=tables).eval()
        if cfg.compile:
            self._net.compiled = compiled_dense(cfg, self._net, learns=False)
        self.plan = plan_sharding(all_tables(cfg, features, len(tasks), learns=False), group, sharding, batch_rows)
        for part in self.plan.plan.values():
            for table in part.values():
                table.compute_kernel = "dense"  # the one that has no optimizer
        self._net.tables = shard_tables(tables, self.plan.plan["tables"], group, sharding)
        self._weights = sharded_weights(self._net.tables, tables.embedding_bag_configs(), group)
        self._wide: ShardedEmbeddingBagCollection | None = None
        self._theta: Tensor | None = None
        self._statistics = Statistics(features)
        held = [self._weights]
        if cfg.wide:
            configs = wide_configs(features, len(self.tasks))
            linear = EmbeddingBagCollection(configs, device=torch.device("meta"))
            self._wide = shard_tables(linear, self.plan.plan["wide"], group, sharding)
            self._wide_weights = sharded_weights(self._wide, configs, group)
            held.append(self._wide_weights)
        self.held = [piece for of in held for windows in of.windows.values() for _, piece in windows]  # in this process

    def load(self, snapshot: Mapping[str, TensorSource]) -> None:
        """Load the weights of a snapshot; of the tables only this rank's windows are read. No collective.

        Raises ModelError where they are not of this configuration, or damaged: what is loaded is then undefined."""
        _load_dense(self._net, self._statistics, snapshot)
        self._weights.load(tables_of(snapshot, "weight"))
        self._theta = None
        if self._wide is not None:
            self._wide_weights.load(tables_of(snapshot, "weight", of="wide"))
            self._theta = whole_tensor(snapshot["stack/theta"])

    def score(self, batch: Batch) -> np.ndarray:
        """Logits (B, T) float32 of this rank's own rows. A collective."""
        with torch.inference_mode():
            z = self._net(batch.sparse, self._statistics(batch.dense, batch.raw)).float()
            if self._theta is not None and self._wide is not None:
                z = _on_wide(self._theta, self._net, z, self._wide(batch.sparse))
            return z.numpy()


def _on_wide(theta: Tensor, net: TeacherNet, deep: Tensor, wide: KeyedTensor) -> Tensor:
    offset = net.prior.offset().float()
    return stacked(theta, offset, deep, summed(wide.values(), wide.keys(), len(theta)) + offset)


def _load_dense(net: TeacherNet, statistics: Statistics, snapshot: Mapping[str, TensorSource]) -> None:
    dense = {f"dense/{n}": p.detach() for n, p in net.named_parameters() if not n.startswith("tables.")}
    copy_tensors(dense, {k: v for k, v in snapshot.items() if k.startswith("dense/")})
    net.prior.load(snapshot)
    copy_tensors(statistics.tensors(), {k: v for k, v in snapshot.items() if k.startswith("statistics/")})


def tables_of(tensors: Mapping[str, S], what: str, *, of: str = "table") -> dict[str, S]:
    """Tensors of a state with names `<of>/<name>/<what>`, by `<name>`."""
    return {k.split("/")[1]: v for k, v in tensors.items() if k.startswith(f"{of}/") and k.endswith(f"/{what}")}

"""A model's embedding tables on their ranks: TorchRec's DistributedModelParallel, plus the collectives that gloo lacks.

The loss is a sum over the rows of all ranks, so gradients are summed, never averaged; that is exact for any number of
ranks. Ranks may bring different numbers of rows, or none.

B rows of this rank, D width, R rows of a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbeddingBag, BatchedFusedEmbeddingBag
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding.grid_sharding import GridPooledEmbeddingDist
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingDist
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingDist
from torchrec.distributed.types import (
    Awaitable,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingEnv,
    ShardingPlan,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedTensor

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.features.batch import Batch
from exfm.parallel.exchange import SumToOwners
from exfm.parallel.group import RankGroup, forget_hosts
from exfm.parallel.held import ShardedTables
from exfm.parallel.layout import Sharding
from exfm.parallel.planner import quiet_torchrec
from exfm.parallel.sharding import TableSharder
from exfm.snapshots.windows import Window


class TableShard(NamedTuple):
    """A window of one table that this rank holds."""

    table: str
    offsets: tuple[int, int]
    weight: Tensor  # (rows, columns), shares memory with the model
    kernel: BatchedFusedEmbeddingBag | BatchedDenseEmbeddingBag
    place: int  # in the kernel
    replicated: bool  # every rank holds it


class SentIds(NamedTuple):
    """Ids on their way to the ranks that hold their rows."""

    context: Any
    ids: Awaitable[Any]


class Gathered(NamedTuple):
    """Result of a lookup: pooled embeddings (B, sum of widths), in order of the tables' keys."""

    pooled: Tensor


class ParallelTables:
    """The tables of `model.tables` on the ranks of a group, learning by AdaGrad.

    `model` is changed: its `tables` become a part that holds this rank's pieces. Tables on the meta device stay
    nowhere else; their weights are whatever TorchRec drew, until they are written through `weights()`.

    Look-up and update are collectives; ranks call them in the same order.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: ShardingPlan,
        group: RankGroup,
        sharding: Sharding,
        *,
        optimizer: SparseOptimizer,
        lr: float,
        eps: float,
    ):
        self._group, self._row_wise = group, optimizer == "row_wise_adagrad"
        set_gradient_division(False)  # of all of TorchRec in this process
        assert isinstance(model.tables, EmbeddingBagCollection)
        self._configs = model.tables.embedding_bag_configs()
        self.keys = keys_of(self._configs)
        kind = RowWiseAdagrad if self._row_wise else torch.optim.Adagrad
        apply_optimizer_in_backward(kind, model.tables.parameters(), {"lr": lr, "eps": eps})
        with quiet_torchrec(), _hosts(sharding, group):
            DistributedModelParallel(  # changes the model in place
                model,
                env=ShardingEnv.from_process_group(group.process_group),
                device=group.device,
                plan=plan,
                sharders=[TableSharder.of(sharding)],
                init_data_parallel=False,  # the dense part's gradients are summed where it is trained
            )
        assert isinstance(model.tables, ShardedEmbeddingBagCollection)
        self._tables = model.tables
        _replace_collectives(self._tables)
        self._replicas = {
            kernel: [ReplicatedTable(w.detach(), optimizer, lr=lr, eps=eps) for w in kernel.split_embedding_weights()]
            for kernel in _kernels(self._tables)
            if isinstance(kernel, BatchedDenseEmbeddingBag)
        }

    def send(self, batch: Batch) -> SentIds:
        """Start to send a batch's ids to the ranks that hold their rows. A collective.

        Waits for the sizes of what others send; the ids themselves travel while other work is done.
        """
        context = self._tables.create_context()
        return SentIds(context, self._tables.input_dist(context, batch.sparse).wait())

    def look_up(self, sent: SentIds) -> Gathered:
        """A collective."""
        return Gathered(in_order(self._tables.compute_and_output_dist(sent.context, sent.ids.wait()).wait(), self.keys))

    def learn(self, lookup: Gathered, gradient: Tensor) -> None:
        """One step, with the gradient of the looked-up embeddings. A collective."""
        lookup.pooled.backward(gradient)
        self._update_replicated()

    def _update_replicated(self) -> None:
        """After backward: an AdaGrad step of tables that every rank holds, on all ranks' gradients. A collective."""
        for kernel, replicas in self._replicas.items():
            flat = kernel.emb_module.weights
            gradient = self._group.sum(torch.zeros_like(flat) if flat.grad is None else flat.grad)
            flat.grad = None
            shapes = [w.shape for w in kernel.split_embedding_weights()]
            for replica, g, shape in zip(replicas, gradient.split([s.numel() for s in shapes]), shapes, strict=True):
                replica.update(g.view(shape))

    def weights(self) -> ShardedTables:
        """(rows, width) each; they share memory with the model."""
        return sharded_weights(self._tables, self._configs, self._group)

    def accumulators(self) -> ShardedTables:
        """(rows,) of row-wise AdaGrad, (rows, width) of element-wise; they share memory with the model.

        Row-wise AdaGrad on a table in several column pieces has an accumulator for each: (rows, pieces).
        """
        shapes, windows = {}, {c.name: [] for c in self._configs}  # type: ignore[var-annotated]
        replicated = set()
        columns = {name: _column_pieces(spec) for name, spec in self._tables.module_sharding_plan.items()}
        for c in self._configs:
            per_row = [c.embedding_dim] if not self._row_wise else [] if columns[c.name] == 1 else [columns[c.name]]
            shapes[c.name] = torch.Size([c.num_embeddings, *per_row])
        for piece in _pieces(self._tables):
            row, column = piece.offsets
            if piece.replicated:
                replicated.add(piece.table)
                m = self._replicas[piece.kernel][piece.place].accumulator
            else:
                m = piece.kernel.emb_module.split_optimizer_states()[piece.place][0]
            if not self._row_wise:
                windows[piece.table].append(((row, column), m))
            elif columns[piece.table] == 1:
                windows[piece.table].append(((row,), m))
            else:
                windows[piece.table].append(((row, column // piece.weight.shape[1]), m.unsqueeze(1)))
        return ShardedTables(shapes, windows, self._group, replicated)


def keys_of(configs: Sequence[EmbeddingBagConfig]) -> list[str]:
    """Keys of the lookup, in order."""
    return [key for config in configs for key in config.feature_names]


def in_order(pooled: KeyedTensor, keys: list[str]) -> Tensor:
    """(B, sum of widths) in the order of the keys; sharded over ranks, they come in order of rank."""
    return pooled.values() if pooled.keys() == keys else KeyedTensor.regroup([pooled], [keys])[0]


def shard_tables(
    tables: EmbeddingBagCollection, plan: EmbeddingModuleShardingPlan, group: RankGroup, sharding: Sharding
) -> ShardedEmbeddingBagCollection:
    """Shard the tables by their part of a plan, for a model that only looks up. A collective.

    Nothing is allocated on this rank but its own shards, where `tables` are on the meta device.
    """
    with quiet_torchrec(), _hosts(sharding, group):
        env = ShardingEnv.from_process_group(group.process_group)
        sharded = TableSharder.of(sharding).shard(tables, plan, env, group.device)
    _replace_collectives(sharded)
    return sharded


def sharded_weights(
    tables: ShardedEmbeddingBagCollection, configs: Sequence[EmbeddingBagConfig], group: RankGroup
) -> ShardedTables:
    """The weights (rows, width) of sharded tables, as ranks hold them."""
    shapes = {c.name: torch.Size((c.num_embeddings, c.embedding_dim)) for c in configs}
    windows: dict[str, list[Window]] = {c.name: [] for c in configs}
    replicated = set()
    for piece in _pieces(tables):
        windows[piece.table].append((piece.offsets, piece.weight))
        if piece.replicated:
            replicated.add(piece.table)
    return ShardedTables(shapes, windows, group, replicated)


def _kernels(tables: ShardedEmbeddingBagCollection) -> Iterator[BatchedFusedEmbeddingBag | BatchedDenseEmbeddingBag]:
    """The groups of tables that FBGEMM looks up in one call."""
    for lookup in tables._lookups:
        yield from lookup._emb_modules


def _pieces(tables: ShardedEmbeddingBagCollection) -> Iterator[TableShard]:
    """Windows of the tables that this rank holds."""
    for kernel in _kernels(tables):
        for place, config in enumerate(kernel.config.embedding_tables):
            row, column = config.local_metadata.shard_offsets if config.local_metadata else (0, 0)
            weight = kernel.split_embedding_weights()[place].detach()
            yield TableShard(config.name, (row, column), weight, kernel, place, config.local_metadata is None)


def _replace_collectives(tables: ShardedEmbeddingBagCollection) -> None:
    for i, lookup in enumerate(tables._lookups):
        if isinstance(lookup, DistributedDataParallel):  # it would average, and wants a backward for every forward
            tables._lookups[i] = lookup.module
    for output in tables._output_dists:
        if isinstance(output, RwPooledEmbeddingDist):
            output._dist = SumToOwners(output._pg, output._codecs)
        elif isinstance(output, (TwRwPooledEmbeddingDist, GridPooledEmbeddingDist)):
            output._create_output_dist_modules()
            output._intra_dist = SumToOwners(output._intra_pg, output._intra_codecs)


def _column_pieces(parameter: ParameterSharding) -> int:
    spec = parameter.sharding_spec
    return len({shard.shard_offsets[1] for shard in spec.shards}) if isinstance(spec, EnumerableShardingSpec) else 1


class ReplicatedTable:
    """FBGEMM's AdaGrad, which FBGEMM fuses into a backward, for a table (R, D) that every rank holds and updates alike.

    >>> w = torch.zeros(3, 4)
    >>> replica = ReplicatedTable(w, "adagrad", lr=1.0, eps=0.0)
    >>> replica.update(torch.tensor([[0.0] * 4, [3.0] * 4, [0.0] * 4]))
    >>> replica.accumulator[1], w[:, 0]
    (tensor([9., 9., 9., 9.]), tensor([ 0., -1.,  0.]))
    """

    def __init__(self, w: Tensor, optimizer: SparseOptimizer, *, lr: float, eps: float):
        on_gpu = w.device.type == "cuda"
        self._kernel = SplitTableBatchedEmbeddingBagsCodegen(
            [
                (
                    *w.shape,
                    EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST,
                    ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU,
                )
            ],
            optimizer=_FBGEMM[optimizer],
            learning_rate=lr,
            eps=eps,
            device=w.device,
        )
        (self._kernel.weights_dev if on_gpu else self._kernel.weights_host).data = w.view(-1)  # the same memory
        self.accumulator = self._kernel.split_optimizer_states()[0][0]  # (R,), or (R, D) of the element-wise

    def update(self, g: Tensor) -> None:
        """One step by the gradient (R, D)."""
        rows = g.any(1).nonzero().squeeze(1)
        if len(rows):
            self._kernel(rows, torch.arange(len(rows) + 1, device=g.device)).backward(g[rows])


_FBGEMM = {"row_wise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "adagrad": EmbOptimType.EXACT_ADAGRAD}


@contextmanager
def _hosts(sharding: Sharding, group: RankGroup) -> Iterator[None]:
    """TorchRec reads from the environment how many consecutive ranks share a host, and keeps the groups it makes."""
    per_host = str(sharding.world(group.world_size).on_a_host)
    before = os.environ.get("LOCAL_WORLD_SIZE")
    forget_hosts()
    os.environ["LOCAL_WORLD_SIZE"] = per_host
    try:
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_WORLD_SIZE"]
        else:
            os.environ["LOCAL_WORLD_SIZE"] = before

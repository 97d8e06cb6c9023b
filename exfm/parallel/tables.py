"""A model's embedding tables on their ranks: TorchRec's sharded collections and FBGEMM's kernels, plus the collectives
that gloo lacks.

The loss is a sum over the rows of all ranks, so gradients are summed, never averaged; that is exact for any number of
ranks. Ranks may bring different numbers of rows, or none.

B rows of this rank, D width, R rows of a table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbeddingBag, BatchedFusedEmbeddingBag
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.sharding.grid_sharding import GridPooledEmbeddingDist
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingDist
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingDist
from torchrec.distributed.types import (
    Awaitable,
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingEnv,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.embeddings.composed import Composed, check_device, tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.table import HasIds, Held, Lookup, Table, Tables
from exfm.parallel.exchange import SumToOwners
from exfm.parallel.group import RankGroup, forget_hosts
from exfm.parallel.layout import Sharding
from exfm.parallel.planner import quiet_torchrec
from exfm.parallel.sharding import TableSharder, bag_configs
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.windows import TensorPieces, Window, whole_tensor


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


class ParallelTables(Tables):
    """Tables on the ranks of a group, of weight 0. They learn by AdaGrad; without `optimizer` they are looked up only.

    No rank ever has more than its pieces, by its part of a `plan`. Look-up and update are collectives; ranks call them
    in the same order.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        plan: EmbeddingModuleShardingPlan,
        group: RankGroup,
        sharding: Sharding,
        *,
        optimizer: SparseOptimizer | None = None,
        lr: float = 0.0,
        eps: float = 0.0,
    ):
        self.tables, self._group = tuple(tables), group
        set_gradient_division(False)  # of all of TorchRec in this process
        collection = EmbeddingBagCollection(bag_configs(tables), device=torch.device("meta"))
        if optimizer is None:
            for of_table in plan.values():
                of_table.compute_kernel = "dense"  # the one that has no optimizer
        else:
            kind = RowWiseAdagrad if optimizer == "row_wise_adagrad" else torch.optim.Adagrad
            apply_optimizer_in_backward(kind, collection.parameters(), {"lr": lr, "eps": eps})
        with quiet_torchrec(), _hosts(sharding, group):
            env = ShardingEnv.from_process_group(group.process_group)
            self._tables = TableSharder.of(sharding).shard(collection, plan, env, group.device)
        _replace_collectives(self._tables)
        self._replicas = {
            kernel: [ReplicatedTable(w.detach(), optimizer, lr=lr, eps=eps) for w in kernel.split_embedding_weights()]
            for kernel in _kernels(self._tables)
            if optimizer is not None and isinstance(kernel, BatchedDenseEmbeddingBag)
        }
        self._held = self._weights() | ({} if optimizer is None else self._accumulators(optimizer))
        for name in (f"{table.name}/weight" for table in tables):
            for _, window in self._held[name].pieces:
                window.zero_()
        # Of a table that is cut by columns the pieces would have to agree on its rows: such ones are not tracked.
        self._tracked = optimizer is not None and all(
            _column_pieces(spec) == 1 for spec in self._tables.module_sharding_plan.values()
        )
        self._learned_at: dict[str, Tensor] = {}  # the clock when a row of this rank's piece was looked up last
        self._table_of = {feature: table.name for table in tables for feature in table.keys}
        if self._tracked:
            self._learned_at = {
                piece.table: piece.weight.new_zeros(len(piece.weight), dtype=torch.int32)
                for piece in _pieces(self._tables)
                if len(piece.weight)
            }
            self._tables.register_post_lookup_tracker_fn(self._note)

    def send(self, batch: HasIds) -> SentIds:
        """Waits for the sizes of what others send; the ids themselves travel while other work is done."""
        context = self._tables.create_context()
        return SentIds(context, self._tables.input_dist(context, batch.sparse).wait())

    def lookup(self, sent: SentIds) -> Lookup:
        pooled = self._tables.compute_and_output_dist(sent.context, sent.ids.wait()).wait()
        return Lookup(in_order(pooled, [name for table in self.tables for name in table.keys]))

    def _note(self, sent: KeyedJaggedTensor, *_: Any) -> None:
        """Note the rows that are looked up here; of a table that every rank holds, `_update_replicated` does."""
        if self.clock:
            for feature in sent.keys():  # noqa: SIM118 - it is no dict
                table = self._table_of[feature]
                if table in self._learned_at and not self._held[f"{table}/weight"].replicated:
                    self._learned_at[table][sent[feature].values().long()] = self.clock

    def learn(self, lookup: Lookup, gradient: Tensor, *, decides: bool = True) -> None:
        lookup.pooled.backward(gradient)
        self._update_replicated()

    def _update_replicated(self) -> None:
        """After backward: an AdaGrad step of tables that every rank holds, on all ranks' gradients. A collective."""
        for kernel, replicas in self._replicas.items():
            flat = kernel.emb_module.weights
            gradient = self._group.sum(torch.zeros_like(flat) if flat.grad is None else flat.grad)
            flat.grad = None
            shapes = [w.shape for w in kernel.split_embedding_weights()]
            gradients = gradient.split([s.numel() for s in shapes])
            names = [config.name for config in kernel.config.embedding_tables]
            for replica, g, shape, name in zip(replicas, gradients, shapes, names, strict=True):
                replica.update(g.view(shape))
                if self.clock and name in self._learned_at:
                    self._learned_at[name][g.view(shape).any(1)] = self.clock

    def note(self, name: str, rows: Tensor) -> None:
        if (at := self._learned_at.get(name)) is not None:
            first = self._held[f"{name}/weight"].pieces[0][0][0]
            at[(rows[(rows >= first) & (rows < first + len(at))] - first).to(at.device)] = self.clock

    def all_changed(self) -> None:
        for at in self._learned_at.values():
            at.fill_(self.clock)

    def changed(self, since: int) -> dict[str, Tensor] | None:
        """Changed rows of this rank's pieces."""
        if not self._tracked:
            return None
        first = {name: self._held[f"{name}/weight"].pieces[0][0][0] for name in self._learned_at}
        return {name: (at >= since).nonzero().flatten().cpu() + first[name] for name, at in self._learned_at.items()}

    def changes(self, ending: str, since: int) -> dict[str, ChangedRows | Held] | None:
        """A collective. Every rank has the rows of its pieces, in order of the whole table's."""
        if not self._tracked:
            return None
        mine = {name: (at >= since).nonzero().flatten() for name, at in self._learned_at.items()}
        first = {name: self._held[f"{name}/weight"].pieces[0][0][0] for name in self._learned_at}
        counts = torch.zeros(self._group.world_size, len(self.tables), 2, dtype=torch.int64)
        for number, table in enumerate(self.tables):
            counts[self._group.rank, number] = torch.tensor([first.get(table.name, 0), len(mine.get(table.name, ()))])
        counts = self._group.sum(counts)
        found: dict[str, ChangedRows | Held] = {}
        for number, table in enumerate(self.tables):
            replicated = self._held[f"{table.name}/weight"].replicated
            first_R, count_R = counts[:1, number].unbind(1) if replicated else counts[:, number].unbind(1)
            begins = int(count_R[first_R < first.get(table.name, 0)].sum())
            rows = mine.get(table.name, torch.zeros(0, dtype=torch.int64))
            held_here = self._group.rank == 0 or not replicated
            for name in (
                name for name in self._held if name.rpartition("/")[0] == table.name and name.endswith(ending)
            ):
                of, total = self._held[name], int(count_R.sum())
                at, values = (rows + first.get(table.name, 0)).cpu(), _rows_of(of, rows).cpu()
                shape = (total, *of.shape[1:])
                if not held_here:  # rank 0 writes them; no values, but their type
                    at, values = at[:0], values[:0]
                whole = self._group.world_size == 1
                zeros = (0,) * (len(shape) - 1)
                found[name] = ChangedRows(
                    0,
                    at if whole else cast("Tensor", TensorPieces((total,), [((begins,), at)])),
                    values if whole else cast("Tensor", TensorPieces(shape, [((begins, *zeros), values)])),
                )
        return found

    def tensors(self) -> dict[str, TensorPieces]:
        """Row-wise AdaGrad on a table in several column pieces has an accumulator for each: (rows, pieces)."""
        return self._held

    def copies(self, ending: str = "") -> dict[str, Held]:
        """Whole tensors on a single rank, on one of several the pieces that it has. Where every rank has a whole table,
        only rank 0 has a piece."""
        alone, first = self._group.world_size == 1, self._group.rank == 0
        return {
            name: whole_tensor(held)
            if alone
            else held._replace(
                pieces=[(at, w.to("cpu", copy=True)) for at, w in held.pieces if first or not held.replicated]
            )
            for name, held in self._held.items()
            if name.endswith(ending)
        }

    def _weights(self) -> dict[str, TensorPieces]:
        held = {f"{t.name}/weight": TensorPieces((t.rows, t.width), []) for t in self.tables}
        for piece in _pieces(self._tables):
            name = f"{piece.table}/weight"
            held[name] = held[name]._replace(replicated=piece.replicated)
            held[name].pieces.extend([(piece.offsets, piece.weight)] if piece.weight.numel() else [])
        return held

    def _accumulators(self, optimizer: SparseOptimizer) -> dict[str, TensorPieces]:
        columns = {name: _column_pieces(spec) for name, spec in self._tables.module_sharding_plan.items()}
        row_wise = optimizer == "row_wise_adagrad"
        held = {}
        for t in self.tables:
            per_row = (t.width,) if not row_wise else () if columns[t.name] == 1 else (columns[t.name],)
            held[f"{t.name}/accumulator"] = TensorPieces((t.rows, *per_row), [])
        for piece in _pieces(self._tables):
            row, column = piece.offsets
            if piece.replicated:
                m = self._replicas[piece.kernel][piece.place].accumulator
            else:
                m = piece.kernel.emb_module.split_optimizer_states()[piece.place][0]
            window: Window
            if not row_wise:
                window = (row, column), m
            elif columns[piece.table] == 1:
                window = (row,), m
            else:
                window = (row, column // piece.weight.shape[1]), m.unsqueeze(1)
            name = f"{piece.table}/accumulator"
            held[name] = held[name]._replace(replicated=piece.replicated)
            held[name].pieces.extend([window] if m.numel() else [])
        return held


def learning_tables(
    tables: Sequence[Table | Composed],
    plan: EmbeddingModuleShardingPlan,
    group: RankGroup,
    sharding: Sharding,
    *,
    optimizer: SparseOptimizer,
    lr: float,
    eps: float,
) -> Tables:
    """Tables of weight 0 that learn by AdaGrad, as a group holds them; states of one form are states of the other. A
    collective.

    A single rank on a CPU has them whole and several times as fast, unless `per_shard_row_wise` makes its optimizer one
    of pieces.
    """
    check_device(tables, group.device.type)

    def hold(plain: Sequence[Table]) -> Tables:
        if group.world_size == 1 and group.device.type == "cpu" and not sharding.per_shard_row_wise:
            return FusedTables(plain, lr=lr, eps=eps, optimizer=optimizer)
        return ParallelTables(plain, of_tables(plan, plain), group, sharding, optimizer=optimizer, lr=lr, eps=eps)

    return tables_held(tables, hold, lr=lr, eps=eps, group=group)


def of_tables(plan: EmbeddingModuleShardingPlan, tables: Sequence[Table]) -> EmbeddingModuleShardingPlan:
    """The part of a plan that is of these tables."""
    return EmbeddingModuleShardingPlan({table.name: plan[table.name] for table in tables})


def _rows_of(held: TensorPieces, rows: Tensor) -> Tensor:
    """Rows of this rank's only piece of a tensor; none where it has no piece."""
    if not held.pieces:
        return torch.zeros(0, *held.shape[1:])
    return held.pieces[0][1].index_select(0, rows)


def in_order(pooled: KeyedTensor, keys: list[str]) -> Tensor:
    """(B, sum of widths) in the order of the keys; sharded over ranks, they come in order of rank."""
    return pooled.values() if pooled.keys() == keys else KeyedTensor.regroup([pooled], [keys])[0]


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

"""Embedding tables spread over ranks, the dense part on every rank (Neo, arXiv 2104.05158), through TorchRec.

`RankGroup` is the ranks of one model, `plan_sharding` decides which rank holds what, `shard` builds the model so.
A model's tables are read and written whole, whichever way they are cut: `ShardedTables`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import ShardMetadata
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingEnv, ShardingPlan

from exfm.checkpoint import check_fit
from exfm.errors import ConfigError

# Column-wise is absent: FBGEMM takes row-wise AdaGrad's mean over a shard's columns, so cutting columns changes it.
ShardingType = Literal["table_wise", "row_wise"]


class RankGroup:
    """The ranks that hold one model together: a gloo process group.

    With one rank nothing is opened to the network. With more, rank 0 listens on `master_addr:master_port`; a collective
    that takes longer than `timeout_s` fails. Groups of one process share its only process group, which is destroyed
    when the last of them is closed.

    Raises ConfigError for a rank outside its world, a missing port, or a second group of another shape.

    >>> with RankGroup() as group:
    ...     group.sum(torch.tensor([1.0]))
    tensor([1.])
    """

    _opened: ClassVar[int] = 0

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        master_addr: str = "127.0.0.1",
        master_port: int | None = None,
        timeout_s: float = 30.0,
    ):
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is not in a world of {world_size}; ranks go from 0 to {world_size - 1}")
        if world_size > 1 and master_port is None:
            raise ConfigError(f"a world of {world_size} ranks needs a master_port they all know")
        self.rank, self.world_size = rank, world_size
        if dist.is_initialized():
            if (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
                raise ConfigError(
                    f"rank {rank} of {world_size} was asked for in a process that is rank {dist.get_rank()} of "
                    f"{dist.get_world_size()}; close its other models first, or use another process"
                )
        else:
            if master_addr == "127.0.0.1":
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo resolves the host name, which may hang
            timeout = timedelta(seconds=timeout_s)
            store: dist.Store = dist.HashStore()
            if world_size > 1:
                assert master_port is not None
                store = dist.TCPStore(master_addr, master_port, world_size, is_master=rank == 0, timeout=timeout)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        RankGroup._opened += 1
        self._closed = False

    @property
    def process_group(self) -> dist.ProcessGroup:
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    def sum(self, values: Tensor) -> Tensor:
        """The sum over ranks, on every rank; a collective."""
        if self.world_size > 1:
            values = values.clone()
            dist.all_reduce(values, group=self.process_group)
        return values

    def close(self) -> None:
        """Leave the group. A second call does nothing."""
        if not self._closed:
            self._closed = True
            RankGroup._opened -= 1
            if RankGroup._opened == 0:
                dist.destroy_process_group()

    def __enter__(self) -> RankGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sharder(EmbeddingBagCollectionSharder):
    """TorchRec's sharder with row-wise on CPU too: it works there, but is offered on CUDA only."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["table_wise", "row_wise"]


def plan_sharding(
    module: nn.Module, tables: list[str], group: RankGroup, sharding: ShardingType | None = None
) -> ShardingPlan:
    """Where the rows of every table of `module` go; the same plan on all ranks. A collective.

    TorchRec's planner decides by its cost model which rank holds which table. Tables stay whole unless `sharding` says
    otherwise: over gloo row-wise works only while every rank brings the same number of rows to a step.
    """
    types = [sharding or "table_wise"]
    with _quiet():
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=group.world_size, local_world_size=group.world_size, compute_device="cpu"),
            constraints={table: ParameterConstraints(sharding_types=list(types)) for table in tables},
        )
        return planner.collective_plan(module, [Sharder()], group.process_group)


def shard(module: nn.Module, plan: ShardingPlan, group: RankGroup) -> DistributedModelParallel:
    """`module` with its embedding collections sharded by `plan` and everything else data-parallel. A collective.

    An optimizer given to the tables by `apply_optimizer_in_backward` becomes FBGEMM's fused one. `module` is taken
    apart: use what is returned.
    """
    with _quiet():
        return DistributedModelParallel(
            module,
            env=ShardingEnv.from_process_group(group.process_group),
            device=torch.device("cpu"),
            plan=plan,
            sharders=[Sharder()],
        )


class ShardedTables:
    """Tensors by table name, of which this rank holds some pieces; `shapes` are those of all tables."""

    def __init__(self, shapes: Mapping[str, torch.Size], held: Mapping[str, ShardedTensor], group: RankGroup):
        self.shapes = dict(shapes)
        self._pieces = {name: held[name].local_shards() if name in held else [] for name in shapes}
        self._group = group

    def whole(self) -> dict[str, Tensor]:
        """Copies of all tables, each whole on every rank. A collective."""
        tables = {}
        for name, shape in self.shapes.items():
            table = torch.zeros(shape)
            for piece in self._pieces[name]:
                _window(table, piece.metadata).copy_(piece.tensor)
            tables[name] = self._group.sum(table)
        return tables

    def load(self, whole: Mapping[str, Tensor]) -> None:
        """Overwrite this rank's pieces from whole tables. Raises ModelError where they do not match."""
        check_fit(self.shapes, whole)
        for name, pieces in self._pieces.items():
            for piece in pieces:
                piece.tensor.copy_(_window(whole[name], piece.metadata))


def _window(tensor: Tensor, metadata: ShardMetadata) -> Tensor:
    for dim, (start, size) in enumerate(zip(metadata.shard_offsets, metadata.shard_sizes, strict=True)):
        tensor = tensor.narrow(dim, start, size)
    return tensor


@contextmanager
def _quiet() -> Iterator[None]:
    """TorchRec's planner warns about topologies and dense estimates that do not matter on CPU, and logs arguments."""
    loggers = [logging.getLogger(name) for name in ("torchrec", "MethodLogger-NullHandler")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

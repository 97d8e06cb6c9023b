"""Embedding tables spread over ranks, the dense part on every rank (Neo, arXiv 2104.05158), through TorchRec.

`Sharding` is what is asked for, `plan_sharding` decides which rank holds what, `shard` builds the model so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingEnv, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from exfm.planner import World, make_planner, quiet
from exfm.ranks import RankGroup

ShardingType = Literal[
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
    "data_parallel",
]


class Sharding(BaseModel):
    """How a model's tables may be spread over its ranks. Results differ by rounding only, whatever is chosen.

    >>> Sharding(tables={"user_id": "row_wise"}).tables["user_id"]
    'row_wise'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    types: tuple[ShardingType, ...] = ("table_wise",)  # what the planner may choose from
    tables: dict[str, ShardingType] = {}  # tables for which it may choose only this one
    memory_gb: float | None = Field(default=None, gt=0)  # per rank, for tables and their optimizer; None: no limit

    def of(self, table: str) -> list[str]:
        """What `table` may be cut by."""
        return [self.tables[table]] if table in self.tables else list(self.types)


class Sharder(EmbeddingBagCollectionSharder):
    """TorchRec's sharder with row-wise on CPU too: it works there, but is offered on CUDA only."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return ["table_wise", "row_wise"]


def planner_of(tables: Iterable[str], sharding: Sharding, world: World) -> EmbeddingShardingPlanner:
    """TorchRec's planner for these tables: what `exfm plan` asks without any ranks is what training asks with them."""
    constraints = {table: ParameterConstraints(sharding_types=sharding.of(table)) for table in tables}
    return make_planner(world, constraints)


def plan_sharding(
    module: nn.Module, tables: list[str], group: RankGroup, sharding: Sharding, batch_rows: int = 2048
) -> ShardingPlan:
    """Where the rows of every table of `module` go; the same plan on all ranks. A collective.

    TorchRec's planner decides by its cost model which rank holds which table. Tables stay whole unless `sharding` says
    otherwise: over gloo row-wise works only while every rank brings the same number of rows to a step.
    """
    world = World(group.world_size, memory_gb=sharding.memory_gb, batch_rows=batch_rows)
    with quiet():
        return planner_of(tables, sharding, world).collective_plan(module, [Sharder()], group.process_group)


def shard(module: nn.Module, plan: ShardingPlan, group: RankGroup) -> DistributedModelParallel:
    """`module` with its embedding collections sharded by `plan` and everything else data-parallel. A collective.

    An optimizer given to the tables by `apply_optimizer_in_backward` becomes FBGEMM's fused one. `module` is taken
    apart: use what is returned.
    """
    with quiet():
        return DistributedModelParallel(
            module,
            env=ShardingEnv.from_process_group(group.process_group),
            device=torch.device("cpu"),
            plan=plan,
            sharders=[Sharder()],
        )


def shard_tables(
    tables: EmbeddingBagCollection, plan: EmbeddingModuleShardingPlan, group: RankGroup
) -> ShardedEmbeddingBagCollection:
    """The tables alone, sharded by their part of a plan, for who only looks up. A collective.

    Nothing is allocated on this rank but its own shards, where `tables` are on the meta device.
    """
    with quiet():
        return Sharder().shard(tables, plan, ShardingEnv.from_process_group(group.process_group), torch.device("cpu"))

"""Sharding of embedding tables by rows and columns over ranks (Neo, arXiv 2104.05158), decided by TorchRec's planner.

`Sharding` (layout.py) is what is asked for, `plan_sharding` decides which rank holds what; `ParallelTables` (tables.py)
are the tables so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.embeddings.composed import Composed, physical, plain
from exfm.embeddings.table import Table
from exfm.errors import ConfigError
from exfm.parallel.comms import codecs
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import GB, RankLayout, Sharding, feature_of
from exfm.parallel.planner import make_planner, quiet_torchrec

MOST_ROWS = 2**31 - 1  # of a table, or a piece of one, in FBGEMM on CPU


class TableGroup(NamedTuple):
    """A group of a model's tables that are looked up together and learn by one optimizer."""

    whole: Sequence[Table | Composed]
    optimizer: SparseOptimizer | None  # None: they do not learn
    called: str = ""  # what messages add to a table's name, where another part has one of the same name

    @property
    def tables(self) -> list[Table]:
        """The plain tables behind them."""
        return physical(self.whole)


NARROWEST = 4
"""Columns of the narrowest piece of a table that is cut by columns."""


class TableSharder(EmbeddingBagCollectionSharder):
    """TorchRec's sharder with all sharding types on CPU too: row-wise types work there, but TorchRec offers them on
    CUDA only."""

    @classmethod
    def of(cls, sharding: Sharding) -> TableSharder:
        return cls(qcomm_codecs_registry=codecs(sharding.comms))

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [
            "data_parallel",
            "table_wise",
            "column_wise",
            "table_column_wise",
            "row_wise",
            "table_row_wise",
            "grid_shard",
        ]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """Kernels for a sharding type: the plain ones only, without caches or storage tiers."""
        return ["dense"] if sharding_type == "data_parallel" else ["fused"]


def sharding_planner(
    parts: Mapping[str, TableGroup], sharding: Sharding, world: RankLayout
) -> EmbeddingShardingPlanner:
    """TorchRec's planner for these tables, the same in `exfm plan` (without any ranks) and in training.

    Parts share the memory of their ranks. A table is spread by the settings of its name, whatever part it is in.

    Raises ConfigError where `sharding` does not suit the tables or their optimizer.
    """
    constraints = {}
    of_key = {
        key: table.name for part in parts.values() for table in part.whole for own in plain(table) for key in own.keys
    }
    names = {feature_of(table.name) for part in parts.values() for table in part.tables}
    sharding.check(names | {*of_key.values()}, None)
    for part in parts.values():
        sharding.check_cuts([table.name for table in part.tables], part.optimizer)
        for table in part.tables:
            if table.width % 4:
                raise ConfigError(f"table `{table.name}` is {table.width} wide; FBGEMM needs a multiple of 4")
            constraints[table.name] = ParameterConstraints(
                sharding_types=cuts_of(table, sharding, world),
                min_partition=NARROWEST,
                pooling_factors=[sharding.ids_per_row.get(of_key[key], 1.0) for key in table.keys],
            )
    return make_planner(world, constraints, {name: part.optimizer for name, part in parts.items()})


def planned_model(parts: Mapping[str, TableGroup]) -> nn.Module:
    """Input of a planner: the tables of all parts, without memory."""
    model = nn.Module()
    for name, part in parts.items():
        model.add_module(name, EmbeddingBagCollection(bag_configs(part.tables), device=torch.device("meta")))
    return model


def bag_configs(tables: Sequence[Table]) -> list[EmbeddingBagConfig]:
    """The tables in TorchRec's words."""
    return [
        EmbeddingBagConfig(name=t.name, embedding_dim=t.width, num_embeddings=t.rows, feature_names=list(t.keys))
        for t in tables
    ]


def cuts_of(table: Table, sharding: Sharding, world: RankLayout) -> list[str]:
    """Sharding types possible for a table of its size; a table with too few rows for every rank stays whole.

    FBGEMM's backward on CPU takes a piece without rows and the table after it for one table of the former's width:
    the latter's other columns learn nothing, and nothing is said.

    Raises ConfigError where no piece would be small enough for FBGEMM to count its rows.

    >>> tiny = Table("day", 7, 4, ("day",))
    >>> [cuts_of(tiny, Sharding(types=("row_wise",)), RankLayout(ranks)) for ranks in (4, 5)]
    [['row_wise'], ['table_wise']]
    """
    over = {"row_wise": world.ranks, "table_row_wise": world.on_a_host, "grid_shard": world.on_a_host}
    cuts = [cut for cut in sharding.of(table.name) if _reaches(table.rows, over.get(cut, 1))] or ["table_wise"]
    countable = [cut for cut in cuts if table.rows <= MOST_ROWS * over.get(cut, 1)]
    if not countable:
        raise ConfigError(
            f"table `{table.name}` has {table.rows} rows, and FBGEMM takes at most {MOST_ROWS} in a piece; "
            f"cut it row_wise over {-(-table.rows // MOST_ROWS)} ranks or more"
        )
    return countable


def _reaches(rows: int, ranks: int) -> bool:
    """True if blocks of ⌈rows / ranks⌉ rows leave no rank without."""
    return (ranks - 1) * -(-rows // ranks) < rows


def plan_sharding(
    parts: Mapping[str, TableGroup], group: RankGroup, sharding: Sharding, batch_rows: int = 2048
) -> ShardingPlan:
    """Plan the rank of every row of a model's tables, by part; the same plan on all ranks.

    A collective. `batch_rows` of a step, over all ranks.

    Raises ConfigError where `sharding` does not suit the tables, their optimizer or the number of ranks, or where all
    parts together do not fit into memory.
    """
    world = sharding.world(group.world_size, "cuda" if group.device.type == "cuda" else "cpu", batch_rows)
    planner = sharding_planner(parts, sharding, world)
    planned: list[ShardingPlan | str] = [""]  # or why there is none: the others would wait for a rank that raises
    if group.rank == 0:
        try:
            with quiet_torchrec():
                planned = [planner.plan(planned_model(parts), [TableSharder.of(sharding)])]
        except PlannerError:
            planned = [does_not_fit(parts.values(), sharding, group.world_size)]
        except Exception as error:
            planned = [f"TorchRec's planner failed: {error!r}"]
    group.broadcast(planned)
    if isinstance(planned[0], str):
        raise ConfigError(planned[0])
    return planned[0]


def table_bytes(table: Table, optimizer: SparseOptimizer | None) -> int:
    """Bytes of weights and accumulators of one table."""
    per_row = table.width + {None: 0, "row_wise_adagrad": 1, "adagrad": table.width}[optimizer]
    return 4 * table.rows * per_row


def does_not_fit(parts: Collection[TableGroup], sharding: Sharding, ranks: int) -> str:
    """Error text for a planner without a plan: the largest table's need, the memory available, remedies."""
    if sharding.memory_gb is None:
        return f"TorchRec's planner found no way to spread the tables over {ranks} ranks by {', '.join(sharding.types)}"
    every = [(table_bytes(table, of.optimizer) / GB, table, of.called) for of in parts for table in of.tables]
    need, largest, called = max(every, key=lambda one: one[0])
    return (
        f"the tables do not fit on {ranks} ranks of {sharding.memory_gb:.3g} GB: the largest, `{largest.name}`{called} "
        f"({largest.rows} rows, may be {' or '.join(sharding.of(largest.name))}), needs {need:.3g} GB, all "
        f"need {sum(one[0] for one in every):.3g} GB and a step's buffers, and there are "
        f"{ranks * sharding.memory_gb:.3g} GB on all ranks. "
        f"Try row_wise for `{largest.name}`, more ranks, a larger memory_gb, or fewer rows"
    )

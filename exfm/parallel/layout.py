"""Settings of sharding: ways to spread tables over ranks, and the ranks themselves. Reading them needs no TorchRec."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.errors import ConfigError

ShardingType = Literal[
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
    "data_parallel",
]
Device = Literal["cpu", "cuda"]
Comms = Literal["fp32", "fp16"]

GB = 10**9
NO_LIMIT = 1 << 50
BY_COLUMNS = frozenset({"column_wise", "table_column_wise", "grid_shard"})


@dataclass(frozen=True)
class RankLayout:
    """The ranks of a sharded model.

    Raises ConfigError for ranks that do not fill their hosts.

    >>> RankLayout(4, ranks_per_host=2).hosts
    2
    """

    ranks: int = 1
    ranks_per_host: int | None = None  # None: all on one host
    device: Device = "cpu"
    memory_gb: float | None = None  # of a rank, for tables, their optimizer and a step's exchange; None: no limit
    batch_rows: int = 2048  # of a step, over all ranks

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.ranks % self.on_a_host:
            raise ConfigError(
                f"{self.ranks} ranks do not fill hosts of {self.on_a_host}; take a multiple of {self.on_a_host} ranks, "
                f"or ranks_per_host that divides {self.ranks}"
            )

    @property
    def on_a_host(self) -> int:
        return self.ranks_per_host or self.ranks

    @property
    def hosts(self) -> int:
        return self.ranks // self.on_a_host

    @property
    def capacity_bytes(self) -> int:
        """Bytes that one rank may use."""
        return NO_LIMIT if self.memory_gb is None else int(self.memory_gb * GB)


def feature_of(table: str) -> str:
    """The feature whose ids read a plain table: its name, or what stands before `~`.

    >>> feature_of("user"), feature_of("user~1")
    ('user', 'user')
    """
    return table.partition("~")[0]


class Sharding(BaseModel):
    """Settings of how a model's tables may be spread over its ranks. Results differ by rounding only, whatever is
    chosen.

    table_wise
        a table whole on one rank;
    row_wise
        its rows over all ranks;
    column_wise
        its columns over ranks, in pieces of at least 4;
    table_row_wise, table_column_wise
        its rows, or its columns, over the ranks of one host;
    grid_shard
        its columns over hosts, the rows of each over the host's ranks;
    data_parallel
        whole on every rank: for small tables, since every step moves all of it.

    A table with too few rows to give some to every rank is left whole (table_wise).

    >>> Sharding(tables={"user_id": "row_wise"}).of("user_id")
    ['row_wise']
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    types: tuple[ShardingType, ...] = Field(
        default=("table_wise",), min_length=1, description="Strategies that the planner may choose from."
    )
    tables: dict[str, ShardingType] = Field(default={}, description="Tables that must be cut by one strategy, by name.")
    memory_gb: float | None = Field(
        default=None,
        gt=0,
        description="Memory of a rank for tables, those of a linear part too, their optimizer and a step's exchange; "
        "null: no limit.",
    )
    comms: Comms = Field(
        default="fp32",
        description="`fp16`: embeddings travel between ranks as float16, and their gradients as bfloat16.",
    )
    ranks_per_host: int | None = Field(
        default=None, gt=0, description="Consecutive ranks that share a host; null: all of them do."
    )
    per_shard_row_wise: bool = Field(
        default=False,
        description="Row-wise AdaGrad may take its mean over the columns of a piece, instead of the whole row.",
    )
    ids_per_row: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={}, description="Mean number of ids in a list column, by table; it affects predicted costs alone."
    )

    def of(self, table: str) -> list[str]:
        """Sharding types allowed for `table`; tables behind a composed one are cut as that is asked to be."""
        asked = self.tables.get(table, self.tables.get(feature_of(table)))
        return list(self.types) if asked is None else [asked]

    def cut_by_columns(self, tables: Iterable[str]) -> dict[str, list[str]]:
        """Tables among `tables` that may be cut by columns, each with its types.

        >>> Sharding(tables={"ad": "grid_shard"}).cut_by_columns(["user", "ad"])
        {'ad': ['grid_shard']}
        """
        return {table: cuts for table in tables if (cuts := sorted(BY_COLUMNS & set(self.of(table))))}

    def world(self, ranks: int, device: Device = "cpu", batch_rows: int = 2048) -> RankLayout:
        """The ranks as the planner sees them. Raises ConfigError if they do not fill their hosts."""
        return RankLayout(ranks, self.ranks_per_host, device, self.memory_gb, batch_rows)

    def check(self, tables: Collection[str], optimizer: SparseOptimizer | None) -> None:
        """Raises ConfigError for tables that do not exist, and for cuts under which `optimizer` is another one."""
        for setting, table in [("tables", t) for t in self.tables] + [("ids_per_row", t) for t in self.ids_per_row]:
            if table not in tables:
                close = difflib.get_close_matches(table, tables, n=3)
                raise ConfigError(
                    f"sharding.{setting} names `{table}`, which is not a table; "
                    + (f"did you mean {', '.join(close)}?" if close else f"choose from {', '.join(sorted(tables))}")
                )
        self.check_cuts(tables, optimizer)

    def check_cuts(self, tables: Collection[str], optimizer: SparseOptimizer | None) -> None:
        """Raises ConfigError for cuts of these tables under which `optimizer` is another one."""
        if optimizer != "row_wise_adagrad" or self.per_shard_row_wise:
            return
        for table, cuts in self.cut_by_columns(tables).items():
            raise ConfigError(
                f"table `{table}` may be cut by columns ({', '.join(cuts)}), where row-wise AdaGrad is another "
                f"optimizer: it would take its mean over the columns of each piece instead of the whole row. Use "
                f"sparse_optimizer: adagrad, which is exact, or accept it with per_shard_row_wise: true"
            )

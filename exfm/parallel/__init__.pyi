from .group import RankGroup
from .layout import BY_COLUMNS, GB, Device, RankLayout, Sharding, ShardingType
from .planner import Hardware, optimizer_bytes, quiet_torchrec, weight_bytes
from .sharding import (
    Tables,
    TableSharder,
    plan_sharding,
    planned_model,
    sharding_planner,
    table_bytes,
)
from .tables import Lookup, ParallelTables, shard_tables, sharded_weights

__all__ = [
    "BY_COLUMNS",
    "GB",
    "Device",
    "Hardware",
    "Lookup",
    "ParallelTables",
    "RankGroup",
    "RankLayout",
    "Sharding",
    "ShardingType",
    "TableSharder",
    "Tables",
    "optimizer_bytes",
    "plan_sharding",
    "planned_model",
    "quiet_torchrec",
    "shard_tables",
    "sharded_weights",
    "sharding_planner",
    "table_bytes",
    "weight_bytes",
]

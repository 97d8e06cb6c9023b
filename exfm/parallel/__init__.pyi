from .alone import TablesAlone, learning_tables
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
from .tables import Gathered, Lookup, ParallelTables, in_order, keys_of, shard_tables, sharded_weights

__all__ = [
    "BY_COLUMNS",
    "GB",
    "Device",
    "Gathered",
    "Hardware",
    "Lookup",
    "ParallelTables",
    "RankGroup",
    "RankLayout",
    "Sharding",
    "ShardingType",
    "TableSharder",
    "Tables",
    "TablesAlone",
    "in_order",
    "keys_of",
    "learning_tables",
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

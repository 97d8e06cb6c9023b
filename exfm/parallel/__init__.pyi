from .group import RankGroup
from .planner import GB, Device, Hardware, World, optimizer_bytes, quiet, weight_bytes
from .sharding import (
    BY_COLUMNS,
    Sharder,
    Sharding,
    ShardingType,
    SparseOptimizer,
    plan_sharding,
    planner_of,
    table_bytes,
)
from .tables import Lookup, ParallelTables, shard_tables, weights_of

__all__ = [
    "BY_COLUMNS",
    "GB",
    "Device",
    "Hardware",
    "Lookup",
    "ParallelTables",
    "RankGroup",
    "Sharder",
    "Sharding",
    "ShardingType",
    "SparseOptimizer",
    "World",
    "optimizer_bytes",
    "plan_sharding",
    "planner_of",
    "quiet",
    "shard_tables",
    "table_bytes",
    "weight_bytes",
    "weights_of",
]

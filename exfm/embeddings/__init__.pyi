from .accumulators import AccumulatorConfig, SparseOptimizer, scale_accumulator
from .tables import (
    bag_configs,
    draw_initial_weights,
    embedding_bags,
    fused_embedding_bags,
    load_table_weights,
    set_table_learning_rate,
    table_accumulators,
    table_weights,
)

__all__ = [
    "AccumulatorConfig",
    "SparseOptimizer",
    "bag_configs",
    "draw_initial_weights",
    "embedding_bags",
    "fused_embedding_bags",
    "load_table_weights",
    "scale_accumulator",
    "set_table_learning_rate",
    "table_accumulators",
    "table_weights",
]

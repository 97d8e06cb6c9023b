from .accumulators import AccumulatorConfig, SparseOptimizer, scale_accumulator
from .quantised import QuantisedTables
from .tables import (
    bag_configs,
    draw_initial_weights,
    embedding_bags,
    fused_embedding_bags,
    load_table_weights,
    look_up,
    set_table_learning_rate,
    table_accumulators,
    table_weights,
)

__all__ = [
    "AccumulatorConfig",
    "QuantisedTables",
    "SparseOptimizer",
    "bag_configs",
    "draw_initial_weights",
    "embedding_bags",
    "fused_embedding_bags",
    "load_table_weights",
    "look_up",
    "scale_accumulator",
    "set_table_learning_rate",
    "table_accumulators",
    "table_weights",
]

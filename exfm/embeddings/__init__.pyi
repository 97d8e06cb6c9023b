from .accumulators import AccumulatorConfig, SparseOptimizer, scale_accumulator
from .fused import FusedTables, Looked
from .quantised import Kind, QuantisedTables
from .tables import (
    bag_configs,
    draw_initial_weights,
    embedding_bags,
    load_table_weights,
    look_up,
    table_weights,
)

__all__ = [
    "AccumulatorConfig",
    "FusedTables",
    "Kind",
    "Looked",
    "QuantisedTables",
    "SparseOptimizer",
    "bag_configs",
    "draw_initial_weights",
    "embedding_bags",
    "load_table_weights",
    "look_up",
    "scale_accumulator",
    "table_weights",
]

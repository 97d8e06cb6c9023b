from .accumulators import AccumulatorConfig, SparseOptimizer, scale_accumulator
from .fused import FusedTables, Looked
from .quantised import Kind, QuantisedTables
from .served import ServedTables, one_id_each
from .tables import bag_configs, embedding_bags
from .weights import draw_initial_weights, load_table_weights, table_weights

__all__ = [
    "AccumulatorConfig",
    "FusedTables",
    "Kind",
    "Looked",
    "QuantisedTables",
    "ServedTables",
    "SparseOptimizer",
    "bag_configs",
    "draw_initial_weights",
    "embedding_bags",
    "load_table_weights",
    "one_id_each",
    "scale_accumulator",
    "table_weights",
]

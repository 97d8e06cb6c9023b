from .accumulators import AccumulatorConfig, SparseOptimizer, scale_accumulator
from .fused import FusedTables, Looked
from .quantised import Kind, QuantisedTables
from .served import ServedTables, one_id_each
from .tables import bag_configs, embedding_bags
from .weights import TableSize, draw_initial_weights, load_table_weights, table_sizes, table_weights

__all__ = [
    "AccumulatorConfig",
    "FusedTables",
    "Kind",
    "Looked",
    "QuantisedTables",
    "ServedTables",
    "SparseOptimizer",
    "TableSize",
    "bag_configs",
    "draw_initial_weights",
    "embedding_bags",
    "load_table_weights",
    "one_id_each",
    "scale_accumulator",
    "table_sizes",
    "table_weights",
]

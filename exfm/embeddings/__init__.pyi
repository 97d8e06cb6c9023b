from .decay import Accumulators, scale
from .tables import (
    accumulators,
    bag_configs,
    copy_tables,
    draw_initial_weights,
    embedding_bags,
    fused_embedding_bags,
    load_weights,
    named_generator,
    set_learning_rate,
    table_weights,
)

__all__ = [
    "Accumulators",
    "accumulators",
    "bag_configs",
    "copy_tables",
    "draw_initial_weights",
    "embedding_bags",
    "fused_embedding_bags",
    "load_weights",
    "named_generator",
    "scale",
    "set_learning_rate",
    "table_weights",
]

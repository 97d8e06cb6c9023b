from .export import Exports
from .tables import columns_to_judge, newest_labelled, stated_tables, table_losses
from .warm import start_warm
from .worker import StudentWorker

__all__ = [
    "Exports",
    "StudentWorker",
    "columns_to_judge",
    "newest_labelled",
    "start_warm",
    "stated_tables",
    "table_losses",
]

from .benchmark import Benchmark, Demand, figure_of, measured
from .catalogue import NAMES, measure
from .figures import Figure, Work, rates
from .limits import machine_figures
from .shape import batches
from .sketches import TablesSketch
from .text import figures_table

__all__ = [
    "NAMES",
    "Benchmark",
    "Demand",
    "Figure",
    "TablesSketch",
    "Work",
    "batches",
    "figure_of",
    "figures_table",
    "machine_figures",
    "measure",
    "measured",
    "rates",
]

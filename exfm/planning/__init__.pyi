from .alternatives import Attempt, Remedy, attempts, remedies
from .family import OVER_FORWARD, equal_flops, flops_per_example, parameters, scaled
from .law import Law, blocks_of, fit_law
from .placement import Cost, Plan, Question, RankLoad, Shortage, TablePlan, plan, size

__all__ = [
    "OVER_FORWARD",
    "Attempt",
    "Cost",
    "Law",
    "Plan",
    "Question",
    "RankLoad",
    "Remedy",
    "Shortage",
    "TablePlan",
    "attempts",
    "blocks_of",
    "equal_flops",
    "fit_law",
    "flops_per_example",
    "parameters",
    "plan",
    "remedies",
    "scaled",
    "size",
]

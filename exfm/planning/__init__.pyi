from .alternatives import Attempt, Remedy, attempt_strategies, find_remedies
from .cost import TRAINING_OVER_FORWARD, flops_per_example, parameter_count
from .family import scaled_teacher, teacher_of_equal_flops
from .law import ScalingLaw, fit_scaling_law, loss_blocks
from .placement import Plan, PlanQuestion, RankLoad, Shortage, StepCost, TablePlan, find_plan, format_bytes

__all__ = [
    "TRAINING_OVER_FORWARD",
    "Attempt",
    "Plan",
    "PlanQuestion",
    "RankLoad",
    "Remedy",
    "ScalingLaw",
    "Shortage",
    "StepCost",
    "TablePlan",
    "attempt_strategies",
    "find_plan",
    "find_remedies",
    "fit_scaling_law",
    "flops_per_example",
    "format_bytes",
    "loss_blocks",
    "parameter_count",
    "scaled_teacher",
    "teacher_of_equal_flops",
]

from .question import Part, ask, question_of
from .report import PlanReport
from .screen import show_plan

__all__ = [
    "Part",
    "PlanReport",
    "ask",
    "question_of",
    "show_plan",
]

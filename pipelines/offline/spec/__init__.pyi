from .arms import ArmSpec, arm_of_line, condition_of_line, nested, with_features
from .conditions import TWIN, Condition, LogitSource, Stored, TeacherSpec
from .span import Span, span_of

__all__ = [
    "TWIN",
    "ArmSpec",
    "Condition",
    "LogitSource",
    "Span",
    "Stored",
    "TeacherSpec",
    "arm_of_line",
    "condition_of_line",
    "nested",
    "span_of",
    "with_features",
]

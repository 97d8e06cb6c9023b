from .refit import MadeWith, feature_changes, fitted_student, fitted_teacher, stored_teacher
from .warm import WarmStart, warm_start

__all__ = [
    "MadeWith",
    "WarmStart",
    "feature_changes",
    "fitted_student",
    "fitted_teacher",
    "stored_teacher",
    "warm_start",
]

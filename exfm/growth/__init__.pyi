from .refit import MadeWith, feature_changes, fitted_student, fitted_teacher, stored_teacher

__all__ = [
    "MadeWith",
    "feature_changes",
    "fitted_student",
    "fitted_teacher",
    "stored_teacher",
]

from .refit import MadeWith, changes, fitted_student, fitted_teacher, stored_teacher

__all__ = [
    "MadeWith",
    "changes",
    "fitted_student",
    "fitted_teacher",
    "stored_teacher",
]

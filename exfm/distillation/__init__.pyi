from .arm import Arm
from .correction import Correction, SeenBatch
from .corrections import Corrections
from .heads import Heads, Slopes, slopes_of
from .loss import Objective, objective, scale_gradient, teacher_part
from .residuals import Residuals
from .terms import Lesson, RowMasks, Terms, terms_of

__all__ = [
    "Arm",
    "Correction",
    "Corrections",
    "Heads",
    "Lesson",
    "Objective",
    "Residuals",
    "RowMasks",
    "SeenBatch",
    "Slopes",
    "Terms",
    "objective",
    "scale_gradient",
    "slopes_of",
    "teacher_part",
    "terms_of",
]

from .arm import Arm
from .correction import Correction, SeenBatch
from .corrections import Corrections
from .lesson import Lesson, RowMasks
from .loss import Objective, objective, scale_gradient
from .residuals import Residuals

__all__ = [
    "Arm",
    "Correction",
    "Corrections",
    "Lesson",
    "Objective",
    "Residuals",
    "RowMasks",
    "SeenBatch",
    "objective",
    "scale_gradient",
]

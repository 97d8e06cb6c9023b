from .arm import Arm
from .correction import Correction, SeenBatch
from .corrections import Corrections
from .loss import Lesson, Objective, RowMasks, objective, scale_gradient

__all__ = [
    "Arm",
    "Correction",
    "Corrections",
    "Lesson",
    "Objective",
    "RowMasks",
    "SeenBatch",
    "objective",
    "scale_gradient",
]

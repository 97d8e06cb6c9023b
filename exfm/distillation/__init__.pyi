from .arm import Arm
from .correction import Correction, Seen
from .corrections import Corrections
from .loss import Lesson, Objective, Rows, objective, scale_gradient

__all__ = [
    "Arm",
    "Correction",
    "Corrections",
    "Lesson",
    "Objective",
    "Rows",
    "Seen",
    "objective",
    "scale_gradient",
]

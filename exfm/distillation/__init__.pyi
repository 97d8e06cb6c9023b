from .arm import Arm
from .correction import Correction, SeenBatch
from .corrections import Corrections
from .loss import Objective, objective, scale_gradient
from .residuals import Residuals
from .targets import RowMasks, Targets

__all__ = [
    "Arm",
    "Correction",
    "Corrections",
    "Objective",
    "Residuals",
    "RowMasks",
    "SeenBatch",
    "Targets",
    "objective",
    "scale_gradient",
]

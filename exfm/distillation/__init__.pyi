from .arm import Arm
from .corrections import Guidance, Lesson
from .loss import Objective, objective, scale_gradient

__all__ = [
    "Arm",
    "Guidance",
    "Lesson",
    "Objective",
    "objective",
    "scale_gradient",
]

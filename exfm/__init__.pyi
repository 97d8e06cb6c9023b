from . import distillation, errors, metrics
from .distillation.arm import Arm
from .distillation.loss import objective, scale_gradient
from .errors import ConfigError, ModelError
from .features.batch import Batch, BatchBuilder
from .features.dense import DenseFeature
from .features.features import FeatureSet, HistoryFeature
from .features.sparse import SequenceFeature, SparseFeature
from .metrics.classification import calibration, metrics_of, normalised_entropy
from .metrics.paired import paired_gain
from .metrics.progressive import Progressive
from .metrics.ranking import auc, gauc
from .models.served import ServedStudent, load_served, save_served
from .models.student import Student
from .models.student_config import StudentConfig
from .models.teacher import Teacher
from .models.teacher_config import TeacherConfig

__version__: str

__all__ = [
    "Arm",
    "Batch",
    "BatchBuilder",
    "ConfigError",
    "DenseFeature",
    "FeatureSet",
    "HistoryFeature",
    "ModelError",
    "Progressive",
    "SequenceFeature",
    "ServedStudent",
    "SparseFeature",
    "Student",
    "StudentConfig",
    "Teacher",
    "TeacherConfig",
    "auc",
    "calibration",
    "distillation",
    "errors",
    "gauc",
    "load_served",
    "metrics",
    "metrics_of",
    "normalised_entropy",
    "objective",
    "paired_gain",
    "save_served",
    "scale_gradient",
]

from . import data, distillation, embeddings, errors, growth, layers, metrics, models, parallel, planning, tensors
from .data import (
    Batch,
    BatchBuilder,
    DenseFeature,
    FeatureSet,
    HistoryFeature,
    SequenceFeature,
    SparseFeature,
)
from .distillation import Arm, objective, scale_gradient
from .errors import ConfigError, ModelError
from .metrics import Progressive, auc, calibration, gauc, metrics_of, normalised_entropy, paired_gain
from .models import (
    ServedStudent,
    Student,
    StudentConfig,
    Teacher,
    TeacherConfig,
    load_served,
    save_served,
)

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
    "data",
    "distillation",
    "embeddings",
    "errors",
    "gauc",
    "growth",
    "layers",
    "load_served",
    "metrics",
    "metrics_of",
    "models",
    "normalised_entropy",
    "objective",
    "paired_gain",
    "parallel",
    "planning",
    "save_served",
    "scale_gradient",
    "tensors",
]

__version__: str

from .batch import Batch, BatchBuilder
from .features import DenseFeature, FeatureSet, HistoryFeature, SequenceFeature, SparseFeature
from .history import Histories, unfit_history
from .sampling import SampledRows, label_shift, label_weights, row_weights, sample_negatives

__all__ = [
    "Batch",
    "BatchBuilder",
    "DenseFeature",
    "FeatureSet",
    "Histories",
    "HistoryFeature",
    "SampledRows",
    "SequenceFeature",
    "SparseFeature",
    "label_shift",
    "label_weights",
    "row_weights",
    "sample_negatives",
    "unfit_history",
]

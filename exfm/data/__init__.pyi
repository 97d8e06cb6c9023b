from .batch import Batch, BatchBuilder
from .features import DenseFeature, FeatureSet, HistoryFeature, SequenceFeature, SparseFeature
from .history import Histories, unfit_history
from .sampled_rows import Sampled, sample
from .sampling import label_shift, label_weights, row_weights

__all__ = [
    "Batch",
    "BatchBuilder",
    "DenseFeature",
    "FeatureSet",
    "Histories",
    "HistoryFeature",
    "Sampled",
    "SequenceFeature",
    "SparseFeature",
    "label_shift",
    "label_weights",
    "row_weights",
    "sample",
    "unfit_history",
]

from .batch import Batch, BatchBuilder
from .features import DenseFeature, FeatureSet, HistoryFeature, SequenceFeature, SparseFeature
from .history import Histories, unfit_history
from .sampling import SampledRows, label_shift, label_weights, row_weights, sample_negatives
from .transforms import bags_of, dense_of, places_of

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
    "bags_of",
    "dense_of",
    "label_shift",
    "label_weights",
    "places_of",
    "row_weights",
    "sample_negatives",
    "unfit_history",
]

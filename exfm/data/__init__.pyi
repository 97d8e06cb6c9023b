from .as_served import AsServed
from .batch import OWN, Batch, BatchBuilder, Single, own_rows_of, snapshot_age
from .dense import LARGEST_INPUT, DenseFeature
from .features import FeatureSet, HistoryFeature
from .history import Histories, HistoryValues, bag_means, bags_in, unfit_history
from .jagged import offsets_of
from .learned_rows import LearnedRows, Whose
from .sampling import SampledRows, label_shift, label_weights, row_weights, sample_negatives
from .sparse import SequenceFeature, SparseFeature
from .statistics import Statistics
from .stretches import Stretches
from .transforms import GOLDEN, bags_of, dense_of, places_of

__all__ = [
    "GOLDEN",
    "LARGEST_INPUT",
    "OWN",
    "AsServed",
    "Batch",
    "BatchBuilder",
    "DenseFeature",
    "FeatureSet",
    "Histories",
    "HistoryFeature",
    "HistoryValues",
    "LearnedRows",
    "SampledRows",
    "SequenceFeature",
    "Single",
    "SparseFeature",
    "Statistics",
    "Stretches",
    "Whose",
    "bag_means",
    "bags_in",
    "bags_of",
    "dense_of",
    "label_shift",
    "label_weights",
    "offsets_of",
    "own_rows_of",
    "places_of",
    "row_weights",
    "sample_negatives",
    "snapshot_age",
    "unfit_history",
]

from .decisions import WORTH, Stakes, choices, decided, worth_of
from .evidence import by_segment, first_miscalibrated, over_windows, power, too_little, watched
from .figures import (
    BySeed,
    Ids,
    JudgedRows,
    by_tenth,
    gain,
    losses,
    mean_over_students,
    metrics,
    over_time,
    own_clusters,
)
from .segments import Columns, segments_of
from .settings import SECOND_HALF, Judging, Ranking
from .summaries import LABELS, counted, labels_learned, limited, own_counts, plain
from .verdict import mark_discoveries, verdicts

__all__ = [
    "LABELS",
    "SECOND_HALF",
    "WORTH",
    "BySeed",
    "Columns",
    "Ids",
    "JudgedRows",
    "Judging",
    "Ranking",
    "Stakes",
    "by_segment",
    "by_tenth",
    "choices",
    "counted",
    "decided",
    "first_miscalibrated",
    "gain",
    "labels_learned",
    "limited",
    "losses",
    "mark_discoveries",
    "mean_over_students",
    "metrics",
    "over_time",
    "over_windows",
    "own_clusters",
    "own_counts",
    "plain",
    "power",
    "segments_of",
    "too_little",
    "verdicts",
    "watched",
    "worth_of",
]

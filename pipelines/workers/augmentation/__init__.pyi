from .scoring_ranks import ScoringWorker
from .worker import AugmentationWorker

__all__ = [
    "AugmentationWorker",
    "ScoringWorker",
]

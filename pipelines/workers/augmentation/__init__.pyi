from .commit import committed_merge, first_state, folder_of_state, states_folder
from .scoring_ranks import ScoringWorker
from .worker import AugmentationWorker

__all__ = [
    "AugmentationWorker",
    "ScoringWorker",
    "committed_merge",
    "first_state",
    "folder_of_state",
    "states_folder",
]

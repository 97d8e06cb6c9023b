from .commit import committed_meta, first_state, folder_of_state, states_folder
from .scoring_ranks import ScoringWorker
from .worker import AugmentationWorker

__all__ = [
    "AugmentationWorker",
    "ScoringWorker",
    "committed_meta",
    "first_state",
    "folder_of_state",
    "states_folder",
]

from .mlflow import Tracker

__all__ = [
    "Tracker",
]

from .mlflow import Tracker
from .registration import Registration, Version, champion_lines, registration_of

__all__ = [
    "Registration",
    "Tracker",
    "Version",
    "champion_lines",
    "registration_of",
]

from .mirror import Mirror, Mirrors, mirror_of
from .mlflow import Tracker
from .registration import Interface, Registration, Version, champion_lines, registration_of

__all__ = [
    "Interface",
    "Mirror",
    "Mirrors",
    "Registration",
    "Tracker",
    "Version",
    "champion_lines",
    "mirror_of",
    "registration_of",
]

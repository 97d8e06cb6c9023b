from .mirror import Mirror, Mirrors, mirror_of, tables_stated
from .mlflow import RegisteredModels, Tracker
from .registration import Interface, Registration, Version, champion_lines, registration_of

__all__ = [
    "Interface",
    "Mirror",
    "Mirrors",
    "RegisteredModels",
    "Registration",
    "Tracker",
    "Version",
    "champion_lines",
    "mirror_of",
    "registration_of",
    "tables_stated",
]

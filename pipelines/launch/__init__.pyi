from .host import Build
from .ray import Handle, Launcher, LocalLauncher, RayLauncher

__all__ = [
    "Build",
    "Handle",
    "Launcher",
    "LocalLauncher",
    "RayLauncher",
]

from .ray import Build, Handle, Launcher, LocalLauncher, RayLauncher

__all__ = [
    "Build",
    "Handle",
    "Launcher",
    "LocalLauncher",
    "RayLauncher",
]

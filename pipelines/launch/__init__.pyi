from .fork_server import ForkServer
from .host import Build
from .preloaded import prepare_to_fork, worker_forks
from .ray import Handle, Launcher, LocalLauncher, RayLauncher

__all__ = [
    "Build",
    "ForkServer",
    "Handle",
    "Launcher",
    "LocalLauncher",
    "RayLauncher",
    "prepare_to_fork",
    "worker_forks",
]

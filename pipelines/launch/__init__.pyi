from .fork_server import ForkServer
from .host import Build
from .local import LocalLauncher
from .preloaded import prepare_to_fork, worker_forks
from .ray import Handle, Launcher, RayLauncher

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

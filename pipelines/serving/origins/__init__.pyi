from .chosen import Follow, origins_of
from .live import LiveOrigin
from .registered import RegisteredOrigin
from .run import RunOrigin
from .wanted import LOOK_EVERY_S, Origin, Wanted

__all__ = [
    "LOOK_EVERY_S",
    "Follow",
    "LiveOrigin",
    "Origin",
    "RegisteredOrigin",
    "RunOrigin",
    "Wanted",
    "origins_of",
]

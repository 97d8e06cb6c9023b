from .app import RequestLimits, Server
from .asked import ARROW, JSON, Asked, Unreadable, asked_in
from .batch import Scored, rows_of, score_file
from .client import Client, Refused
from .logged import LogSettings, ServedLog
from .origins import Follow, Origin, RunOrigin, Wanted, origins_of
from .processes import Serving, http_server, listening, serve
from .shelf import Shelf, open_shelf, shelf_of
from .tables import Tables
from .version import Answer, ServedVersion

__all__ = [
    "ARROW",
    "JSON",
    "Answer",
    "Asked",
    "Client",
    "Follow",
    "LogSettings",
    "Origin",
    "Refused",
    "RequestLimits",
    "RunOrigin",
    "Scored",
    "ServedLog",
    "ServedVersion",
    "Server",
    "Serving",
    "Shelf",
    "Tables",
    "Unreadable",
    "Wanted",
    "asked_in",
    "http_server",
    "listening",
    "open_shelf",
    "origins_of",
    "rows_of",
    "score_file",
    "serve",
    "shelf_of",
]

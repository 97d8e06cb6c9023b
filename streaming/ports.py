"""TCP ports of this machine: find a free one, or the owner of an occupied one."""

from __future__ import annotations

import random
import socket
from contextlib import closing

import psutil

HOST = "127.0.0.1"
EVERYWHERE = ""


def free_port(but: int | None = None) -> int:
    """A free port below the range that the system uses for outgoing connections.

    One of those above may be given away between this call and the moment its taker listens: to any process that
    connects somewhere, or, where the taker is down, to a client that knocks at that very port and so meets itself.
    Chance is the system's: who seeds Python's would have two processes choose alike. Never `but`, which is taken soon.

    >>> 20_000 <= free_port() < 32_768
    True
    """
    for port in random.SystemRandom().sample(range(20_000, 32_768), 100):
        if port != but and occupant(port) is None and occupant(port, EVERYWHERE) is None:
            return port
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        any_port: int = probe.getsockname()[1]
        return any_port


def occupant(port: int, host: str = HOST) -> str | None:
    """Describe the owner of a port of `host`; None if it is free."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            return "the system (it needs privileges)"
        except OSError:
            return _owner(port)
    return None


def _owner(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        pass
    return f"another process (`ss -ltnp 'sport = :{port}'` tells which)"

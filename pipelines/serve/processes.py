"""Server processes, one or several, that share a port: each has its own model store and follows the registry
independently.

The parent only watches: a process that ends is started again, and Ctrl-C or SIGTERM has all of them finish what they
answer. A process whose parent is gone ends.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from exfm.machine import set_threads
from exfm.models.compiled import Packages
from pipelines.core.access import Access
from pipelines.core.run_dir.object_storage import followed, is_elsewhere
from pipelines.serve.app import RequestLimits, Server
from pipelines.serve.logged import LogSettings, ServedLog, check_topic
from pipelines.serve.model_store import open_model_store
from pipelines.serve.protocol import REQUEST_S, PunctualProtocol
from pipelines.serve.sources import Follow, ModelSource, model_sources
from pipelines.serve.tables import TableSettings
from streaming.errors import BadInput

log = logging.getLogger(__name__)

GRACE_S = 5
MOST_AT_ONCE = 256
"""Connections of one process; a further one is answered 503, so that bodies in memory are bounded."""
WATCH_S = 0.5
SHORT_LIFE_S = 2.0
"""A process that lived shorter is started again no sooner than this after it began."""
PRELOADED = ["pipelines.serve.processes", "pipelines.serve.app", "pipelines.serve.model_store", "uvicorn"]
"""What processes are forked with, so that one which dies is there again as soon as its models are read."""


class ServerSettings(NamedTuple):
    """Settings of a server: models, and who may ask it."""

    run_dir: Path | None
    names: tuple[str, ...]
    follow: Follow = "champion"
    access: Access = Access()
    port: int = 8080
    limits: RequestLimits = RequestLimits()
    access_log: bool = True
    tracking_uri: str | None = None
    tables: TableSettings = TableSettings()
    logged: LogSettings | None = None
    compiled: bool = False

    def sources(self) -> list[ModelSource]:
        return model_sources(self.names, self.run_dir, self.follow, self.tracking_uri)


def listening(host: str, port: int) -> socket.socket:
    """A listening socket shared by all processes of a server. Raises BadInput where the port is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror}; give another --port (0: any)") from None
    listener.listen(1024)
    listener.set_inheritable(True)
    return listener


def serve(asked: ServerSettings, processes: int, ready: Callable[[int], None] = lambda port: None) -> None:
    """Serve until SIGINT or SIGTERM. `ready(port)` is called once the port takes requests.

    Raises BadInput where there is no such run, student or model, or the port is taken.
    """
    if asked.follow == "live" and asked.tables.kind != "fp32":
        raise BadInput(f"--follow live serves fp32, and --tables is {asked.tables.kind}; follow champion with those")
    if asked.compiled and asked.tables.kind != "fp32":
        raise BadInput("--compile serves versions of fp32; leave out --tables, or --compile")
    if asked.follow == "live" and is_elsewhere(asked.run_dir):
        raise BadInput("--follow live reads increments where the student trains; on other machines follow champion")
    if asked.logged is not None:
        check_topic(asked.logged)
    sources = asked.sources()  # what cannot be is said here, once
    with listening(asked.access.host, asked.port) as at, followed(asked.run_dir):
        ready(at.getsockname()[1])
        if processes == 1:
            _serve_here(asked, at, sources)
        else:
            for source in sources:
                source.close()
            _several(asked, at, processes)


def _serve_here(asked: ServerSettings, at: socket.socket, sources: Sequence[ModelSource]) -> None:
    """Serve in this process."""
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=form, force=True)
    access = logging.getLogger("exfm.access")
    access.propagate, access.disabled = False, not asked.access_log
    access.addHandler(logging.StreamHandler(sys.stdout))
    server = server_of(asked, sources)
    try:
        http_server(server.app, max_bytes=asked.limits.max_bytes, access=asked.access).run(sockets=[at])
    finally:
        server.close()


def _no_version(model: str, asked: ServerSettings) -> str:
    """
    >>> _no_version("feed", ServerSettings(Path("runs/demo"), (), "champion"))
    'feed: no champion yet in runs/demo: requests are answered 503 until there is one (exfm promote, or the end of the \
run names it); --follow newest serves its last checkpoint'
    """
    where = "the registry" if asked.run_dir is None else asked.run_dir
    ways = {
        "champion": " (exfm promote, or the end of the run names it); --follow newest serves its last checkpoint",
        "candidate": "; --follow newest serves its last checkpoint",
    }
    way = ways.get(asked.follow, ", with the student's first checkpoint")
    return f"{model}: no {asked.follow} yet in {where}: requests are answered 503 until there is one{way}"


def server_of(asked: ServerSettings, sources: Sequence[ModelSource]) -> Server:
    """A server with the current versions, following changes until `close`."""
    model_store = open_model_store(sources, asked.tables, Packages() if asked.compiled else None)
    for model in model_store.missing:
        if model_store.refused(model) is None:
            log.warning("%s", _no_version(model, asked))
    model_store.follow()
    served_log = None if asked.logged is None else ServedLog(asked.logged)
    gc.freeze()  # what was imported stays: no request waits while half a million objects are looked through
    gc.enable()
    return Server(model_store, asked.limits, served_log, asked.access)


def http_server(
    app: Any,
    request_s: float = REQUEST_S,
    max_bytes: int = PunctualProtocol.max_bytes,
    access: Access = Access(),
) -> uvicorn.Server:
    """uvicorn with the settings of `exfm serve`: a bound on connections, `request_s` for a request of `max_bytes` to
    arrive, and the certificate of `access`."""
    set_threads(1)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=type("Protocol", (PunctualProtocol,), {"request_s": request_s, "max_bytes": max_bytes}),
            ws="none",
            ssl_certfile=access.cert,
            ssl_keyfile=access.key,
            access_log=False,
            proxy_headers=False,  # nobody asks who the client is
            log_config=None,  # it would switch loggers on again that are off
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=30,
            limit_concurrency=MOST_AT_ONCE,
        )
    )


def _several(asked: ServerSettings, at: socket.socket, count: int) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    gc.enable()
    over = threading.Event()
    heard = {kind: signal.signal(kind, lambda *_: over.set()) for kind in (signal.SIGINT, signal.SIGTERM)}

    def started() -> tuple[Any, float]:
        process = context.Process(target=_child, args=(asked, at), daemon=True)
        process.start()
        return process, time.monotonic()

    children = [started() for _ in range(count)]
    try:
        while not over.is_set():
            if living := [child.sentinel for child, _ in children if child.is_alive()]:
                connection.wait(living, WATCH_S)
            else:
                over.wait(WATCH_S)
            for place, (child, began) in enumerate(children):
                if not child.is_alive() and time.monotonic() - began > SHORT_LIFE_S and not over.is_set():
                    log.error("process %s ended (%s): another is started", child.pid, child.exitcode)
                    children[place] = started()
    finally:
        for child, _ in children:
            child.terminate()
        for child, _ in children:
            child.join(GRACE_S + 1)
            if child.is_alive():
                child.kill()
        for kind, handler in heard.items():
            signal.signal(kind, handler)


def _child(asked: ServerSettings, at: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to end
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    _serve_here(asked, at, asked.sources())


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)

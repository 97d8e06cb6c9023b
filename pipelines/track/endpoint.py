"""`/metrics` of a run over HTTP, read-only, made of its status.json when it is asked for.

The coordinator serves it from a thread of its own (`tracking.metrics_port`); `exfm metrics RUN --serve PORT` serves the
same of any run, living or not, from a process of its own. A worker is not asked for anything either way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from pipelines.core.access import Access, GuardedServer
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import read_status
from pipelines.track.catalogue import RUN, exposition
from streaming.errors import BadInput, StreamingError

PATH = "/metrics"
PLAIN = "text/plain; charset=utf-8"
IDLE_S = 10.0
"""A connection that asks for nothing is closed after this."""
POLL_S = 0.1
"""So long does `close` take at most."""


def run_exposition(root: Path, accept: str = "") -> tuple[bytes, str]:
    """Prometheus' text of the run in `root`, and its content type.

    Raises BadInput where there is none, or its status is damaged."""
    status = read_status(root)
    try:
        return exposition(RUN, status.as_json(), {"run": status.name}, accept)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{RunDir(root).status} is damaged ({error}); a run that lives writes it anew") from None


class MetricsEndpoint:
    """HTTP server of the metrics of the run in `root`; `port` 0: a free one.

    Raises BadInput where the address cannot be listened on.
    """

    def __init__(self, root: Path, port: int, access: Access = Access()) -> None:
        class Request(BaseHTTPRequestHandler):
            timeout = IDLE_S

            def do_GET(self) -> None:
                if (refusal := access.refusal(self.headers)) is not None:
                    code, body, content_type = refusal[0], f"{refusal[1]}\n".encode(), PLAIN
                else:
                    code, body, content_type = _answer(root, self.path, self.headers.get("Accept", ""))
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: a scrape is no event."""

        self._server = GuardedServer(access, port, Request)

    @property
    def url(self) -> str:
        """Address of the metrics."""
        access = self._server.access
        return f"{access.scheme}://{access.host}:{self._server.port}{PATH}"

    def serve(self) -> None:
        """Serve until `close`, or Ctrl-C."""
        try:
            self._server.serve_forever(poll_interval=POLL_S)
        finally:
            self._server.server_close()

    def close(self) -> None:
        """End `serve`, which runs in another thread."""
        self._server.shutdown()


@contextmanager
def metrics_served(root: Path, port: int | None) -> Iterator[str | None]:
    """Serve the metrics of a run from a thread while the context lasts; gives the address, None without a port.

    Raises BadInput where the port is taken.
    """
    if port is None:
        yield None
        return
    endpoint = MetricsEndpoint(root, port)
    thread = threading.Thread(target=endpoint.serve, name="metrics", daemon=True)
    thread.start()
    try:
        yield endpoint.url
    finally:
        endpoint.close()
        thread.join()


def _answer(root: Path, path: str, accept: str) -> tuple[int, bytes, str]:
    if path.partition("?")[0] != PATH:
        return 404, f"nothing is here; metrics for Prometheus are at {PATH}\n".encode(), PLAIN
    try:
        return 200, *run_exposition(root, accept)
    except StreamingError as error:
        return 503, f"{error}\n".encode(), PLAIN

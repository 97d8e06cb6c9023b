"""Client of a serving process, based on the standard library only: copy it to places without exfm."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any


class Refused(Exception):
    """A refused request: the HTTP `code`, and the reason. `rows`: which rows were at fault, where some were."""

    def __init__(self, code: int, why: str, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(why)
        self.code, self.rows = code, rows


class Client:
    """A persistent connection: `with Client("localhost", 8080) as client: client.predict("feed", rows, context)`.

    `token`: the server's. `tls`: whom to trust, such as `ssl.create_default_context()`; None: no TLS.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = 8080,
        timeout_s: float = 5.0,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connection = (
            http.client.HTTPConnection(host, port, timeout=timeout_s)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
        )
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def predict(
        self, model: str, rows: Sequence[Mapping[str, Any]], context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """`{"model", "version", "predictions"}`, a probability per row and task. `context`: columns that all rows
        share. Raises Refused, or OSError where no server answers."""
        path, body = f"/v1/models/{model}:predict", json.dumps({"rows": list(rows), "context": context or {}})
        try:
            status, text = self._posted(path, body)
        except (http.client.RemoteDisconnected, BrokenPipeError):  # the server let an idle connection go: once more
            status, text = self._posted(path, body)
        if status == 200:
            return dict(json.loads(text))
        plain = {"error": text.decode(errors="replace").strip()}
        reply: dict[str, Any] = json.loads(text) if text[:1] == b"{" else plain
        raise Refused(status, reply["error"], reply.get("refused", ()))

    def _posted(self, path: str, body: str) -> tuple[int, bytes]:
        try:
            self._connection.request("POST", path, body, self._headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()  # an answer is still due on it: the next request takes a new one
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

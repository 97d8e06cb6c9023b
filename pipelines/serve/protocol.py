"""HTTP/1.1 protocol of uvicorn with httptools, plus bounds on every request: a slow or silent client is disconnected
after a time, an endless one at a size.

uvicorn ends a connection that is idle between two requests. One that never sends the rest of its headers, or of a body
that was refused already, it would keep for ever, and a few hundred of those would be all connections there may be.
httptools parses in C what h11 does in Python; unlike h11 it takes headers of any size, so they are counted here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pipelines.serve.prediction_request import JSON

REQUEST_S = 10.0
"""From a request's first byte to its last; a new connection sends its first within this too."""

HEAD_BYTES = 64 << 10
"""At most so many are a request's path and headers."""

CHUNKED = 8
"""A body that comes in chunks of a few bytes is so many times as long on its way."""

TOO_SLOW = b'{"error": "the request did not arrive within %g s; the connection is closed"}\n'


class PunctualProtocol(HttpToolsProtocol):
    """Closes a connection whose request does not arrive within `request_s`, or is far longer than `max_bytes`."""

    request_s = REQUEST_S
    max_bytes = 8 << 20

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._arriving = self._in_head = False
        self._bytes = self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._arriving and self._bytes > (HEAD_BYTES if self._in_head else CHUNKED * (self.max_bytes + HEAD_BYTES)):
            self.transport.close()
        elif self._arriving or not self._answering:
            if self._deadline is None:
                self._arm()
        else:
            self._disarm()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # --- what the parser meets ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._arriving = self._in_head = True
        self._bytes = self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > HEAD_BYTES:
            raise ValueError("the headers are too long")  # the parser stops, and the answer is 400

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._arriving = False
        super().on_message_complete()

    # --- the deadline ------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        self._disarm()
        super().on_response_complete()
        if self._arriving:  # the next request has begun; or this one was refused before all of it had come
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.request_s, self._too_late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        if not self._answering and (self._in_head or not self._arriving):  # no headers yet: nobody else answers
            words = TOO_SLOW % self.request_s
            head = f"HTTP/1.1 408 Request Timeout\r\ncontent-type: {JSON}\r\ncontent-length: {len(words)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + words)
        self.transport.close()

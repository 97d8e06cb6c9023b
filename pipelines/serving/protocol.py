"""HTTP/1.1 as uvicorn speaks it, with an end to every request: a client that sends slowly, or stops, holds a
connection for so long and no longer.

uvicorn ends a connection that is idle between two requests. One that never sends the rest of its headers, or of a body
that was refused already, it would keep for ever, and a few hundred of those would be all connections there may be.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipelines.serving.asked import JSON

REQUEST_S = 10.0
"""From a request's first byte to its last; a new connection sends its first within this too."""

TOO_SLOW = b'{"error": "the request did not arrive within %g s; the connection is closed"}\n'


class PunctualProtocol(H11Protocol):
    """Closes a connection whose request does not arrive within `request_s`."""

    request_s = REQUEST_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._judge()

    def on_response_complete(self) -> None:
        self._disarm()
        super().on_response_complete()
        self._judge()  # the next request may have begun; or this one was refused before all of it had come

    def _judge(self) -> None:
        """Whether the rest of a request is awaited."""
        theirs = self.conn.their_state
        if theirs is h11.SEND_BODY or (theirs is h11.IDLE and self.conn.trailing_data[0]):
            if self._deadline is None:
                self._arm()
        else:
            self._disarm()

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
        if self.conn.our_state is h11.IDLE:  # no headers yet: nobody else answers
            words = TOO_SLOW % self.request_s
            headers = [("content-type", JSON), ("content-length", str(len(words))), ("connection", "close")]
            answer = (h11.Response(status_code=408, headers=headers), h11.Data(data=words), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in answer))
        self.transport.close()

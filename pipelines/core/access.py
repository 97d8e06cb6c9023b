"""Access to a server of ours: the address it listens on, the token of a request, the certificate of the server.

`exfm serve`, `exfm ui` and `exfm metrics --serve` share it. A loopback address (127.0.0.1, ::1, localhost) is reached
from this machine alone, and may do without a token; every other address needs one.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import os
import ssl
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from streaming.errors import BadInput
from streaming.ports import HOST

VARIABLE = "EXFM_TOKEN"
"""The environment variable that holds the token."""
SHORTEST = 16
"""Characters of a token, at least."""
MAKE_ONE = "openssl rand -hex 24"
NO_TOKEN = "a token is needed: the header `Authorization: Bearer TOKEN`, or in a browser once /?token=TOKEN"
NO_HOST = "only requests for 127.0.0.1 and localhost are answered here"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """Access to a server.

    host    the address that it listens on
    token   asked of every request; None: nobody is asked
    cert    a PEM file with its certificate and those that signed it; None: no TLS
    key     a PEM file with the private key; None: it is in `cert`

    Raises BadInput for an address that others reach without a token, a token that is short or no header can hold, and
    a certificate or key that cannot be read or do not fit.

    >>> Access(), Access("0.0.0.0", token="of-sixteen-letters").scheme
    (Access(host='127.0.0.1', cert=None, key=None), 'http')
    """

    host: str = HOST
    token: str | None = field(default=None, repr=False)
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise BadInput(
                f"--host {self.host} lets other machines in, so a token is needed: set {VARIABLE} (make one with "
                f"{MAKE_ONE}), or give --token-file; or leave --host out, and only this machine is let in"
            )
        if self.token is not None:
            if len(self.token) < SHORTEST:
                raise BadInput(f"the token has {len(self.token)} characters, of at least {SHORTEST}; try {MAKE_ONE}")
            if not all(each.isascii() and (each.isalnum() or each in "-_.~") for each in self.token):
                raise BadInput(f"the token may have letters, digits and - _ . ~ only; try {MAKE_ONE}")
        if self.key is not None and self.cert is None:
            raise BadInput("--tls-key is the key of a certificate, and none is given; add --tls-cert")
        self.context()

    @property
    def scheme(self) -> str:
        return "http" if self.cert is None else "https"

    @property
    def only_here(self) -> bool:
        """True if only this machine reaches the address."""
        return is_loopback(self.host)

    def context(self) -> ssl.SSLContext | None:
        """The TLS of a server; None where there is no certificate. Raises BadInput where it cannot be used."""
        if self.cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        what = f"--tls-cert {self.cert}" + ("" if self.key is None else f" with --tls-key {self.key}")
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise BadInput(
                f"{what} cannot be used ({error.reason or error}); give PEM files, of a certificate and of its own key"
            ) from None
        except OSError as error:
            raise BadInput(f"{what} cannot be read: {error.strerror}; give paths of PEM files") from None
        return context

    def admits(self, *tokens: str) -> bool:
        """True if one of the tokens is the right one, or none is asked for. Takes as long for every wrong one."""
        if self.token is None:
            return True
        right = self.token.encode()
        return any([hmac.compare_digest(each.encode(errors="replace"), right) for each in tokens])

    def refusal(self, headers: Message[str, str], *tokens: str) -> tuple[int, str] | None:
        """HTTP code and words of a refused request; None where it is admitted. `tokens`: sent by other ways than the
        header.

        Without a token, requests have to name loopback as their host: no site that a browser of this machine shows can
        then read an answer by a name of its own that it has lead here.
        """
        if self.token is None and self.only_here and not is_loopback(_host(headers.get("Host") or "")):
            return 403, NO_HOST
        if not self.admits(bearer(headers.get("Authorization") or ""), *tokens):
            return 401, NO_TOKEN
        return None


def bearer(header: str) -> str:
    """The token of the header `Authorization`; empty where there is none.

    >>> bearer("Bearer abc"), bearer("bearer  abc"), bearer("Basic abc"), bearer("")
    ('abc', 'abc', '', '')
    """
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def is_loopback(host: str) -> bool:
    """True for a host that only this machine reaches.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("[::1]")
    (True, True, False, True)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def token_from(file: Path | None) -> str | None:
    """The token: the text of a file, else of the environment variable EXFM_TOKEN; None without both.

    Raises BadInput where the file cannot be read.
    """
    if file is None:
        return (os.environ.get(VARIABLE) or "").strip() or None  # a Secret made of a file ends in a newline
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise BadInput(f"--token-file {file} cannot be read: {words}; put the token there ({MAKE_ONE})") from None


class GuardedServer(ThreadingHTTPServer):
    """Server of the standard library for those that `access` lets in; handlers ask `access.refusal`. A thread a
    connection, in which TLS is agreed upon, too, so that a silent client holds nobody up.

    Raises BadInput where the address cannot be listened on.
    """

    daemon_threads = True

    def __init__(self, access: Access, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.access, context = access, access.context()
        try:
            super().__init__((access.host, port), handler)
        except OSError as error:
            words = f"cannot listen on {access.host}:{port}: {error.strerror}"
            raise BadInput(f"{words}; give another port (0: a free one)") from None
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log it at debug level: a connection that was reset is no error of the server."""
        log.debug("a request from %s was not answered", client_address, exc_info=True)


def _host(header: str) -> str:
    """The header `Host` without its port."""
    return header if header.endswith("]") else header.rpartition(":")[0] or header


def _no_password() -> str:
    raise BadInput("the key of --tls-key asks for a password, which nobody is there to give; give a key without one")

"""Lines between rank 0 and each of the other ranks of a worker: messages of several parts, in their order.

A line knows no time-out: a rank may wait for hours for the next message. It fails as soon as the other process is gone,
and `GONE_S` after its machine is.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from streaming.errors import RankLost
from streaming.ports import HOST

KEEPALIVE_S, KEEPALIVES, GONE_S = 30, 3, 120
"""A line that was silent for so long is looked at by the kernel, so many times; no answer for `GONE_S` ends it."""
GREETING_S = 10.0
"""Who connects and does not greet for so long is no rank."""
LOOK_S = 0.05

COUNT = struct.Struct("<I")
GREETING = struct.Struct("<32sII")  # the word of this start, the rank, the number of ranks


class RankLine:
    """A line to another rank, `name` in errors, over a connected socket.

    >>> one, other = (RankLine(end, "the other") for end in socket.socketpair())
    >>> one.send([b"a word", b""])
    >>> [bytes(part) for part in other.receive()]
    [b'a word', b'']
    >>> one.close(); other.receive()
    Traceback (most recent call last):
    streaming.errors.RankLost: the other has left, or is lost
    """

    def __init__(self, connected: socket.socket, name: str) -> None:
        connected.settimeout(None)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a message waits for no other
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is lost says no word
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVES)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * GONE_S)
        self._socket, self._name = connected, name

    def send(self, parts: Sequence[bytes]) -> None:
        """Send one message. It waits where the other does not read; raises RankLost where it is gone."""
        sizes = struct.pack(f"<{len(parts)}Q", *map(len, parts))
        try:
            self._socket.sendall(b"".join([COUNT.pack(len(parts)), sizes, *parts]))
        except OSError as error:
            raise RankLost(f"{self._name} has left, or is lost ({error})") from error

    def receive(self) -> list[memoryview]:
        """Wait for the next message and return its parts. Raises RankLost where the other is gone."""
        (count,) = COUNT.unpack(self._exactly(COUNT.size))
        sizes = struct.unpack(f"<{count}Q", self._exactly(8 * count))
        return list(map(self._exactly, sizes))  # each by itself, so that Arrow finds it aligned

    def _exactly(self, size: int) -> memoryview:
        data, got = memoryview(bytearray(size)), 0
        while got < size:
            try:
                came = self._socket.recv_into(data[got:], flags=socket.MSG_WAITALL)
            except OSError as error:
                raise RankLost(f"{self._name} has left, or is lost ({error})") from error
            if not came:
                raise RankLost(f"{self._name} has left, or is lost")
            got += came
        return data.toreadonly()

    def close(self) -> None:
        self._socket.close()


class Lines:
    """The lines of one rank: of rank 0, which listens at `address:port`, to all others; of another to rank 0.

    word  at most 32 characters that the ranks of this start share, and nobody else knows

    All wait `join_s` for the last of them to come, then TimeoutError is raised.
    """

    def __init__(self, rank: int, ranks: int, address: str, port: int, *, word: str, join_s: float) -> None:
        self.rank, self.ranks = rank, ranks
        end = time.monotonic() + join_s
        if rank == 0:
            self._lines = _answered(ranks, address, port, word.encode(), end)
        else:
            self._lines = {0: _called(address, port, GREETING.pack(word.encode(), rank, ranks), end)}

    def send(self, rank: int, *parts: bytes) -> None:
        """`RankLine.send` to this rank."""
        self._lines[rank].send(parts)

    def receive(self, rank: int) -> list[memoryview]:
        """`RankLine.receive` from this rank."""
        return self._lines[rank].receive()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


def _answered(ranks: int, address: str, port: int, word: bytes, end: float) -> Mapping[int, RankLine]:
    lines: dict[int, RankLine] = {}
    at = HOST if address == HOST else ""  # a machine may be known by an address that none of its interfaces has
    with ExitStack() as failing, socket.create_server((at, port), backlog=ranks) as server:
        while missing := [rank for rank in range(1, ranks) if rank not in lines]:
            server.settimeout(max(LOOK_S, end - time.monotonic()))
            try:
                came, _ = server.accept()
            except TimeoutError:
                words = f"rank {', '.join(map(str, missing))} did not come to {address}:{port} in time"
                raise TimeoutError(words) from None
            rank = _greeting(came, ranks, word)
            if rank is None or rank in lines:
                came.close()
            else:
                lines[rank] = RankLine(came, f"rank {rank}")
                failing.callback(came.close)
        failing.pop_all()
    return lines


def _called(address: str, port: int, greeting: bytes, end: float) -> RankLine:
    while True:
        try:
            connected = socket.create_connection((address, port), timeout=max(LOOK_S, end - time.monotonic()))
            if connected.getsockname() != connected.getpeername():
                break
            connected.close()  # itself: a port of outgoing connections, at which nobody listens yet
        except OSError as error:  # it does not listen yet
            if time.monotonic() > end:
                raise TimeoutError(f"rank 0 did not answer at {address}:{port} in time: {error}") from None
        time.sleep(LOOK_S)
    connected.sendall(greeting)
    return RankLine(connected, "rank 0")


def _greeting(came: socket.socket, ranks: int, word: bytes) -> int | None:
    """The rank that has connected; None if it is none of this start."""
    came.settimeout(GREETING_S)
    said = b""
    with suppress(OSError):
        while len(said) < GREETING.size and (more := came.recv(GREETING.size - len(said))):
            said += more
    if len(said) < GREETING.size:
        return None
    theirs, rank, of = GREETING.unpack(said)
    return rank if (theirs.rstrip(b"\0"), of) == (word, ranks) and 0 < rank < ranks else None

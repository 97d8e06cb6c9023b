"""Lines between rank 0 and each of the other ranks of a worker: messages of several parts, in their order.

A line knows no time-out: a rank may wait for hours for the next message. It fails as soon as the other rank is gone.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence

KEEPALIVE_S = 60
"""A line that was silent for so long is looked at by the kernel."""
GREETING_S = 10.0
"""Who connects and does not greet for so long is no rank."""
LOOK_S = 0.05

COUNT = struct.Struct("<I")
GREETING = struct.Struct("<4sII")  # a word, the rank, the number of ranks
WORD = b"ExFM"


class RankLine:
    """A line to another rank, `name` in errors, over a connected socket.

    >>> one, other = (RankLine(end, "the other") for end in socket.socketpair())
    >>> one.send([b"a word", b""])
    >>> [bytes(part) for part in other.receive()]
    [b'a word', b'']
    >>> one.close(); other.receive()
    Traceback (most recent call last):
    ConnectionError: the other has left, or is lost
    """

    def __init__(self, connected: socket.socket, name: str) -> None:
        connected.settimeout(None)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a message waits for no other
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is lost says no word
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        self._socket, self._name = connected, name

    def send(self, parts: Sequence[bytes]) -> None:
        """Send one message. It waits where the other does not read; raises ConnectionError where it is gone."""
        sizes = struct.pack(f"<{len(parts)}Q", *map(len, parts))
        self._socket.sendall(b"".join([COUNT.pack(len(parts)), sizes, *parts]))

    def receive(self) -> list[memoryview]:
        """Wait for the next message and return its parts. Raises ConnectionError where the other is gone."""
        (count,) = COUNT.unpack(self._exactly(COUNT.size))
        sizes = struct.unpack(f"<{count}Q", self._exactly(8 * count))
        return list(map(self._exactly, sizes))  # each by itself, so that Arrow finds it aligned

    def _exactly(self, size: int) -> memoryview:
        data, got = memoryview(bytearray(size)), 0
        while got < size:
            if not (came := self._socket.recv_into(data[got:], flags=socket.MSG_WAITALL)):
                raise ConnectionError(f"{self._name} has left, or is lost")
            got += came
        return data.toreadonly()

    def close(self) -> None:
        self._socket.close()


class Lines:
    """The lines of one rank: of rank 0, which listens at `address:port`, to all others; of another to rank 0.

    All wait `join_s` for the last of them to come, then TimeoutError is raised.
    """

    def __init__(self, rank: int, ranks: int, address: str, port: int, *, join_s: float) -> None:
        self.rank, self.ranks = rank, ranks
        if rank == 0:
            self._lines = _answered(ranks, address, port, join_s)
        else:
            self._lines = {0: _called(rank, ranks, address, port, join_s)}

    def send(self, rank: int, *parts: bytes) -> None:
        """`RankLine.send` to this rank."""
        self._lines[rank].send(parts)

    def receive(self, rank: int) -> list[memoryview]:
        """`RankLine.receive` from this rank."""
        return self._lines[rank].receive()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


def _answered(ranks: int, address: str, port: int, join_s: float) -> Mapping[int, RankLine]:
    lines: dict[int, RankLine] = {}
    with socket.create_server((address, port), backlog=ranks) as server:
        server.settimeout(join_s)
        while len(lines) < ranks - 1:
            came, _ = server.accept()
            if (rank := _greeting(came, ranks)) is None:
                came.close()
            else:
                lines[rank] = RankLine(came, f"rank {rank}")
    return lines


def _called(rank: int, ranks: int, address: str, port: int, join_s: float) -> RankLine:
    end = time.monotonic() + join_s
    while True:
        try:
            connected = socket.create_connection((address, port), timeout=join_s)
            break
        except OSError as error:  # it does not listen yet
            if time.monotonic() > end:
                raise TimeoutError(f"rank 0 did not answer at {address}:{port} within {join_s:g} s: {error}") from None
            time.sleep(LOOK_S)
    connected.sendall(GREETING.pack(WORD, rank, ranks))
    return RankLine(connected, "rank 0")


def _greeting(came: socket.socket, ranks: int) -> int | None:
    """The rank that has connected; None if it is none of ours."""
    came.settimeout(GREETING_S)
    try:
        said = came.recv(GREETING.size, socket.MSG_WAITALL)
    except OSError:
        return None
    if len(said) < GREETING.size:
        return None
    word, rank, of = GREETING.unpack(said)
    return rank if (word, of) == (WORD, ranks) and 0 < rank < ranks else None

"""Collectives of the ranks of one worker, which are processes that hold one model together.

A round (`Worker.advance`) begins in all ranks with the same orders and ends in all of them after the same step: before
every step rank 0, whose clock decides, says whether another follows. No rank waits in a collective between two rounds,
so the coordinator may take its time there. Inside a round, a rank that hangs makes the others fail after
`COLLECTIVE_S`.

All ranks call every method except `close`, in the same order. With a single rank, each returns its own value. Beside
the collectives they have `lines` between rank 0 and each of the others, on which no time-out runs.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import psutil
import torch

from pipelines.live.workers.lines import Lines
from streaming.ports import free_port

if TYPE_CHECKING:
    from exfm.parallel.group import RankGroup

LOOPBACK = "127.0.0.1"

COLLECTIVE_S = 30.0
JOIN_S = 300.0
"""Time for the slowest rank to start its process and import its libraries."""


@dataclass(frozen=True)
class Rendezvous:
    """Rank of a process within its worker, rank 0's address, and a word that the ranks of this start share."""

    rank: int = 0
    ranks: int = 1
    address: str = LOOPBACK
    port: int | None = None
    word: str = ""


class Ranks:
    """This process among the ranks of its worker. With more than one rank, making it joins the others.

    >>> ranks = Ranks(Rendezvous())
    >>> ranks.all_gather([7, 8]).tolist(), ranks.broadcast(1), ranks.broadcast_text(lambda: "v00000003")
    ([[7, 8]], 1, 'v00000003')
    """

    def __init__(self, at: Rendezvous, collective_s: float = COLLECTIVE_S, *, collectives: bool = True) -> None:
        """`collectives`: else there are the lines only, and of all methods `close`."""
        self.rank, self.count = at.rank, at.ranks
        self.lines: Lines | None = None
        self.group: RankGroup | None = None
        self._texts = self._barriers = 0
        if self.count > 1:
            assert at.port is not None
            self.lines = Lines(at.rank, at.ranks, at.address, at.port, word=at.word, join_s=JOIN_S)
        if self.lines is not None and collectives:
            if at.address != LOOPBACK:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface_towards(at.address))
            from exfm.parallel.group import RankGroup

            self.group = RankGroup(
                at.rank,
                at.ranks,
                master_addr=at.address,
                master_port=_same_port(self.lines),
                timeout_s=collective_s,
                join_s=JOIN_S,
            )

    @property
    def first(self) -> bool:
        """True for rank 0, which decides, and writes shared files."""
        return self.rank == 0

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Σ over ranks, of any shape; integers wrap around at 64 bits."""
        if self.group is None:
            return values
        return self.group.sum(torch.from_numpy(np.ascontiguousarray(values))).numpy()

    def all_gather(self, values: Sequence[int]) -> np.ndarray:
        """The N whole numbers of every rank, (ranks, N)."""
        gathered = np.zeros((self.count, len(values)), np.int64)
        gathered[self.rank] = values
        return self.sum(gathered)

    def broadcast(self, value: int) -> int:
        """Rank 0's value."""
        return int(self.sum(np.array([value if self.first else 0], np.int64))[0])

    def all(self, mine: bool) -> bool:
        """True if it holds on every rank."""
        return bool(self.sum(np.array([mine], np.int64))[0] == self.count)

    def broadcast_text(self, make: Callable[[], str]) -> str:
        """Broadcast rank 0's result of `make`. The others may wait for hours, unlike in a collective."""
        if self.group is None:
            return make()
        self._texts += 1
        if self.first:
            self.group.tell(f"text/{self._texts}", make())
        return self.group.hear(f"text/{self._texts}")

    def barrier(self) -> None:
        """Wait until all ranks have reached this point, however long the slowest takes."""
        if self.group is not None:
            self._barriers += 1
            self.group.tell(f"barrier/{self._barriers}/{self.rank}", "")
            for rank in range(self.count):
                self.group.hear(f"barrier/{self._barriers}/{rank}")

    def shard(self, count: int) -> range:
        """This rank's contiguous shard of `count` items; shard sizes differ by at most one.

        >>> Ranks(Rendezvous()).shard(3)
        range(0, 3)
        """
        return range(self.rank * count // self.count, (self.rank + 1) * count // self.count)

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
        if self.lines is not None:
            self.lines.close()


ALONE = Ranks(Rendezvous())
"""The only rank of a worker."""


def _same_port(lines: Lines) -> int:
    """A free port of rank 0's machine, in all ranks."""
    if lines.rank:
        return int(bytes(lines.receive(0)[0]))
    port = free_port()
    for rank in range(1, lines.ranks):
        lines.send(rank, str(port).encode())
    return port


def interface_towards(address: str) -> str:
    """The network interface that reaches `address`; gloo would choose by the host's name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        mine = probe.getsockname()[0]
    return next(name for name, found in psutil.net_if_addrs().items() if mine in (each.address for each in found))

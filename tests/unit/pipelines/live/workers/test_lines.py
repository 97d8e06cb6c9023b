"""Lines between ranks: who may take one, and what ends it."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress

import pytest

from pipelines.live.workers.lines import GREETING, Lines, RankLine
from streaming.errors import RankLost
from streaming.ports import HOST, free_port
from tests.support.waiting import eventually

WAIT_S = 20.0
RANKS, WORD = 3, "of this start"
OURS = WORD.encode()
STRANGERS = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    GREETING.pack(OURS, 1, RANKS + 1),
    GREETING.pack(OURS, 0, RANKS),
    GREETING.pack(b"of another", 1, RANKS),
    OURS,
]


class Joining:
    """Ranks that join in threads, at a port."""

    def __init__(self):
        self.port, self.lines, self._threads = free_port(), {}, []

    def begin(self, rank):
        self._threads.append(threading.Thread(target=self._join, args=[rank], daemon=True))
        self._threads[-1].start()

    def _join(self, rank):
        self.lines[rank] = Lines(rank, RANKS, HOST, self.port, word=WORD, join_s=WAIT_S)

    def end(self):
        for thread in self._threads:
            thread.join(WAIT_S)
        return self.lines

    def knock(self, words):
        """Connect, as soon as rank 0 listens, and say these words."""
        stranger = eventually(self._connected, lambda: "rank 0 does not listen", look_s=0.01)
        stranger.sendall(words)
        stranger.close()

    def _connected(self):
        with suppress(ConnectionRefusedError):
            return socket.create_connection((HOST, self.port), WAIT_S)


@pytest.fixture
def joining():
    ranks = Joining()
    yield ranks
    for lines in ranks.end().values():
        lines.close()


def assert_all_speak(lines):
    assert sorted(lines) == list(range(RANKS))
    for rank in range(1, RANKS):
        lines[rank].send(0, b"from", bytes([rank]))
        assert [bytes(part) for part in lines[0].receive(rank)] == [b"from", bytes([rank])]


def test_the_others_may_come_before_rank_0_listens(joining):
    for rank in (2, 1):
        joining.begin(rank)
    time.sleep(0.1)  # work: they knock
    joining.begin(0)
    assert_all_speak(joining.end())


def test_lines_are_those_of_the_ranks_whoever_else_connects(joining):
    joining.begin(0)
    for words in STRANGERS:
        joining.knock(words)
    for rank in (1, 2):
        joining.begin(rank)
    assert_all_speak(joining.end())


def test_rank_0_waits_for_the_others_only_so_long():
    with pytest.raises(TimeoutError, match=r"rank 1, 2 did not come to .* in time"):
        Lines(0, RANKS, HOST, free_port(), word=WORD, join_s=0.1)
    with pytest.raises(TimeoutError, match=r"rank 0 did not answer at .* in time: .*refused"):
        Lines(1, RANKS, HOST, free_port(), word=WORD, join_s=0.1)


def test_strangers_do_not_make_rank_0_wait_longer():
    port = free_port()

    def knock():
        while not over.wait(0.05):
            with suppress(OSError), socket.create_connection((HOST, port), 1.0) as stranger:
                stranger.sendall(b"x" * GREETING.size)

    over = threading.Event()
    knocking = threading.Thread(target=knock, daemon=True)
    knocking.start()
    with pytest.raises(TimeoutError):
        Lines(0, RANKS, HOST, port, word=WORD, join_s=0.5)
    over.set()
    knocking.join(WAIT_S)


def test_a_rank_that_is_there_is_not_replaced(joining):
    joining.begin(0)
    joining.begin(1)
    eventually(lambda: 1 in joining.lines, look_s=0.01)
    joining.knock(GREETING.pack(OURS, 1, RANKS))
    joining.begin(2)
    assert_all_speak(joining.end())


@pytest.fixture
def pair():
    lines = [RankLine(end, f"rank {rank}") for rank, end in enumerate(socket.socketpair())]
    yield lines
    for line in lines:
        line.close()


def test_messages_of_any_size_come_whole_and_in_their_order(pair):
    one, other = pair
    large = os.urandom(9 << 20)
    said = [[], [b""], [b"x", large, b""], [large[:5]]]
    sending = threading.Thread(target=lambda: [one.send(parts) for parts in said], daemon=True)
    sending.start()
    for parts in said:
        assert [bytes(part) for part in other.receive()] == parts
    sending.join(WAIT_S)


@pytest.mark.parametrize("said", [b"", (1).to_bytes(4, "little"), (1).to_bytes(4, "little") + bytes([9] + [0] * 7)])
def test_a_rank_that_is_gone_ends_the_wait_in_the_middle_of_a_message_too(said):
    one, other = socket.socketpair()
    line = RankLine(other, "rank 7")
    one.sendall(said)
    one.close()
    with pytest.raises(RankLost, match="rank 7 has left, or is lost"):
        line.receive()
    with pytest.raises(RankLost, match="rank 7 has left, or is lost"):
        line.send([bytes(1 << 20)])
    line.close()

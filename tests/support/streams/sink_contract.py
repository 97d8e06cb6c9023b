"""What every sink is asked for: batches in, each there once however often its writer dies.

A sink says how far it holds everything (`position`), in the same act, or in the same message, that makes a batch
durable. Whoever writes dies at any moment, opens the sink anew, and goes on after that position; what it had written
without knowing is passed over, or refused, but never there twice. So a sink is *durable when `write` returns*, and its
position never runs ahead of what is there.

One contract fits the lake (its position is a row), the tables beside it (the number of a commit) and the examples
topic (a row). Two things are not part of it. *Fencing*: the lake has one writer, kept by an epoch; the others are
written to by that writer alone, after its commit. *Exactly once inside a topic*: Kafka has no act that writes a message
and remembers a number beside it, so the number travels in the headers and a reader passes over what comes twice. A bare
`TopicWriter` numbers nothing; it is what such sinks are made of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest

from streaming.errors import StreamingError

BATCHES = 6


class SinkContract(ABC):
    """Batches are numbered from 0; a subclass says what they are."""

    @abstractmethod
    def open(self) -> Any:
        """The sink as a new process finds it."""

    @abstractmethod
    def write(self, sink: Any, number: int) -> None: ...

    @abstractmethod
    def position(self, sink: Any) -> int:
        """The number of the last batch that `sink` says it holds."""

    @abstractmethod
    def content(self) -> list[int]:
        """The numbers of the batches that are there, in order, one for each time."""

    def close(self, sink: Any) -> None:  # noqa: B027
        """Most hold nothing."""

    def test_what_was_written_is_there_and_known(self):
        sink = self.open()
        assert self.position(sink) == -1
        for number in range(BATCHES):
            self.write(sink, number)
            assert self.position(sink) == number
        self.close(sink)
        assert self.content() == list(range(BATCHES))

    def test_a_writer_that_dies_after_every_batch_goes_on_where_the_sink_says(self):
        for number in range(BATCHES):
            sink = self.open()
            assert self.position(sink) == number - 1
            self.write(sink, number)
            self.close(sink)
        assert self.content() == list(range(BATCHES))

    @pytest.mark.parametrize("again_from", [0, 2])
    def test_writing_again_what_is_there_adds_nothing(self, again_from):
        sink = self.open()
        for number in range(3):
            self.write(sink, number)
        self.close(sink)
        sink = self.open()
        for number in range(again_from, BATCHES):
            try:
                self.write(sink, number)
            except StreamingError:
                assert number <= 2, "a new batch is refused"
        self.close(sink)
        assert self.content() == list(range(BATCHES))

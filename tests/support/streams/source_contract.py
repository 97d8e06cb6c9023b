"""What every source is asked for. A subclass says how to make one, and inherits the questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pytest

from streaming.errors import DataLost
from streaming.messages.source import EndOfStream, Source

PATIENCE = 200
"""How often a source may say that there is nothing yet, before a test gives up on it."""


class SourceContract(ABC):
    """`test_…` sources.py of each kind. The stream that `source` reads holds at least three batches."""

    bounded = True
    """Whether the stream ends; one that does not says None after its last row."""

    @abstractmethod
    def source(self) -> Source[Any, Any]:
        """A new reader, not opened, of the one stream of this test."""

    @abstractmethod
    def rows(self, batch: Any) -> list[Any]:
        """A batch's rows as plain values."""

    @abstractmethod
    def all_rows(self) -> list[Any]:
        """What the stream holds, in order."""

    def lose(self, rows: int) -> Any:
        """Let the stream lose at least its first `rows` rows; skips where it cannot."""
        pytest.skip("nothing can be lost here")

    # how a source is read

    opened: list[Source[Any, Any]]

    @pytest.fixture(autouse=True)
    def _closed_afterwards(self) -> Iterator[None]:
        self.opened = []
        yield
        for source in self.opened:
            source.close()

    def open(self, position: Any = None) -> Source[Any, Any]:
        self.opened.append(self.source())
        self.opened[-1].open(position)
        return self.opened[-1]

    def batch(self, source: Source[Any, Any]) -> Any | None:
        """The next batch, waited for; None at the end, and where an endless stream brings no more."""
        for _ in range(PATIENCE if self.bounded else 5):
            try:
                found = source.next_batch(0.2)
            except EndOfStream:
                return None
            if found is not None:
                return found
        assert not self.bounded, "neither rows nor the end"
        return None

    def rest(self, source: Source[Any, Any]) -> list[Any]:
        found: list[Any] = []
        while (batch := self.batch(source)) is not None:
            found += self.rows(batch)
        return found

    # what is asked

    def test_batches_put_together_are_all_rows_in_order(self):
        assert self.rest(self.open()) == self.all_rows()

    def test_opened_at_the_position_after_any_batch_it_gives_exactly_the_rest(self):
        source, seen, places = self.open(), [], []
        while True:
            places.append((source.position(), len(seen)))
            if (batch := self.batch(source)) is None:
                break
            seen += self.rows(batch)
        assert len(places) > 3
        for position, count in places:
            assert self.rest(self.open(position)) == seen[count:]

    def test_asking_for_the_position_moves_nothing(self):
        source = self.open()
        self.batch(source)
        assert source.position() == source.position()
        again = self.open(source.position())
        assert again.position() == source.position()

    def test_seek_goes_anywhere_forwards_and_backwards(self):
        first, places = self.open(), []
        while (batch := self.batch(first)) is not None:
            places.append((first.position(), self.rows(batch)))
        source = self.open()
        for index in (1, 0, len(places) - 2, 0):
            source.seek(places[index][0])
            following = self.batch(source)
            assert following is not None
            assert self.rows(following)[:1] == places[index + 1][1][:1]
        source.seek(places[0][0])
        assert places[0][1] + self.rest(source) == self.all_rows()

    def test_the_end_is_only_at_the_end_and_stays(self):
        source = self.open()
        self.rest(source)
        for _ in range(2):
            if self.bounded:
                with pytest.raises(EndOfStream):
                    source.next_batch()
            else:
                assert source.next_batch() is None
        again = self.open(source.position())
        assert self.batch(again) is None

    def test_a_position_that_is_gone_is_an_error_that_names_the_gap(self):
        source = self.open()
        while not self.rows(self.batch(source) or []):
            pass
        position = source.position()
        self.lose(len(self.all_rows()) - 1)
        with pytest.raises(DataLost, match=r"lost|deleted|ends at|was read up to|was played for"):
            self.batch(self.open(position))

    def test_closed_twice(self):
        source = self.open()
        self.batch(source)
        source.close()
        source.close()

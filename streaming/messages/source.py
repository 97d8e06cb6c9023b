"""Interface of a source: rows in an immutable order, read from any position.

A source has no memory of its readers. A reader stores the position together with the results of the rows, commits both
at once, and passes the position back after a restart. Nothing is lost or read twice if, and only if, the five verbs
below mean the same for every source, which is what `tests/support/streams/source_contract.py` asks of each.

Rows come in batches. How they are cut into batches is not guaranteed and changes from run to run. Their order is.

    open(None)          from the first row that the source still has
    open(position)      from the row after the last one of the batch before which, or after which, `position()` said so
    next_batch(wait)    the next rows; None: nothing yet; EndOfStream: never again
    position()          what `open` is given to get exactly the rows after the last batch that was handed out
    seek(position)      as if closed and opened there
    close()             let go of everything held; a second time does nothing

Three answers must not be taken for one another. *Nothing yet* is None. *The end* is an exception, so that no `if not
batch` can swallow it. *Away* (no broker answers) is None for as long as the source's patience lasts, with `reachable`
false, then BrokerAway; it is never the end, and never a reason to believe that nothing was sent.

Rows that the source no longer has are an error which names the gap (DataLost), at `open`, at `seek`, or at the latest
with the batch that would have skipped them: a source never continues after a gap by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Generic, Self, TypeVar

from streaming.messages.message import RawMessage
from streaming.position import Partition, Positions

Place = TypeVar("Place")
Batch = TypeVar("Batch")


class EndOfStream(Exception):
    """End of a bounded stream: no row will ever follow. Not an error: it is how a bounded stream is over."""


class Source(ABC, Generic[Place, Batch]):
    """Rows in order; the module docstring has the contract. One thread at a time."""

    @abstractmethod
    def open(self, position: Place | None = None) -> None:
        """Start reading at `position`. Raises DataLost for a position that the source does not have (any more)."""

    @abstractmethod
    def next_batch(self, max_wait_s: float = 0.0) -> Batch | None:
        """The next rows, waiting at most about `max_wait_s`; None if there are none yet.

        Raises EndOfStream at the end (and again whenever it is asked), BrokerAway when patience has run out,
        DataLost for a gap."""

    @abstractmethod
    def position(self) -> Place:
        """Position of a restart: after the last batch returned. Never before that of an earlier call, except by
        `seek`."""

    @abstractmethod
    def seek(self, position: Place) -> None:
        """Continue from `position` instead, forwards or backwards."""

    def close(self) -> None:
        """Release all resources. May be called twice, and after any failure."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MessageSource(Source[Positions, list[RawMessage]]):
    """Messages of several partitions, each in the order of its offsets; the input of `Intake`.

    A partition ends at its end marker, which is not handed out, or at an offset that was given for its end; what
    follows is left alone. A source of live topics hands its markers out, and continues after them. The source ends when
    all of its partitions have. `open` reads a partition that is not in the positions from its beginning; a row inside a
    message is the caller's to find, since reading starts with the whole message.
    """

    partitions: tuple[Partition, ...]
    reachable: bool
    """False while no answer comes: nothing is known then, above all not that nothing was sent."""

    def expect(self, epochs: Mapping[Partition, int]) -> None:
        """Expect these newest leader epochs (`RawMessage.leader_epoch`) before the positions; call before `open` and
        `seek`. A source that knows epochs raises DataLost where it has been replaced since."""

    @abstractmethod
    def next_batch(
        self, max_wait_s: float = 0.0, *, max_messages: int = 500, only: Collection[Partition] | None = None
    ) -> list[RawMessage] | None:
        """The next messages, like every source's; `only` restricts this call to some partitions."""

    @property
    @abstractmethod
    def ended(self) -> Collection[Partition]:
        """Partitions whose end was reached."""

    @property
    def marked(self) -> Collection[Partition]:
        """Partitions that ended with a marker."""
        return ()

    @abstractmethod
    def at_end(self, partition: Partition, max_age_s: float = 0.25) -> bool:
        """True if the broker confirmed within `max_age_s` that nothing follows the messages returned so far.

        An answer that does not come means False: an absent broker is not the end of a topic."""

    @property
    def undecided(self) -> Collection[Partition]:
        """Partitions read up to an open transaction, thus not at their end."""
        return ()

    @abstractmethod
    def behind(self) -> dict[Partition, int]:
        """Number of messages still to be read of each partition; as of the last answer while the broker is away."""

    def commit_for_display(self, positions: Positions) -> None:
        """Publish positions to monitors of the broker. Never read back."""

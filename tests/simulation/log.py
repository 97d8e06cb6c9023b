"""The log of a partition in memory: records, transactions that are open or aborted, and an unclean election."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Record:
    """What a partition holds at an offset. `truth` is what the message was made of, which only the judge reads."""

    value: bytes
    key: bytes | None = None
    timestamp: int = -1
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    truth: Any = None
    transaction: int | None = None
    control: bool = False
    """A transaction's marker: no message."""
    aborts: bool = False
    epoch: int = 0
    offset: int = -1
    seen: int = 0
    """The how-manieth it was that readers of committed messages could see, of all partitions; `seen_s`: when."""
    seen_s: float = 0.0
    timestamp_type: int = 0
    checksum: int | None = None

    @property
    def size_in_bytes(self) -> int:
        return len(self.value)

    @property
    def abort(self) -> bool:
        return self.aborts

    def validate_crc(self) -> bool:
        return True


class Log:
    """One partition: its records, where it begins, which of its transactions are open."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.begin = 0
        self.first = 0
        """What was deleted before it was there for the run."""
        self.undone = False
        """Whether an election took back that messages were committed, and left them. A reader cannot see that: where
        it reads on, nothing is missing."""
        self.epoch = 0
        self.epoch_began = {0: 0}
        self.open: dict[int, int] = {}  # transaction -> its first offset
        self.aborted: dict[int, int] = {}

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.records)

    @property
    def stable_end(self) -> int:
        """Before it, everything is decided."""
        return min(self.open.values(), default=self.end)

    def append(self, record: Record) -> int:
        record.offset, record.epoch = self.end, self.epoch
        if record.transaction is not None and not record.control:
            self.open.setdefault(record.transaction, record.offset)
        self.records.append(record)
        return record.offset

    def decide(self, transaction: int, *, commit: bool) -> None:
        first = self.open.pop(transaction, None)
        if first is None:
            return
        if not commit:
            self.aborted[transaction] = first
        self.append(Record(b"", transaction=transaction, control=True, aborts=not commit))

    def truncate(self, to: int) -> None:
        """An unclean election: a replica that lacks the end becomes the leader."""
        self.epoch += 1
        committed = {r.transaction for r in self.records[to:] if r.control and not r.aborts}
        self.undone |= any(r.transaction in committed for r in self.records[:to] if not r.control)
        del self.records[to:]
        self.epoch_began[self.epoch] = to
        self.open = {t: first for t, first in self.open.items() if first < to}
        self.aborted = {t: first for t, first in self.aborted.items() if first < to}
        for record in self.records:  # a marker that was lost leaves its transaction open: it is aborted in the end
            if record.transaction is not None and not record.control and not self._decided(record.transaction):
                self.aborted.pop(record.transaction, None)
                self.open.setdefault(record.transaction, record.offset)

    def _decided(self, transaction: int) -> bool:
        return any(r.control and r.transaction == transaction for r in self.records)

    def end_of_epoch(self, epoch: int) -> int:
        later = [began for number, began in self.epoch_began.items() if number > epoch]
        return min(later, default=self.end)

    def visible(self) -> list[Record]:
        """What a reader of committed messages is given, markers left out."""
        return [
            r for r in self.records[self.first : self.stable_end] if not r.control and r.transaction not in self.aborted
        ]

"""Accounting of every offset of every input partition.

    position − begin = messages + without rows + end markers + records of transactions

`begin` is where the run began to read the partition, `position` the place after its last row that was handed on. The
source vouches for each offset that brought no message (DataLost otherwise); the rows of the messages are compared with
those that settlement counted. The last messages before `position` are kept as fingerprints: so the place is found again
in a copy of the topic (`moving`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from streaming.errors import DataLost
from streaming.messages.codecs import Decoded
from streaming.messages.dead_letters import Kind
from streaming.messages.fingerprint import TRAIL, Fingerprint, digest_of
from streaming.messages.message import RawMessage, is_end_marker
from streaming.position import Partition, Positions, SourcePosition


@dataclass
class OffsetCounts:
    """Counts of offsets by content; `rows` are those handed on, including dead letters."""

    offsets: int = 0
    messages: int = 0
    rows: int = 0
    without_rows: int = 0
    end_markers: int = 0
    transaction_records: int = 0

    def __add__(self, other: OffsetCounts) -> OffsetCounts:
        return OffsetCounts(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


class _Read(NamedTuple):
    """Messages in order: their offsets, the rows of each, which are end markers, timestamps, and digests."""

    offsets: np.ndarray
    rows: np.ndarray
    markers: np.ndarray
    times: np.ndarray
    digests: np.ndarray

    def fingerprints(self, of: slice) -> list[Fingerprint]:
        columns = (column[of].tolist() for column in (self.offsets, self.times, self.digests))
        return [Fingerprint(*each) for each in zip(*columns, strict=True)]


@dataclass
class _Account:
    """One partition: what was passed, where the next offset is, what was read ahead of that, and the last messages
    passed."""

    at: SourcePosition
    passed: OffsetCounts = field(default_factory=OffsetCounts)
    ahead: deque[_Read] = field(default_factory=deque)
    passed_last: list[Fingerprint] = field(default_factory=list)

    @property
    def trail(self) -> list[Fingerprint]:
        """The last messages before the position, and the one in which it lies."""
        trail = [each for each in self.passed_last if each.offset < self.at.offset + (self.at.row > 0)]
        begun = self.ahead[0].fingerprints(slice(1)) if self.at.row and self.ahead else []
        return [*(each for each in trail if not begun or each.offset < begun[0].offset), *begun][-TRAIL:]

    def move_to(self, position: SourcePosition) -> None:
        if position <= self.at:
            return
        while self.ahead and (stop := int(np.searchsorted(self.ahead[0].offsets, position.offset))):
            read = self.ahead[0]
            self._pass(_Read(*(column[:stop] for column in read)))
            if stop < len(read.offsets):
                self.ahead[0] = _Read(*(column[stop:] for column in read))
                break
            self.ahead.popleft()
        self.passed.offsets += position.offset - self.at.offset
        self.passed.transaction_records += position.offset - self.at.offset  # but for messages: see `_pass`
        self.passed.rows += position.row - self.at.row
        self.at = position

    def _pass(self, read: _Read) -> None:
        passed, markers = self.passed, int(read.markers.sum())
        brought = int((read.rows > 0).sum())
        passed.messages += brought
        passed.rows += int(read.rows.sum())
        passed.end_markers += markers
        passed.without_rows += len(read.offsets) - brought - markers
        passed.transaction_records -= len(read.offsets)
        last = read.fingerprints(slice(-TRAIL, None))
        self.passed_last = [*(each for each in self.passed_last if each.offset < last[0].offset), *last][-TRAIL:]


class OffsetAccounts:
    """Accounts of all input partitions, in step with a merge.

    >>> from streaming.messages.codecs import make_codec
    >>> from streaming.schema import RowSchema, Task
    >>> ads = Partition("ads", 0)
    >>> accounts = OffsetAccounts({ads: "impression"})
    >>> accounts.open(None, {ads: SourcePosition(0)})
    >>> row = b'{"impression_id": 5, "event_time_ms": 9, "vertical": "a"}'
    >>> messages = [RawMessage("ads", 0, offset, 10, None, row) for offset in (0, 1, 4)]
    >>> codec = make_codec("json", "impression", RowSchema(columns=[], tasks=[Task(name="ctr", window_s=60)]))
    >>> accounts.read(ads, messages, codec.decode(messages))
    >>> accounts.move_to({ads: SourcePosition(5)})
    >>> accounts.counts("impression")["transaction_records"], accounts.counts("impression")["rows"]
    (2, 3)
    """

    def __init__(self, partitions: Mapping[Partition, Kind]) -> None:
        self._kinds = dict(partitions)
        self._accounts: dict[Partition, _Account] = {}
        self._rows_before: dict[str, int] = {}

    def open(
        self,
        state: Mapping[str, Any] | None,
        positions: Positions,
        rows_before: Mapping[Kind, int] | None = None,
    ) -> None:
        """Continue at `positions`, with the accounts of `state` if it has some. `rows_before`: rows that were read
        before accounts were kept."""
        self._accounts = {p: _Account(positions.get(p, SourcePosition(0))) for p in self._kinds}
        before: Mapping[Any, int] = (rows_before or {}) if state is None else state["rows_before"]
        self._rows_before = dict(before)
        for topic, partition, offset, row, *passed in [] if state is None else state["partitions"]:
            at = SourcePosition(offset, row)
            self._accounts[Partition(topic, partition)] = _Account(at, OffsetCounts(*passed))
        for topic, partition, trail in [] if state is None else state.get("trails", []):
            self._accounts[Partition(topic, partition)].passed_last = [Fingerprint(*each) for each in trail]

    def state(self) -> dict[str, Any]:
        """The state as JSON, for the positions of the last `move_to`."""
        accounts = self._accounts.items()
        return {
            "rows_before": self._rows_before,
            "partitions": [
                [*partition, *account.at, *vars(account.passed).values()] for partition, account in accounts
            ],
            "trails": [[*partition, [list(each) for each in account.trail]] for partition, account in accounts],
        }

    def read(self, partition: Partition, messages: Sequence[RawMessage], decoded: Decoded) -> None:
        """Account for messages of one partition, in order, and their decoded rows."""
        offsets = np.array([message.offset for message in messages], np.int64)
        markers = np.array([not message.value and is_end_marker(message) for message in messages], bool)
        of_rows = decoded.batch.column("source_offset").to_numpy()
        of_dead = np.array([letter.offset for letter in decoded.dead], np.int64)
        # Offsets ascend, so a search gives the message of every row and letter; counted, the rows of every message.
        owners = np.searchsorted(offsets, np.concatenate([of_rows, of_dead]))
        rows = np.bincount(owners, minlength=len(offsets))
        times = np.array([message.timestamp_ms for message in messages], np.int64)
        digests = np.array([digest_of(message) for message in messages], np.int64)
        new = offsets >= self._accounts[partition].at.offset
        if new.any():  # an empty one would stand at the head for ever
            read = _Read(offsets, rows, markers, times, digests)
            self._accounts[partition].ahead.append(_Read(*(column[new] for column in read)))

    def move_to(self, positions: Positions) -> None:
        """Record that all rows before `positions` have been handed on."""
        for partition, position in positions.items():
            self._accounts[partition].move_to(position)

    def end(self, partition: Partition, offset: int, *, marked: bool) -> None:
        """Record that a partition has ended at `offset` and all of its rows have been handed on. `marked`: by an end
        marker, which lies there."""
        account = self._accounts[partition]
        if account.at.offset <= offset:
            account.move_to(SourcePosition(offset + marked))
            account.passed.transaction_records -= marked
            account.passed.end_markers += marked

    def counts(self, kind: Kind) -> dict[str, int]:
        """Counts over all partitions of one kind; `rows_before` are rows that were read before accounts were kept."""
        accounts = [self._accounts[p].passed for p, each in self._kinds.items() if each == kind]
        return vars(sum(accounts, OffsetCounts())) | {"rows_before": self._rows_before.get(kind, 0)}

    def check(self, rows_read: Mapping[Kind, int]) -> None:
        """Compare with independently counted rows of each kind. Raises DataLost where they differ."""
        for kind, rows in rows_read.items():
            counts = self.counts(kind)
            if counts["rows"] + counts["rows_before"] != rows:
                raise DataLost(
                    f"the messages of {kind} topics up to here hold {counts['rows'] + counts['rows_before']:,} rows, "
                    f"and {rows:,} were counted ({counts}): rows were lost or read twice; this is a bug "
                    "in ExFM: keep the run directory, report it, and resume from a copy"
                )

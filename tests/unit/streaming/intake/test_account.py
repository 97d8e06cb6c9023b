"""Accounting by offsets: each is a message, an end marker or a record of a transaction, and messages hold rows."""

from __future__ import annotations

import pytest

from streaming.errors import DataLost
from streaming.intake.account import OffsetAccounts
from streaming.messages.codecs import make_codec
from streaming.messages.message import END_HEADER, RawMessage
from streaming.position import Partition, SourcePosition
from streaming.schema import RowSchema, Task

ADS, CLICKS = Partition("ads", 0), Partition("clicks", 0)
SCHEMA = RowSchema(columns=[], tasks=[Task(name="ctr", window_s=60)])
ROW = b'{"impression_id": 5, "event_time_ms": 9, "vertical": "a"}'


def messages(*offsets: int, value: bytes = ROW, headers=()) -> list[RawMessage]:
    return [RawMessage("ads", 0, offset, 10, None, value, headers) for offset in offsets]


def read(accounts: OffsetAccounts, found: list[RawMessage]) -> None:
    accounts.read(ADS, found, make_codec("json", "impression", SCHEMA).decode(found))


@pytest.fixture
def accounts():
    opened = OffsetAccounts({ADS: "impression", CLICKS: "feedback"})
    opened.open(None, {ADS: SourcePosition(10), CLICKS: SourcePosition(0)})
    return opened


def counted(accounts, **expected: int) -> bool:
    counts = accounts.counts("impression")
    return {name: counts[name] for name in expected} == expected


def test_gaps_are_records_of_transactions_and_refused_rows_are_rows(accounts):
    read(accounts, messages(10, 11) + messages(12, value=b"{") + messages(15))
    accounts.move_to({ADS: SourcePosition(13)})
    assert counted(accounts, offsets=3, messages=3, rows=3, transaction_records=0)
    accounts.move_to({ADS: SourcePosition(16)})
    assert counted(accounts, offsets=6, messages=4, rows=4, transaction_records=2)
    accounts.check({"impression": 4, "feedback": 0})
    with pytest.raises(DataLost, match="hold 4 rows, and 3 were counted"):
        accounts.check({"impression": 3})


def test_messages_that_were_all_passed_before_hold_nothing_up(accounts):
    read(accounts, messages(7, 8))
    read(accounts, messages(10, 11))
    accounts.move_to({ADS: SourcePosition(12)})
    assert counted(accounts, offsets=2, messages=2, rows=2, transaction_records=0)
    accounts.check({"impression": 2, "feedback": 0})


def test_a_marker_in_a_live_stream_is_counted(accounts):
    read(accounts, messages(10) + messages(11, value=b"", headers=((END_HEADER, b"1"),)) + messages(12))
    accounts.move_to({ADS: SourcePosition(13)})
    assert counted(accounts, offsets=3, messages=2, end_markers=1, transaction_records=0)


def test_the_end_of_a_partition_counts_its_marker_and_what_lies_before_it_once(accounts):
    read(accounts, messages(10))
    for _ in range(2):
        accounts.move_to({ADS: SourcePosition(11)})
        accounts.end(ADS, 13, marked=True)
        assert counted(accounts, offsets=4, messages=1, end_markers=1, transaction_records=2)
    again = OffsetAccounts({ADS: "impression", CLICKS: "feedback"})
    again.open(accounts.state(), {ADS: SourcePosition(11), CLICKS: SourcePosition(0)})
    again.end(ADS, 13, marked=True)
    assert again.counts("impression") == accounts.counts("impression")


def test_a_message_may_be_half_handed_on_at_a_restart(accounts):
    batch = make_codec("arrow", "impression", SCHEMA)
    table = make_codec("json", "impression", SCHEMA).decode(messages(*range(8))).batch.select(SCHEMA.impression.names)
    message = messages(10, value=batch.encode(table)[0])
    accounts.read(ADS, message, batch.decode(message))
    accounts.move_to({ADS: SourcePosition(10, 3)})
    assert counted(accounts, offsets=0, messages=0, rows=3)
    again = OffsetAccounts({ADS: "impression", CLICKS: "feedback"})
    again.open(accounts.state(), {ADS: SourcePosition(10, 3), CLICKS: SourcePosition(0)})
    again.read(ADS, message, batch.decode(message))
    again.move_to({ADS: SourcePosition(10, 5)})
    assert counted(again, offsets=0, rows=5)
    again.move_to({ADS: SourcePosition(11)})
    assert counted(again, offsets=1, messages=1, rows=8)


def test_rows_from_before_accounts_were_kept_are_known(accounts):
    late = OffsetAccounts({ADS: "impression", CLICKS: "feedback"})
    late.open(None, {ADS: SourcePosition(10, 2), CLICKS: SourcePosition(0)}, {"impression": 70, "feedback": 5})
    late.check({"impression": 70, "feedback": 5})
    batch = make_codec("json", "impression", SCHEMA).decode(messages(10))
    late.read(ADS, messages(10), batch)
    assert late.counts("impression")["rows_before"] == 70

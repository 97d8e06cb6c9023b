"""Dead letters and late feedback beside the lake: each row once, whenever the worker dies."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from streaming.errors import BadInput, DataLost
from streaming.lake.delta.files import TableFiles
from streaming.lake.side_tables import DEAD_LETTERS, SideTable, side_rows
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from streaming.schema import POSITION_FIELDS


def letters(*offsets: int) -> pa.RecordBatch:
    return letters_to_batch(
        [DeadLetter("impression", "undecodable", "ads", 0, offset, 0, "", b"?") for offset in offsets]
    )


def offsets(table: SideTable) -> list[int]:
    return sorted(pa.table(DeltaTable(table.path).to_pyarrow_table())["source_offset"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> SideTable:
    return SideTable(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA)


def test_a_number_delivered_again_adds_nothing_even_with_other_rows(table: SideTable) -> None:
    assert table.append(letters(5, 2), number=0) == 2
    assert table.append(letters(5, 2, 9), number=0) == 0
    assert offsets(table) == [2, 5]


def test_what_was_stored_is_known_after_a_restart(table: SideTable, tmp_path: Path) -> None:
    table.append(letters(5), number=3)
    again = SideTable(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    assert again.append(letters(5), number=3) == 0
    assert again.append(letters(6), number=4) == 1


def test_rows_of_lower_positions_may_come_later(table: SideTable) -> None:
    """Feedback that waited for its impression is late after newer feedback was."""
    table.append(letters(100), number=0)
    assert table.append(letters(50), number=1) == 1


def test_nothing_to_store_makes_no_commit(table: SideTable) -> None:
    version = DeltaTable(table.path).version()
    table.append(letters(), number=0)
    assert DeltaTable(table.path).version() == version


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    SideTable(tmp_path, "x", pa.schema(POSITION_FIELDS))
    with pytest.raises(BadInput):
        SideTable(tmp_path, "x", DEAD_LETTER_SCHEMA)


# --- a power cut while the table is made


def first_entry(table: SideTable) -> Path:
    return table.path / "_delta_log" / f"{0:020d}.json"


def test_a_new_table_is_on_the_disk_before_anything_relies_on_it(tmp_path: Path, monkeypatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.readlink(f"/proc/self/fd/{file}")))
    table = SideTable(tmp_path / "lake", DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    entry = first_entry(table)
    assert {str(path) for path in (entry, entry.parent, table.path, table.path.parent, tmp_path)} <= {*flushed}


@pytest.mark.parametrize("lines", [0, 0.5, 1, 2, 2.5])
def test_a_first_entry_cut_short_is_made_again_and_said(table: SideTable, tmp_path, caplog, lines: float) -> None:
    entry = first_entry(table)
    text = entry.read_bytes().splitlines(keepends=True)
    whole, half = int(lines), lines % 1
    entry.write_bytes(b"".join(text[:whole]) + text[whole][: round(half * len(text[whole]))])
    assert side_rows(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA, limit_rows=5).num_rows == 0
    with pytest.raises(BadInput, match=r"no table at .*: the machine stopped while it was being made"):
        TableFiles(table.path)
    again = SideTable(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    assert f"{entry} was cut short while its table was being made, which held nothing: made again" in caplog.text
    assert again.append(letters(5), number=0) == 1
    assert offsets(again) == [5]


def test_a_first_entry_cut_short_of_a_table_with_rows_is_named(table: SideTable, tmp_path: Path) -> None:
    table.append(letters(5), number=0)
    first_entry(table).write_bytes(b"")
    with pytest.raises(DataLost, match=r"the first log entry .*0000\.json is cut short"):
        SideTable(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    first_entry(table).with_name(f"{1:020d}.json").unlink()
    with pytest.raises(DataLost, match=r"the first log entry .*0000\.json is cut short"):
        SideTable(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    assert list(table.path.glob("*.parquet"))


def test_an_empty_newest_entry_is_named(table: SideTable, tmp_path: Path) -> None:
    table.append(letters(5), number=0)
    first_entry(table).with_name(f"{1:020d}.json").write_bytes(b"")
    with pytest.raises(DataLost, match=r"the newest log entry .*0001\.json is cut short"):
        SideTable(tmp_path, DEAD_LETTERS, DEAD_LETTER_SCHEMA)

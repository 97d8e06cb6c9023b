"""Dead letters and late feedback beside the lake: each row once, whenever the worker dies."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from streaming.errors import BadInput
from streaming.lake import DEAD_LETTERS, SideTable
from streaming.messages import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
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

"""What a reader follows from entry to entry of the log is what Delta itself says of the table."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from streaming.errors import StreamingError
from streaming.lake import retention
from streaming.lake.delta.files import TableFiles
from streaming.lake.housekeeping import Housework, compact_table, lay_out
from streaming.lake.reader import LakeReader
from streaming.lake.settings import LakeSettings
from streaming.lake.writer import LakeTable, LakeWriter
from tests.support.streams.lake_rows import SCHEMA, rows


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "augmented_examples", SCHEMA)


def view_of(lake: LakeTable) -> TableFiles:
    return TableFiles(lake.path)


def fill(writer: LakeWriter, *counts: int) -> None:
    for count in counts:
        first = writer.last_lake_seq + 1
        writer.commit(rows(first, count), state=first + count, metadata={"rows": first + count})


def known(view: TableFiles) -> object:
    """All that it says, in an order of its own. Delta rounds the times of changes, and only sometimes names columns
    without a value."""
    files = sorted(
        (f.path, dict(f.partition), f.bytes, f.rows, f.low["lake_seq"], f.high["lake_seq"]) for f in view.files
    )
    numbers = [view.identifier(f"exfm/{name}") for name in ("lake_seq", "block", "epoch", "state", "first_seq", "none")]
    return view.version, files, numbers, view.metadata()


def test_it_follows_commits_compaction_retention_and_another_layout(lake: LakeTable) -> None:
    writer = lake.open_writer()
    view = view_of(lake)
    assert not view.refresh()

    def follows() -> bool:
        found = view.refresh()
        assert known(view) == known(view_of(lake))
        return found

    fill(writer, *[100] * 20)
    assert follows()
    compact_table(TableFiles(lake.path), LakeSettings(compact_files=4), Housework(), now_s=0.0)
    assert follows()
    assert retention.delete_before(TableFiles(lake.path), 500)
    assert follows()
    lay_out(TableFiles(lake.path), LakeSettings(layout="verticals"), Housework())
    assert follows()
    fill(writer, 100)
    assert follows()
    writer.commit(None, state=7, metadata={"progress": 1})
    assert follows()
    assert not view.refresh()


def test_it_goes_on_where_entries_that_it_has_not_read_are_deleted(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, 100)
    view = view_of(lake)
    fill(writer, *[100] * 25)
    for entry in sorted((lake.path / "_delta_log").glob("*.json"))[:15]:
        entry.unlink()
    assert view.refresh()
    assert known(view) == known(view_of(lake))


def test_a_look_that_failed_half_way_is_made_up_for_by_the_next(lake: LakeTable, monkeypatch) -> None:
    writer = lake.open_writer()
    fill(writer, 100)
    reader = LakeReader(lake.path, SCHEMA)
    fill(writer, 100)

    def too_many(handle: DeltaTable, flatten: bool = False) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "get_add_actions", too_many)
        with pytest.raises(OSError, match="Too many open files"):
            reader.refresh()
    assert reader.refresh()
    assert reader.last_lake_seq == 199


def test_a_damaged_entry_is_named(lake: LakeTable) -> None:
    writer = lake.open_writer()
    reader = lake.open_reader()
    fill(writer, 100)
    (*_, newest) = sorted((lake.path / "_delta_log").glob("*.json"))
    newest.write_text(newest.read_text()[:-30])
    with pytest.raises(StreamingError, match=r"the newest log entry .* is cut short"):
        reader.refresh()


@pytest.mark.parametrize("layout", ["dates", "verticals"])
def test_a_read_opens_only_files_of_its_verticals_that_overlap_its_range(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakeTable(tmp_path / layout, SCHEMA, layout)  # type: ignore[arg-type]
    fill(lake.open_writer(), *[100] * 30)
    opened: list[str] = []
    load = ds.FileSystemDataset

    def watched(fragments: list[ds.ParquetFileFragment], *given: object) -> ds.FileSystemDataset:
        opened.extend(fragment.path for fragment in fragments)
        return load(fragments, *given)

    monkeypatch.setattr(ds, "FileSystemDataset", watched)
    reader = LakeReader(lake.path, SCHEMA, chunk_rows=200)
    found = reader.read(999, upto=1199, verticals={"news"}).table
    assert set(found["vertical"].to_pylist()) == {"news"}
    assert all("vertical=news" in path for path in opened)
    assert len(opened) == 2

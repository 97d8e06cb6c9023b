"""The registry of the lake's readers: what it holds up, for how long, and what a crash may leave of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streaming.errors import BadInput
from streaming.lake.readers import Readers


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    return Readers(tmp_path / "lake" / "readers")


def test_nobody_registered_holds_nothing(readers: Readers) -> None:
    assert readers.lowest(now_s=0.0, expiry_s=1.0) is None
    assert readers.all() == []


def test_a_reader_that_goes_on_holds_its_newest_position_only(readers: Readers) -> None:
    for position in (-1, 99, 199):
        readers.register("student-news", position, now_s=position)
    assert readers.lowest(now_s=199.0, expiry_s=1.0) == 199
    assert len(list(readers.folder.iterdir())) == 1


def test_a_paused_reader_holds_its_rows_until_it_expires(readers: Readers) -> None:
    readers.register("paused", 10, now_s=0.0)
    readers.register("live", 500, now_s=100.0)
    assert readers.lowest(now_s=100.0, expiry_s=100.0) == 10
    assert readers.lowest(now_s=100.1, expiry_s=100.0) == 500
    assert [reader.name for reader in readers.all()] == ["paused", "live"]


def test_a_lasting_reader_never_expires(readers: Readers) -> None:
    readers.register("examples topic", 10, now_s=0.0, lasting=True)
    assert readers.lowest(now_s=1e12, expiry_s=1.0) == 10


def test_a_pinned_range_is_kept_from_its_first_row(readers: Readers) -> None:
    readers.register("live", 500, now_s=0.0)
    readers.pin("audit", 100, 199, now_s=0.0)
    assert readers.lowest(now_s=0.0, expiry_s=1.0) == 99
    assert readers.retire("audit")
    assert not readers.retire("audit")
    assert readers.lowest(now_s=0.0, expiry_s=1.0) == 500


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (7, 6)])
def test_an_impossible_range_is_refused(readers: Readers, first: int, last: int) -> None:
    with pytest.raises(BadInput, match=f"cannot pin lake_seq {first} to {last}"):
        readers.pin("audit", first, last)


def test_a_name_of_any_letters_stays_inside_the_folder(readers: Readers) -> None:
    readers.register("../über/alles", 7, now_s=0.0)
    assert [path.parent for path in readers.folder.parent.rglob("*.json")] == [readers.folder]
    assert [reader.name for reader in readers.all()] == ["../über/alles"]


def test_a_damaged_entry_holds_everything_until_it_is_mended_or_retired(readers: Readers) -> None:
    readers.register("student/news", 99, now_s=0.0)
    (file,) = readers.folder.iterdir()
    file.write_text('{"name": "stud')
    (damaged,) = readers.all()
    assert (damaged.name, damaged.position, damaged.damaged) == ("student/news", -1, True)
    assert readers.lowest(now_s=1e12, expiry_s=1.0) == -1
    readers.register("student/news", 99, now_s=0.0)
    assert readers.lowest(now_s=0.0, expiry_s=1.0) == 99

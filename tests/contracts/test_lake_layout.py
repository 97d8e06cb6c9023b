"""The lake's layout follows the volume, and nobody who reads or writes it notices when it changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from streaming.errors import StreamingError
from streaming.lake import compaction, layout
from streaming.lake.delta.files import DataFile, TableFiles
from streaming.lake.delta.vacuum import vacuum_table
from streaming.lake.housekeeping import Housekeeper, Housework, compact_table, expire_rows, lay_out
from streaming.lake.layout import DATES, VERTICALS
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.lake.settings import LakeSettings
from streaming.lake.writer import LakeTable, LakeWriter
from tests.support.places import ROOT
from tests.support.streams import lake_rows
from tests.support.streams.lake_rows import SCHEMA

NOW_S = 1_000_000.0
DAY_MS = 86_400_000
ROWS_A_DAY = 100


def rows(first: int, count: int, *, a_day: float = ROWS_A_DAY) -> pa.RecordBatch:
    """As everywhere, but the stream goes on for days: `a_day` rows on each."""
    batch = lake_rows.rows(first, count)
    time_ms = (batch["lake_seq"].to_numpy() * DAY_MS / a_day).astype(np.int64)
    dates = pc.strftime(pa.array(time_ms, pa.timestamp("ms")), format="%Y-%m-%d")
    own = {"event_time_ms": pa.array(time_ms), "event_date": dates}
    return pa.RecordBatch.from_arrays([own.get(n, batch[n]) for n in batch.schema.names], schema=batch.schema)


def fill(writer: LakeWriter, *counts: int, a_day: float = ROWS_A_DAY) -> None:
    for count in counts:
        first = writer.last_lake_seq + 1
        writer.commit(rows(first, count, a_day=a_day), state=first + count, metadata={"rows": first + count})


def whole(lake: LakeTable) -> pa.Table:
    """The lake's rows; checked to be those written, each once and in order."""
    found = lake.open_reader().read().table
    assert found.drop(["block"]).equals(pa.table(rows(0, found.num_rows)).drop(["block"]))
    return found


def partition_by(lake: LakeTable) -> tuple[str, ...]:
    return tuple(DeltaTable(lake.path).metadata().partition_columns)


def laid_out(lake: LakeTable, asked: str = "auto", **given: object) -> Housework:
    done = Housework()
    lay_out(TableFiles(lake.path), LakeSettings(layout=asked), done, **given)  # type: ignore[arg-type]
    return done


@pytest.fixture
def lake(tmp_path: Path) -> LakeTable:
    return LakeTable(tmp_path / "lake" / "augmented_examples", SCHEMA)


@pytest.fixture(scope="module")
def lake_of_forty_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forty") / "augmented_examples"
    fill(LakeTable(path, SCHEMA, "dates").open_writer(), *[ROWS_A_DAY] * 40)
    return path


@pytest.fixture
def by_dates(lake: LakeTable, lake_of_forty_days: Path) -> LakeTable:
    """A lake as earlier releases write it, by dates; 40 days with about 25 rows of each vertical."""
    shutil.copytree(lake_of_forty_days, lake.path)
    return lake


# --- a new lake


@pytest.mark.parametrize(("a_day", "expected"), [(1e6, DATES), (100, VERTICALS)])
def test_a_new_lake_is_laid_out_by_the_rate_of_its_first_rows(
    lake: LakeTable, a_day: float, expected: tuple[str, ...]
) -> None:
    writer = lake.open_writer()
    writer.commit(None, state=1, metadata={})
    fill(writer, 500, 500, a_day=a_day)
    assert partition_by(lake) == expected
    found = lake.open_reader().read().table
    assert found.drop(["block"]).equals(pa.table(rows(0, 1000, a_day=a_day)).drop(["block"]))


def test_a_slow_lake_has_few_files_whatever_the_number_of_days(lake: LakeTable) -> None:
    fill(lake.open_writer(), *[1000] * 5)  # 50 days, four verticals
    assert lake.open_reader().files == 5 * 4


def test_a_layout_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    for asked, expected in (("dates", DATES), ("verticals", VERTICALS)):
        lake = LakeTable(tmp_path / asked, SCHEMA, asked)  # type: ignore[arg-type]
        fill(lake.open_writer(), 200)
        assert partition_by(lake) == expected


def test_a_kill_before_the_first_rows_leaves_an_empty_lake_that_they_lay_out(lake: LakeTable) -> None:
    lake.open_writer()
    assert TableFiles(lake.path).repartition(VERTICALS, [])
    fill(lake.open_writer(), 200)
    whole(lake)
    assert partition_by(lake) == VERTICALS


def test_a_fenced_writer_stays_fenced_when_the_lake_is_laid_out(lake: LakeTable) -> None:
    older, newer = lake.open_writer(), lake.open_writer()
    with pytest.raises(StreamingError, match=r"fenced: .* epoch 1, the lake has 2"):
        fill(older, 100)
    fill(newer, 100)
    whole(lake)


# --- what people see of it


def test_event_date_is_the_date_of_the_row_in_both_layouts(by_dates: LakeTable) -> None:
    def of_a_day() -> list[int]:
        scanned = DeltaTable(by_dates.path).to_pyarrow_dataset().to_table(filter=pc.field("event_date") == "1970-01-05")
        return sorted(scanned["lake_seq"].to_pylist())

    before = of_a_day()
    assert before == list(range(400, 500))
    assert laid_out(by_dates).laid_out_files
    assert of_a_day() == before


def test_statistics_say_which_files_hold_a_date(by_dates: LakeTable) -> None:
    laid_out(by_dates)
    fill(by_dates.open_writer(), ROWS_A_DAY)
    for file in TableFiles(by_dates.path).files:
        assert {"event_date", "lake_seq", "event_time_ms"} <= set(file.low)
        assert (file.low["event_date"], file.high["event_date"]) in {
            ("1970-01-01", "1970-02-09"),  # what was laid out
            ("1970-02-10", "1970-02-10"),  # what came after it
        }


# --- a lake whose dates turn out to hold little


def test_a_lake_of_an_earlier_release_is_laid_out_anew_once_and_holds_the_same_rows(by_dates: LakeTable) -> None:
    before, old = whole(by_dates), by_dates.open_reader()
    identity, files = old.id, old.files
    assert files == 160
    assert laid_out(by_dates).laid_out_files == files
    assert laid_out(by_dates) == Housework()
    reader = by_dates.open_reader()
    assert (partition_by(by_dates), reader.files, reader.id) == (VERTICALS, 4, identity)
    assert whole(by_dates).equals(before)
    assert (reader.metadata(), by_dates.open_writer().metadata) == ({"rows": 4000}, {"rows": 4000})
    assert reader.schema.augmented.equals(pa.schema(DeltaTable(by_dates.path).schema().to_arrow()))


def test_dates_that_hold_much_or_are_few_stay(lake: LakeTable) -> None:
    writer = lake.open_writer()
    fill(writer, 100, a_day=1e6)
    fill(writer, 700)
    assert laid_out(lake) == Housework()
    assert partition_by(lake) == DATES


def test_dates_stay_where_the_settings_say_so_and_while_a_range_is_pinned(by_dates: LakeTable) -> None:
    assert laid_out(by_dates, "dates") == Housework()
    assert laid_out(by_dates, pinned=[(0, 10)]) == Housework()
    assert partition_by(by_dates) == DATES


def test_a_reader_in_the_middle_of_the_lake_goes_on(by_dates: LakeTable) -> None:
    reader = LakeReader(by_dates.path, SCHEMA, chunk_rows=256)
    seen = [reader.read(-1, limit_rows=1001)]
    laid_out(by_dates)
    seen.append(reader.read(seen[-1].complete_upto, limit_rows=1001))  # by its old look
    vacuum_table(by_dates.path, 0.0)
    seen.append(reader.read(seen[-1].complete_upto, limit_rows=1001))  # its files are gone
    fill(by_dates.open_writer(), 50)
    assert reader.refresh()
    seen.append(reader.read(seen[-1].complete_upto))
    found = pa.concat_tables([read.table for read in seen])
    assert found.drop(["block"]).equals(pa.table(rows(0, 4050)).drop(["block"]))


def test_a_reader_of_an_old_look_sees_new_commits_without_opening_the_table_again(by_dates: LakeTable) -> None:
    reader = by_dates.open_reader()
    laid_out(by_dates)
    fill(by_dates.open_writer(), 50)
    assert reader.refresh()
    assert reader.read(3999)[0]["lake_seq"].to_pylist() == list(range(4000, 4050))
    assert reader.files == 4 + 4


def test_a_writer_commits_while_the_lake_is_laid_out(by_dates: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = by_dates.open_writer()
    repartition, tries = TableFiles.repartition, []

    def slow(self: TableFiles, *given: object) -> bool:
        tries.append(1)
        if len(tries) < 4:
            fill(writer, 30)  # between the rewriting and its commit
        return repartition(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(TableFiles, "repartition", slow)
    assert laid_out(by_dates).laid_out_files
    assert len(tries) == 4
    fill(writer, 30)  # through a handle from before
    assert whole(by_dates).num_rows == 4000 + 4 * 30
    assert {name for f in TableFiles(by_dates.path).files for name, _ in f.partition} == {"vertical"}


def test_a_writer_that_is_faster_each_time_is_let_alone(by_dates: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = by_dates.open_writer()
    repartition = TableFiles.repartition

    def slow(self: TableFiles, *given: object) -> bool:
        fill(writer, 10)
        return repartition(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(TableFiles, "repartition", slow)
    monkeypatch.setattr(layout, "ATTEMPTS", 3)
    assert laid_out(by_dates) == Housework()
    whole(by_dates)
    monkeypatch.undo()
    assert laid_out(by_dates).laid_out_files
    whole(by_dates)


@pytest.mark.parametrize("moment", ["rewrite", "repartition", "link"])
def test_a_kill_while_the_lake_is_laid_out_leaves_it_in_one_layout(by_dates: LakeTable, moment: str) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from streaming.lake.delta.files import TableFiles\n"
        "from streaming.lake import layout\n"
        "left = [3]\n"
        "def killed_at(place, name, after=0):\n"
        "    was = getattr(place, name)\n"
        "    def call(*given, **named):\n"
        "        left[0] -= 1\n"
        "        if left[0] <= after: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return was(*given, **named)\n"
        "    setattr(place, name, call)\n"
        "moment = sys.argv[2]\n"
        "place = {'rewrite': layout, 'repartition': TableFiles, 'link': os}[moment]\n"
        "killed_at(place, moment, 0 if moment == 'rewrite' else 2)\n"
        "layout.by_verticals(TableFiles(Path(sys.argv[1])), target_bytes=1 << 26)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(by_dates.path), moment], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert partition_by(by_dates) == DATES
    whole(by_dates)
    fill(by_dates.open_writer(), 50)
    assert laid_out(by_dates).laid_out_files
    vacuum_table(by_dates.path, 0.0)
    left = [path for path in by_dates.path.rglob("*") if path.is_file() and "_delta_log" not in path.parts]
    assert len(left) == by_dates.open_reader().files
    assert not [name for name in os.listdir(by_dates.path / "_delta_log") if "#" in name]
    whole(by_dates)


def test_the_lake_is_read_by_a_checkpoint_of_its_log_too(by_dates: LakeTable) -> None:
    laid_out(by_dates)
    writer = by_dates.open_writer()
    fill(writer, *[10] * 25)
    log = by_dates.path / "_delta_log"
    newest = json.loads((log / "_last_checkpoint").read_text())["version"]
    assert newest > 44, "a checkpoint after it was laid out"
    for entry in log.glob("*.json"):
        if int(entry.stem) <= newest:
            entry.unlink()
    assert whole(by_dates).num_rows == 4250
    assert partition_by(by_dates) == VERTICALS


# --- what keeps house


def test_the_keeper_lays_out_a_slow_lake_while_it_grows(by_dates: LakeTable, tmp_path: Path) -> None:
    writer, keeper = by_dates.open_writer(), Housekeeper(by_dates.path, [], Readers(tmp_path / "r"), LakeSettings())
    for _ in range(24):
        fill(writer, 20)
        keeper.maybe()
    assert keeper.wait(30)
    keeper.close()
    assert keeper.trouble is None
    assert partition_by(by_dates) == VERTICALS
    assert by_dates.open_reader().files <= 4 * 16
    whole(by_dates)


def test_retention_cuts_by_event_time_in_both_layouts(tmp_path: Path) -> None:
    begins = set()
    for asked in ("dates", "verticals"):
        lake = LakeTable(tmp_path / asked, SCHEMA, asked)  # type: ignore[arg-type]
        fill(lake.open_writer(), *[50] * 20)
        done = Housework()
        expire_rows(TableFiles(lake.path), LakeSettings(retention_days=4.245), done, None, now_s=2e9)
        found = lake.open_reader().read().table
        assert found["lake_seq"].to_pylist() == list(range(done.first_seq or 0, 1000))
        begins.add(done.first_seq)
    assert begins == {550}  # row 574 is the first that is young enough; its block begins at 550


def test_partitions_by_dates_that_the_lake_has_left_behind_are_compacted_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock, a partition is cold after an hour; a lake that catches up makes a year of them in that time."""
    monkeypatch.setattr(compaction, "COLD_ROWS", 1000)
    lake = LakeTable(tmp_path / "lake", SCHEMA, "dates")
    writer = lake.open_writer()
    fill(writer, *[500] * 4, a_day=2000)
    now_s = max(file.changed_s for file in TableFiles(lake.path).files)
    done = Housework()
    compact_table(TableFiles(lake.path), LakeSettings(), done, now_s=now_s)
    assert done == Housework()
    fill(writer, *[600] * 2, a_day=2000)
    compact_table(TableFiles(lake.path), LakeSettings(), done, now_s=now_s)
    assert (done.merged_files, done.made_files) == (16, 4)


@pytest.mark.parametrize("verticals", [4, 6])
def test_five_thousand_small_commits_leave_at_most_a_hundred_files(verticals: int) -> None:
    """By the plan alone, with sizes as measured: 3,000 bytes a file and 100 a row."""
    settings = LakeSettings()
    live: list[DataFile] = []
    most = 0
    for commit in range(5000):
        seq = {"lake_seq": commit}
        live += [
            DataFile(f"{name}/{commit}", (("vertical", f"v{name}"),), 5000, 20, NOW_S, seq, seq, {})
            for name in range(verticals)
        ]
        if commit % 8 != 7:  # the keeper's pace
            continue
        for merge in compaction.plan(
            live, compact_files=settings.compact_files, target_bytes=settings.target_file_bytes, now_s=NOW_S
        ):
            first, last = merge.files[0], merge.files[-1]
            size = 3000 + sum(file.bytes - 3000 for file in merge.files)
            live = [file for file in live if file not in merge.files]
            live.append(first._replace(path=f"{first.path}+", bytes=size, high=last.high))
        most = max(most, len(live))
    assert most <= 100

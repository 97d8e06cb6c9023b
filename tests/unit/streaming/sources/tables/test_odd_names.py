"""Files whose names hold what DuckDB takes for a pattern, or for a column: each file is read, and no other."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming.errors import BadInput
from streaming.sources.tables.conversion import as_parquet
from streaming.sources.tables.engine import TableEngine, parquet
from streaming.sources.tables.forms import files_at

FOLDERS = ["plain", "a b#c%d[e]ü", "st*r", "q?m", "day=7", "it's"]
NAMES = ["l[o]g", "log*", "l?g", "[log", "log 100% #1 ü"]


def write(path, rows):
    """A column `n` of numbers from 0, in the form that the name's ending says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"n": range(rows)}), path)
        return
    lines = (
        [f'{{"n": {i}}}' for i in range(rows)] if ".jsonl" in path.name else ["n,m", *(f"{i},1" for i in range(rows))]
    )
    text = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def read(path, to):
    with TableEngine(to.parent) as engine:
        files = files_at(path)
        if not files.is_one_parquet:
            list(as_parquet(engine, files, to))
            return pq.read_table(to, partitioning=None)
        return engine.arrow(f"SELECT * FROM {parquet(files.paths[0])}")


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "jsonl", "parquet"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_is_read_whatever_its_name_and_none_beside_it(tmp_path, folder, ending):
    for name in ("log", "log1", "o"):  # what the patterns would match
        write(tmp_path / folder / f"{name}.{ending}", 3)
    for name in NAMES:
        if "?" in f"{folder}{name}" and ending.endswith("gz"):  # DuckDB sees no ending behind a ?, and says so
            continue
        path = tmp_path / folder / f"{name}.{ending}"
        write(path, 10)
        table = read(path, tmp_path / "made.parquet")
        assert set(table.column_names) <= {"n", "m", "file_row_number"}
        assert [int(n) for n in table["n"].to_pylist()] == list(range(10)), name


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_folders_below_are_columns_and_folders_above_are_none(tmp_path, ending):
    below = tmp_path / "log [1]"
    for day, rows in ((7, 2), (8, 3)):
        write(below / f"day={day}" / f"part.{ending}", rows)
    table = read(below, tmp_path / "made.parquet")
    assert [int(day) for day in table["day"].to_pylist()] == [7, 7, 8, 8, 8]
    above = tmp_path / "shop=3" / "log"
    write(above / f"a.{ending}", 2)
    write(above / f"b.{ending}", 2)
    assert "shop" not in read(above, tmp_path / "made.parquet").column_names
    write(above / "day=7" / f"c.{ending}", 2)
    with pytest.raises(BadInput, match="and so would `shop=3`"):
        files_at(above)

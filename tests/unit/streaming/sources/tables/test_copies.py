"""Files of every form become one Parquet file in order of time, once; a copy is whole or absent."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from streaming.errors import BadInput
from streaming.schema import Column, RowSchema, Task
from streaming.sources.label_column import LabelColumn
from streaming.sources.recorded import RecordedConfig, RecordedStream
from streaming.sources.tables.copies import Copies, Reading
from tests.support.places import ROOT

ROWS = 3000
SCHEMA = RowSchema(
    impression_id="string",
    columns=[Column(name="user", type="string"), Column(name="price", type="float32")],
    tasks=[Task(name="ctr", window_s=60)],
)
CONFIG = RecordedConfig(
    impression_id="id", event_time="at", event_time_unit="s", labels={"ctr": LabelColumn(column="clicked")}
)


def table(order: np.ndarray | None = None) -> pa.Table:
    """Ids and users that are texts and look like numbers; ids begin with zeros."""
    n = np.arange(ROWS) if order is None else order
    return pa.table(
        {
            "id": [f"{k:08}" for k in n],
            "at": 1_700_000_000 + n // 2,
            "vertical": ["feed" if k % 3 else "shop" for k in n],
            "user": [f"{k % 70}" for k in n],
            "price": np.round(n / 7, 3),
            "clicked": (n % 5 == 0).astype(np.int8),
        }
    )


def as_csv(path: Path, rows: pa.Table, header: bool = True) -> Path:
    lines = [",".join(rows.column_names)] if header else []
    lines += [",".join(str(value) for value in row.values()) for row in rows.to_pylist()]
    text = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def as_lines(path: Path, rows: pa.Table) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    return path


def as_folder(path: Path, rows: pa.Table) -> Path:
    path.mkdir()
    for part, start in enumerate(range(0, ROWS, 1000)):
        as_csv(path / f"part-{part}.csv", rows.slice(start, 1000))
    return path


def as_parquet(path: Path, rows: pa.Table) -> Path:
    pq.write_table(rows, path)
    return path


def impressions(path: Path, copies: Path, config: RecordedConfig = CONFIG) -> pa.Table:
    stream = RecordedStream(path, config, SCHEMA, Copies(copies))
    return pa.Table.from_batches([chunk.impressions for chunk in stream.chunks()], SCHEMA.impression)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.csv", as_csv),
        ("rows.csv.gz", as_csv),
        ("rows.jsonl", as_lines),
        ("rows", as_folder),
        ("rows.parquet", as_parquet),
    ],
)
@pytest.mark.parametrize("shuffled", [False, True])
def test_every_form_in_any_order_plays_the_same_rows(tmp_path, name, write, shuffled):
    played = impressions(as_parquet(tmp_path / "sorted.parquet", table()), tmp_path / "none")
    assert not (tmp_path / "none").exists()  # in order: played as it lies
    order = np.random.default_rng(0).permutation(ROWS) if shuffled else np.arange(ROWS)
    found = impressions(write(tmp_path / name, table(order)), tmp_path / "copies")
    if not shuffled:
        assert found.equals(played)
        return
    by_id = [("event_time_ms", "ascending"), ("impression_id", "ascending")]
    assert found.sort_by(by_id).equals(played.sort_by(by_id))
    assert found["event_time_ms"].equals(played["event_time_ms"])
    # Rows of one time keep the order of the file.
    place = {f"{k:08}": at for at, k in enumerate(order)}
    pairs = np.array([place[i] for i in found["impression_id"].to_pylist()]).reshape(-1, 2)
    assert (pairs[:, 0] < pairs[:, 1]).all()


def test_a_table_without_names_or_times_is_played_in_its_order(tmp_path):
    path = as_csv(tmp_path / "rows.csv", table().drop_columns("at"), header=False)
    columns = {"user": "column2", "price": "column3"}
    config = RecordedConfig(
        impression_id="column0", event_time=None, vertical="column1", header=False, columns=columns,
        labels={"ctr": LabelColumn(column="column4")},
    )  # fmt: skip
    found = impressions(path, tmp_path / "copies", config)
    assert found["impression_id"].to_pylist() == [f"{k:08}" for k in range(ROWS)]
    assert set(np.diff(found["event_time_ms"].to_numpy())) == {1000}


def test_times_in_a_form_of_their_own_are_read_and_sorted(tmp_path):
    hours = [f"{14_102_100 + k % 24}" for k in range(ROWS)]
    rows = table().set_column(1, "at", pa.array(hours))
    config = CONFIG.model_copy(update={"event_time_form": "%y%m%d%H"})
    found = impressions(as_csv(tmp_path / "rows.csv", rows), tmp_path / "copies", config)
    assert pc.min_max(found["event_time_ms"]).as_py() == {"min": 1_413_849_600_000, "max": 1_413_932_400_000}
    assert found["impression_id"][:2].to_pylist() == ["00000000", "00000024"]


def test_a_copy_is_made_once_and_again_when_the_file_or_its_reading_changes(tmp_path):
    path, copies = as_csv(tmp_path / "rows.csv", table()), Copies(tmp_path / "copies")
    first = copies.of(path, Reading("at", "s"))
    again = copies.of(path, Reading("at", "s"))
    assert (first.now, again.now, again.path) == (True, False, first.path)
    assert first.path.read_bytes()[:4] == b"PAR1"
    content = copies.content(path, Reading("at", "s"))
    os.utime(path, ns=(1, 1))
    touched = copies.of(path, Reading("at", "s"))
    assert touched.now
    assert touched.path != first.path
    assert not first.path.exists()
    assert copies.content(path, Reading("at", "s")) == content  # the same rows, by whatever time of change
    assert copies.of(path, Reading("at", "s", declared=(("price", "string"),))).now
    as_csv(path, table().slice(0, 100))
    assert copies.content(path, Reading("at", "s")) != content


def test_a_copy_that_was_deleted_or_cut_is_made_again(tmp_path):
    path, copies = as_csv(tmp_path / "a.csv", table()), Copies(tmp_path / "copies")
    reading = Reading("at", "s")
    copy = copies.of(path, reading).path
    whole = copy.read_bytes()
    for damage in (copy.unlink, lambda: copy.write_bytes(whole[:100])):
        damage()
        again = copies.of(path, reading)
        assert again.now
        assert again.path.read_bytes() == whole
        assert not copies.of(path, reading).now


def test_a_process_that_is_killed_leaves_no_copy_and_no_rubbish(tmp_path):
    order = np.random.default_rng(0).permutation(ROWS)
    path, copies = as_parquet(tmp_path / "rows.parquet", table(order)), tmp_path / "copies"
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from streaming.sources.tables.copies import Copies, Reading\n"
        "die = lambda what, share: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Copies(Path(sys.argv[2]), die).of(Path(sys.argv[1]), Reading('at', 's'))"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path), str(copies)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [file.suffix for file in copies.iterdir() if file.name != ".lock"] == [".begun"]
    found = Copies(copies).of(path, Reading("at", "s"))
    assert pq.read_table(found.path)["at"].equals(table()["at"])
    assert sorted(file.suffix for file in copies.iterdir() if file.name != ".lock") == [".json", ".parquet"]


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    path = as_parquet(tmp_path / "rows.parquet", table(np.arange(ROWS)[::-1]))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Disk", (), {"free": 1000})())
    with pytest.raises(BadInput, match=r"sorting .*rows.parquet takes about 0 MB .* and 0 MB are free; free some, or"):
        Copies(tmp_path / "copies").of(path, Reading("at", "s"))
    assert [file.name for file in (tmp_path / "copies").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.csv", None, "no such file or folder"),
        ("rows.csv", "at,user\n", "has no rows"),
        ("rows.csv", "user\n1\n", "has no column at"),
        ("rows.csv", "at,user\n1,2\nnoon,3\n", "`at` of row 0 is '1', which is no time"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_sentence(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_text(text)
    config = RecordedConfig(
        event_time="at", vertical_value="all", labels={"ctr": LabelColumn(column="user")}, event_time_unit="s"
    )
    schema = RowSchema(columns=(), tasks=(Task(name="ctr", window_s=1),))
    with pytest.raises(BadInput, match=said):
        list(RecordedStream(tmp_path / name, config, schema, Copies(tmp_path / "copies")).chunks())

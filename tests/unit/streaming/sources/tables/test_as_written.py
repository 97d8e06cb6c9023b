"""What a file holds is what is read: random columns with an oddity at a random row, in every form, value for value."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streaming.errors import BadInput
from streaming.messages.times import milliseconds
from streaming.sources.tables import conversion
from streaming.sources.tables.conversion import as_parquet
from streaming.sources.tables.copies import Copies, Reading
from streaming.sources.tables.engine import TableEngine
from streaming.sources.tables.forms import files_at

SAMPLE = 60
"""Rows from which types are proposed here, so that a small file has rows on either side of the sample's end."""

ROWS = 150
START = datetime(2024, 1, 1)


def whole(n: int) -> str:
    return str(n * 37 % 90)


def identifier(n: int) -> str:
    return str(2**60 + n)


def fraction(n: int) -> str:
    return str(n / 8 + 0.125)


def word(n: int) -> str:
    return f"w{n % 7}"


def day(n: int) -> str:
    return str(date(2024, 1, 1) + timedelta(days=n))


def moment(n: int) -> str:
    return (START + timedelta(seconds=n * 977)).isoformat(sep=" ")


KINDS = (whole, identifier, fraction, word, day, moment)
ODDITIES = (
    "37.75", "-0.5", "1e3", "9007199254740993", "18446744073709551615", "123456789012345678901234567890", "007", "+7",
    "1_000", "0x1F",
    "2024-01-04 13:30:00", "2024-01-04", "2024-01-04T13:30:00Z", "2024-02-31", "true", "a,b", 'say "x"',
    "1e400", "NULL", "-", "\\N", "nan", "", "0,5", "Total", "ä", " 7", "1 2", "12:30", "inf",
)  # fmt: skip


def same(text: str, value: Any, kind: pa.DataType) -> bool:
    """Whether a value of a column of type `kind` is what was written."""
    if pa.types.is_string(kind):
        return value == text if text else value is None
    if value is None:
        return text.strip() in ("", "NULL", "-", "\\N", "nan")
    if pa.types.is_boolean(kind):
        return str(value).lower() == text.lower()
    if pa.types.is_integer(kind):
        return str(value) == text.strip()
    if pa.types.is_floating(kind):
        exact = math.isinf(value) or not text.strip().lstrip("+-").isdigit() or int(text) == int(value)
        return float(text) == value and exact and "_" not in text
    if pa.types.is_date(kind):
        return str(value) == text
    written = datetime.fromisoformat(text)
    return (written if written.tzinfo else written.replace(tzinfo=UTC)) == (
        value if value.tzinfo else value.replace(tzinfo=UTC)
    )


def read(path: Path, folder: Path, **how: Any) -> pa.Table:
    with TableEngine(folder) as engine:
        list(as_parquet(engine, files_at(path), folder / "read.parquet", **how))
    return pq.read_table(folder / "read.parquet")


def columns_of(chance: random.Random, rows: int, places: tuple[int, ...]) -> dict[str, list[str]]:
    """Columns of texts, half of them with an oddity at one of `places`."""
    columns = {"row": [str(n) for n in range(rows)]}
    for number in range(5):
        kind = chance.choice(KINDS)
        texts = [kind(n) for n in range(rows)]
        if chance.random() < 0.7:
            texts[chance.choice(places)] = chance.choice(ODDITIES)
        columns[f"c{number}"] = texts
    return columns


def csv_lines(columns: dict[str, list[str]], first: int, last: int) -> str:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"') else text

    rows = zip(*(texts[first:last] for texts in columns.values()), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(cell, row)) for row in rows)]) + "\n"


def json_value(text: str) -> Any:
    """A number where the text is one in JSON, else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if type(value) in (int, float) and json.dumps(value) == text else text


def write(form: str, columns: dict[str, list[str]], path: Path) -> Path:
    rows = len(columns["row"])
    if form == "csv":
        (file := path / "rows.csv").write_text(csv_lines(columns, 0, rows))
    elif form == "csv.gz":
        (file := path / "rows.csv.gz").write_bytes(gzip.compress(csv_lines(columns, 0, rows).encode()))
    elif form == "folder":
        (file := path / "rows").mkdir()
        for part, first in enumerate(range(0, rows, rows // 3)):
            names = list(columns) if part % 2 else list(reversed(columns))
            (file / f"part-{part}.csv").write_text(csv_lines({n: columns[n] for n in names}, first, first + rows // 3))
    else:
        records = [
            {name: value for name, texts in columns.items() if (value := json_value(texts[n])) != ""}
            for n in range(rows)
        ]
        text = "".join(json.dumps(record) + "\n" for record in records)
        (file := path / f"rows.{form}").write_bytes(
            gzip.compress(text.encode()) if form.endswith("gz") else text.encode()
        )
    return file


FORMS = ("csv", "csv.gz", "folder", "jsonl", "jsonl.gz")


def held_as_written(seed: int, rows: int, places: tuple[int, ...], folder: Path) -> None:
    chance = random.Random(seed)
    columns, form = columns_of(chance, rows, places), chance.choice(FORMS)
    table = read(write(form, columns, folder), folder)
    assert table["row"].to_pylist() == list(range(rows)), form
    for name, texts in columns.items():
        kind = table[name].type if name in table.column_names else pa.string()
        values = table[name].to_pylist() if name in table.column_names else [None] * rows
        if form.startswith("json") and pa.types.is_string(kind):
            wrong = [
                n for n in range(rows) if values[n] != (texts[n] or None) and str(json_value(texts[n])) != values[n]
            ]
        else:
            wrong = [n for n in range(rows) if not same(texts[n], values[n], kind)]
        assert not wrong, (seed, form, name, str(kind), texts[wrong[0]], values[wrong[0]])


@pytest.mark.parametrize("part", range(4))
def test_every_value_of_a_hundred_odd_files_is_read_as_written(tmp_path, monkeypatch, part):
    monkeypatch.setattr(conversion, "LOOKED_AT", SAMPLE)
    for seed in range(part * 25, part * 25 + 25):
        (folder := tmp_path / str(seed)).mkdir()
        held_as_written(seed, ROWS, (0, SAMPLE - 1, SAMPLE, ROWS - 1), folder)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_every_value_of_two_thousand_odd_files_is_read_as_written(tmp_path, monkeypatch, part):
    monkeypatch.setattr(conversion, "LOOKED_AT", SAMPLE)
    for seed in range(1000 + part * 100, 1000 + part * 100 + 100):
        (folder := tmp_path / str(seed)).mkdir()
        held_as_written(seed, ROWS, (0, SAMPLE - 1, SAMPLE, ROWS - 1), folder)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_an_oddity_behind_the_real_sample_is_read_as_written(tmp_path, seed):
    rows = 3 * (conversion.LOOKED_AT // 2)
    held_as_written(seed, rows, (0, conversion.LOOKED_AT - 1, conversion.LOOKED_AT, rows - 1), tmp_path)


def late(first: str, odd: str, rows: int = ROWS) -> str:
    return "id,x\n" + "".join(f"{n},{first}\n" for n in range(rows)) + f"{rows},{odd}\n"


@pytest.mark.parametrize(
    ("first", "odd", "kind", "value"),
    [
        ("5", "37.75", "double", 37.75),
        ("2024-01-04", "2024-01-04 13:30:00", "timestamp[us]", datetime(2024, 1, 4, 13, 30)),
        ("5", "", "int64", None),
        ("5", "NULL", "int64", None),
        ("0.5", "nan", "double", None),
        ("0.5", "inf", "double", math.inf),
        ("0.5", "1e400", "string", "1e400"),
        ("7", "007", "string", "007"),
        ("1.5", "9007199254740993", "string", "9007199254740993"),
    ],
)
def test_what_a_column_turns_to_behind_the_sample_is_read(tmp_path, monkeypatch, first, odd, kind, value):
    monkeypatch.setattr(conversion, "LOOKED_AT", SAMPLE)
    (tmp_path / "rows.csv").write_text(late(first, odd))
    table = read(tmp_path / "rows.csv", tmp_path)
    assert (str(table["x"].type), table["x"].to_pylist()[-1]) == (kind, value)


def test_a_declared_type_is_what_is_read_or_the_row_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "LOOKED_AT", SAMPLE)
    (path := tmp_path / "rows.csv").write_text(late("007", "37.75"))
    assert read(path, tmp_path, declared={"x": "float32"})["x"].to_pylist()[-2:] == [7.0, 37.75]
    assert read(path, tmp_path, declared={"x": "string"})["x"].to_pylist()[-2:] == ["007", "37.75"]
    with pytest.raises(BadInput, match=r"row 151: `x` is '37.75', and it is declared int64"):
        read(path, tmp_path, declared={"x": "int64"})


def test_keys_of_json_that_come_late_or_seldom_are_columns(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "LOOKED_AT", SAMPLE)
    rows = [{"id": n, f"k{n % 50}": 1} for n in range(ROWS)] + [{"id": ROWS, "late": {"a": 1}}]
    (path := tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read(path, tmp_path)
    assert set(table.column_names) == {"id", "late", *(f"k{n}" for n in range(50))}
    assert table["late"].to_pylist()[-2:] == [None, {"a": 1}]


@pytest.mark.parametrize("odd", [{"late": 1}, {"x": 1.5}, {"x": 2**60}])
def test_a_key_of_the_fortieth_file_of_a_folder_is_a_column(tmp_path, odd):
    (folder := tmp_path / "parts").mkdir()
    for part in range(40):
        row = {"id": part, "x": 1} | (odd if part == 38 else {})
        (folder / f"{part:02}.jsonl").write_text(json.dumps(row) + "\n")
    table = read(folder, tmp_path)
    ((name, value),) = odd.items()
    assert table[name].to_pylist()[38] == value
    assert table["id"].to_pylist() == list(range(40))


def test_a_text_of_json_stays_a_text_whatever_it_looks_like(tmp_path):
    rows = [{"campaign": "2026-01-05", "zip": "0123", "shown": "2026-01-05T10:00:00Z"}] * 3
    (path := tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read(path, tmp_path)
    assert table["campaign"].to_pylist()[0] == "2026-01-05"
    assert table["zip"].to_pylist()[0] == "0123"
    assert table["shown"].to_pylist()[0] == datetime(2026, 1, 5, 10, tzinfo=UTC)


def test_numbers_of_json_that_no_one_type_holds_are_texts(tmp_path):
    (path := tmp_path / "rows.jsonl").write_text('{"id": 9007199254740993}\n{"id": 1.5}\n{"id": 9007199254740992}\n')
    assert read(path, tmp_path)["id"].to_pylist() == ["9007199254740993", "1.5", "9007199254740992"]


@pytest.mark.parametrize(
    "nested", [{"n": {"id": 2**60 + 1}}, {"n": [{"id": 2**60 + 1}]}, {"n": {"a": {"id": 2**60 + 1}}}]
)
def test_long_numbers_beside_fractions_inside_json_are_refused(tmp_path, nested):
    fraction = json.loads(json.dumps(nested).replace(str(2**60 + 1), "1.5"))
    (path := tmp_path / "rows.jsonl").write_text(f"{json.dumps(nested)}\n{json.dumps(fraction)}\n")
    with pytest.raises(BadInput, match="`n` holds whole numbers of 16 digits or more"):
        read(path, tmp_path)
    rows = [nested | {"price": {"now": 1.5}, "code": {"of": "1234567890123456789"}}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 2))
    assert read(path, tmp_path).to_pylist()[0] == rows[0]


def test_files_of_parquet_that_would_merge_ids_are_refused_and_both_are_named(tmp_path):
    (folder := tmp_path / "parts").mkdir()
    pq.write_table(pa.table({"id": [2**53, 2**53 + 1]}), folder / "a.parquet")
    pq.write_table(pa.table({"id": [1.5]}), folder / "b.parquet")
    with pytest.raises(BadInput, match=r"`id` .* a\.parquet, .* b\.parquet"):
        read(folder, tmp_path)
    pq.write_table(pa.table({"id": [7]}), folder / "a.parquet")
    assert read(folder, tmp_path)["id"].to_pylist() == [7.0, 1.5]


def test_files_of_other_columns_are_united_by_name_and_what_is_missing_is_said(tmp_path):
    (folder := tmp_path / "parts").mkdir()
    (folder / "a.csv").write_text("id,x\n1,2\n")
    (folder / "b.csv").write_text("x,id,extra\n5,6,7\n")
    with TableEngine(tmp_path) as engine:
        said = list(as_parquet(engine, files_at(folder), tmp_path / "read.parquet"))
    assert pq.read_table(tmp_path / "read.parquet").to_pylist() == [
        {"id": 1, "x": 2, "extra": None},
        {"id": 6, "x": 5, "extra": 7},
    ]
    assert "`extra` is in 1 of 2 files, and null in the others" in said


def test_a_folder_of_text_keeps_the_order_of_its_files(tmp_path):
    (folder := tmp_path / "parts").mkdir()
    for part in range(3):
        (folder / f"{part}.csv").write_text("id,x\n" + "".join(f"{part * 500 + n},{n / 7}\n" for n in range(500)))
    for _ in range(10):
        assert read(folder, tmp_path)["id"].to_pylist() == list(range(1500))


def test_partitions_of_a_delta_table_have_the_types_that_it_declares(tmp_path):
    import deltalake

    rows = pa.table({"id": [1, 2], "campaign": ["7", "08"], "shop": pa.array([1, 2], pa.int32())})
    deltalake.write_deltalake(str(tmp_path / "table"), rows, partition_by=["campaign", "shop"])
    table = read(tmp_path / "table", tmp_path)
    assert sorted(table["campaign"].to_pylist()) == ["08", "7"]
    assert table["shop"].type == pa.int32()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,x,y\n" + "1,2,3\n" * 50 + "7,8,9,10\n" + "1,2,3\n" * 50, "line 52 has 4 fields, and the first line has 3"),
        ("id,x,y\n" + "1,2,3\n" * 50 + "7,8", "line 52 has 2 fields.*was the file cut off there"),
        ("id;x\n" + "1;2\n" * 50 + "1;2;3\n", "line 52 has 3 fields"),
        ("id,x\n" + "1,2,3\n" * 50, "line 2 has 3 fields"),
        ("id,x\n" + "1,2\n" * 50 + "# 100,000 rows,,\n", "line 52 has 4 fields"),
        ("id,x\n" + "1,2\n" * 50 + '3,"open\n' + "4,5\n" * 5, "a quote is opened there, or later, and not closed"),
        ("id,x\n" + "1,2\r\n" * 50 + "3,4\n", "whether all lines end alike"),
        ("sep=;\nid;x\n" + "1;2\n" * 50, "which Excel writes before the names"),
    ],
)
def test_a_line_with_another_number_of_fields_is_named(tmp_path, text, words):
    (path := tmp_path / "rows.csv").write_text(text)
    with pytest.raises(BadInput, match=words):
        read(path, tmp_path)


def test_no_line_is_left_out_as_a_comment_and_quotes_may_come_late(tmp_path, monkeypatch):
    (path := tmp_path / "rows.csv").write_text("id,x\n" + "1,2\n" * 130_000 + '#3,"a,b"\n')
    assert read(path, tmp_path).slice(130_000).to_pylist() == [{"id": "#3", "x": "a,b"}]


def test_a_packed_file_that_is_cut_off_says_so(tmp_path):
    (path := tmp_path / "rows.csv.gz").write_bytes(gzip.compress(("id,x\n" + "1,2\n" * 20_000).encode())[:-60])
    with pytest.raises(BadInput, match="Truncated compressed stream"):
        read(path, tmp_path)


def test_another_encoding_is_named_with_its_setting_and_read_with_it(tmp_path):
    (path := tmp_path / "rows.csv").write_bytes("id,x\n1,bär\n2,c\n".encode("latin-1"))
    with pytest.raises(BadInput, match="encoding: latin-1"):
        read(path, tmp_path)
    assert read(path, tmp_path, encoding="latin-1")["x"].to_pylist() == ["bär", "c"]
    path.write_bytes("id,x\n1,bär\n2,c\n".encode("utf-16"))  # begins with a mark of it
    assert read(path, tmp_path)["x"].to_pylist() == ["bär", "c"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["1", "2", "NULL", "\\N", "-"], r"`x`: 3 values read as null \(-, NULL, \\N\)"),
        (["0,5"] * 5, "decimal comma"),
        (["03/04/2024"] * 5, "dates in a form of their own"),
        (["1"] * 19 + ["Total"], "`x` is read as text: 1 of 20 values are no bigint, the first in row 20: 'Total'"),
        (["007"] * 5, "zeros in front"),
        (["12%"] * 5, "a per cent sign"),
        (["2024-01-05 01:00 PM"] * 5, "dates in a form of their own"),
    ],
)
def test_what_a_column_is_read_as_is_said_where_it_might_surprise(tmp_path, values, said):
    (path := tmp_path / "rows.csv").write_text("id;x\n" + "".join(f"{n};{v}\n" for n, v in enumerate(values)))
    with TableEngine(tmp_path) as engine:
        lines = list(as_parquet(engine, files_at(path), tmp_path / "read.parquet"))
    assert any(re.search(said, line) for line in lines), lines


@pytest.mark.parametrize(
    "form",
    [
        "{0}T{1}Z",
        "{0} {1} UTC",
        "{0} {1},000",
        "{0}T{1}+00:00[Europe/London]",
        "{2}T{3}Z",
        "{0} {1}.000000+00",
        "{0}T{1}+0000",
    ],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_times_in_every_usual_form_are_the_same_in_files_and_messages(tmp_path, form, backwards):
    moments = [START + timedelta(seconds=977 * n) for n in range(ROWS)][:: -1 if backwards else 1]
    texts = [form.format(t.date(), t.time(), t.strftime("%Y%m%d"), t.strftime("%H%M%S")) for t in moments]
    wanted = [int(t.replace(tzinfo=UTC).timestamp() * 1000) for t in moments]
    assert milliseconds(pa.array(texts), "ms").to_pylist() == wanted
    (path := tmp_path / "rows.csv").write_text("at;x\n" + "".join(f"{text};1\n" for text in texts))
    found = Copies(tmp_path / "copies").of(path, Reading("at"))
    at = pq.read_table(found.path)["at"].combine_chunks()
    assert milliseconds(at, found.unit).to_pylist() == sorted(wanted)

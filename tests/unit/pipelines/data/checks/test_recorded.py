"""`exfm check` of a config with a Parquet file: each mistake that a first file has, by the id of its finding."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

from pipelines.cli import console
from pipelines.core.config.settings import parse
from pipelines.data.checks.check import check_config
from pipelines.data.findings import Severity

ROWS = 4000
N = np.arange(ROWS)
SCREEN = Path(__file__).with_name("screen.txt").read_text()
CONFIG: dict[str, Any] = {
    "name": "mine",
    "source": {
        "kind": "recorded",
        "event_time": "shown_at",
        "event_time_unit": "s",
        "vertical": "surface",
        "labels": {"ctr": {"column": "clicked", "delay_column": "delay_s"}},
    },
    "rows": {
        "columns": [{"name": "user", "minimum": 0, "maximum": 1999}, {"name": "price", "type": "float32"}],
        "tasks": [{"name": "ctr", "window_s": 600}],
    },
    "features": {"sparse": [{"name": "user", "rows": 2000, "transform": "index"}], "dense": [{"name": "price"}]},
    "students": [{"name": "home"}, {"name": "all", "verticals": ["home", "search"]}],
}


def stream(**columns: Any) -> pa.Table:
    """A file without a flaw, with columns replaced."""
    random = np.random.default_rng(1)
    good = {
        "shown_at": 1_700_000_000 + np.sort(random.integers(0, 86_400, ROWS)),
        "surface": ["home", "search"] * (ROWS // 2),
        "user": random.integers(0, 500, ROWS),
        "price": random.random(ROWS).astype(np.float32),
        "clicked": (N % 20 == 0).astype(np.int8),
        "delay_s": random.integers(1, 500, ROWS),
    }
    return pa.table(good | columns)


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def report(table: pa.Table | None, **settings: Any):
        raw = copy.deepcopy(CONFIG)
        raw["source"]["path"] = "clicks.parquet"
        for path, value in settings.items():
            *parents, last = path.split("__")
            node = raw
            for parent in parents:
                node = node[parent]
            node[last] = value
        if table is not None:
            pq.write_table(table, "clicks.parquet", row_group_size=1000)
        Path("run.yaml").write_text(yaml.safe_dump(raw))
        return check_config(parse(raw))

    return report


def found(report) -> dict[str, tuple[Severity, str]]:
    """Findings by id: how grave the gravest is, and what they say."""
    by_id: dict[str, tuple[Severity, str]] = {}
    for f in report.findings:
        severity, said = by_id.get(f.id, (f.severity, ""))
        by_id[f.id] = severity, f"{said}{f.where}: {f.seen}; {f.remedy} | "
    return by_id


def missing(every: int, values: np.ndarray) -> pa.Array:
    return pa.array(values, mask=np.arange(len(values)) % every != 0)


def test_a_good_file_has_nothing_in_its_way(check):
    report = check(stream())
    assert (report.findings, report.verdict) == ([], "no problems found")
    assert report.profile.labels["ctr"].positives == ROWS // 20
    assert report.profile.verticals == {"home": ROWS // 2, "search": ROWS // 2}


SPARSE, ONES = "features__sparse", np.ones(ROWS, np.float32)
STOPS = {  # what is wrong: columns, settings, the finding's id, and the numbers and names in it
    "late clicks": ({"delay_s": np.full(ROWS, 5000)}, {}, "label.late", ["100 %", "200 of 200", "window_s: 5000"]),
    "nulls": ({"price": missing(50, ONES)}, {}, "rows.refused", ["98 %", "3,920 of 4,000", "null:price"]),
    "negative ids": ({"user": np.full(ROWS, -1)}, {}, "rows.refused", ["100 %", "out_of_range:user", "`user` is -1"]),
    "reasons that are bearable one by one": (
        {"user": np.where(N % 3 == 1, -1, 5), "price": pa.array(ONES, mask=N % 3 == 0)},
        {}, "rows.refused-in-all", ["67 %", "2,667 of 4,000", "2 reasons"],
    ),
    "an absent vertical": (
        {}, {"students": [{"name": "home", "verticals": ["hmoe"]}]}, "vertical.absent", ["`hmoe`", "`home`?", "2,000"],
    ),
    "hours as numbers": (
        {"shown_at": np.sort(14_102_100 + N % 24)}, {}, "time.written", ["14102100", "YYMMDDHH", "1970-06-13"],
    ),
    "seconds as milliseconds": ({}, {"source__event_time_unit": "ms"}, "time.unit", ["1970", "2023", "unit: s"]),
    "milliseconds as seconds": ({"shown_at": 1_700_000_000_000 + N}, {}, "time.unit", ["milliseconds", "2023-11-14"]),
    "a wrong column": (
        {}, {"source__columns": {"user": "uid"}}, "source.unreadable", ["no column uid", "shown_at, surface, user"],
    ),
    "texts as labels": ({"clicked": ["buy", "view"] * (ROWS // 2)}, {}, "source.label", ["string", "`buy`", "values:"]),
    "a text that is no time": ({"shown_at": ["yesterday"] * ROWS}, {}, "source.time", ["'yesterday'", "ISO 8601"]),
    "a table of floats": ({}, {SPARSE: [{"name": "price", "rows": 10}]}, "feature.unreadable", ["`bucketize`"]),
    "an index outside its table": (
        {}, {SPARSE: [{"name": "user", "rows": 100, "transform": "index"}]}, "rows.refused", ["allowed: 0 to 99"],
    ),
    "an unknown task": (
        {}, {"source__labels": {"click": {"column": "clicked"}}}, "source.unreadable", ["task click", "has ctr"],
    ),
    "no positive": ({"clicked": np.zeros(ROWS, np.int8)}, {}, "label.constant", ["negative", "0 positives"]),
    "two columns of other types": (
        {"user": ["a"] * ROWS, "price": ["cheap"] * ROWS}, {}, "source.unreadable", ["`user` is string", "int64"],
    ),
}  # fmt: skip
WARNS = {
    "nine positives": ({"clicked": (N < 9).astype(np.int8)}, {}, "label.rare", ["9 positives in 4,000 rows"]),
    "many positives": ({"clicked": np.minimum(N % 5, 1)}, {}, "label.often", ["80 %"]),
    "a small table": ({}, {SPARSE: [{"name": "user", "rows": 50}]}, "feature.small-table", ["50 rows"]),
    "some dead letters": (
        {"price": missing(1, ONES), "user": np.where(N % 40, 1, -5)}, {}, "rows.refused", ["2.5 %", "100 of 4,000"],
    ),
    "relative times": ({"shown_at": N}, {}, "time.unusual", ["1970-01-01 00:00"]),
    "somewhat many verticals": ({"surface": [f"v{n // 30}" for n in N]}, {}, "vertical.too-many", ["134 verticals"]),
}  # fmt: skip


@pytest.mark.parametrize("name", [*STOPS, *WARNS])
def test_a_mistake_of_a_first_file_is_found_with_its_numbers(check, name):
    columns, settings, id_, parts = (STOPS | WARNS)[name]
    severity, said = found(check(stream(**columns), **settings)).get(id_, (None, ""))
    assert severity is (Severity.STOP if name in STOPS else Severity.WARN)
    assert [part for part in parts if part not in said] == []


def test_too_many_verticals_and_users_as_impressions_stop_a_run(check):
    severity, said = found(check(stream(surface=[f"v{n}" for n in N])))["vertical.too-many"]
    assert (severity, "4,000 verticals" in said, "3,902 of 4,000" in said) == (Severity.STOP, True, True)
    assert "rows.id-repeats" in found(check(stream(), source__impression_id="user"))


def test_null_labels_are_unknown(check):
    clicked = missing(2, (N % 20 == 0).astype(np.int8))
    severity, said = found(check(stream(clicked=clicked)))["label.unknown"]
    assert (severity, "50 %" in said) == (Severity.NOTE, True)


def test_a_wrong_order_far_from_the_rows_looked_at_is_sorted_and_said(check):
    times = 1_700_000_000 + N
    times[1100] -= 500
    report = check(stream(shown_at=times))
    assert "rows that were earlier than a row before: 1; sorted on disk" in found(report)["source.prepared"][1]
    assert not report.stops
    assert not report.profile.time.lowest_ms > 1_700_000_000_000
    assert check(stream(shown_at=times), source__out_of_order_s=499).findings == []


def test_files_that_are_no_parquet_files(check):
    def said(**settings: Any) -> str:
        return found(check(None, **settings))["source.unreadable"][1]

    assert "clicks.parquet: no such file" in said()
    Path("clicks.parquet").write_text("a,b\n1,2\n")
    assert "cannot be read as Parquet" in said()
    pq.write_table(stream().slice(0, 0), "clicks.parquet")
    assert "has no rows" in said()
    Path("clicks.csv").write_text("a,b\n1,2\n")
    assert "has no column clicked, delay_s" in said(source__path="clicks.csv")


def test_text_is_checked_as_it_will_be_played(check, capsys):
    pyarrow.csv.write_csv(stream(), "clicks.csv")
    report = check(None, source__path="clicks.csv")
    assert "clicks.csv written as one Parquet file" in found(report)["source.prepared"][1]
    assert report.profile.labels["ctr"].positives == ROWS // 20
    assert call("check", "run.yaml") == 0
    assert "runs/mine/source/clicks-" in capsys.readouterr().out
    (copy,) = Path("runs/mine/source").glob("*.parquet")
    before = copy.stat().st_mtime_ns
    assert call("check", "run.yaml") == 0
    assert copy.stat().st_mtime_ns == before


def test_feedback_in_a_file_of_its_own_is_matched_by_id(check):
    when = 1_700_000_000 + N
    times = (when[::5][:200] + 3600) * 1000
    clicks = {"impression_id": np.arange(0, 1000, 5), "event_time_ms": times, "task": ["ctr"] * 200}
    pq.write_table(pa.table(clicks), "feedback.parquet")
    feedback = {"source__labels": {}, "source__feedback": {"path": "feedback.parquet"}}
    report = check(stream(shown_at=when, id=N), source__impression_id="id", **feedback)
    assert report.profile.labels["ctr"].positives == 200
    severity, said = found(report)["label.late"]
    assert (severity, "200 of 200" in said) == (Severity.STOP, True)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        console.main(list(arguments))
    return int(left.value.code or 0)


def test_the_screen_fits_80_columns_and_ends_with_the_verdict(check, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    prices = [None if n % 100 == 0 else float(n % 7) for n in N]
    check(stream(delay_s=np.full(ROWS, 5000), price=pa.array(prices, pa.float32())))
    assert call("check", "run.yaml") == 2
    assert capsys.readouterr().out == SCREEN
    assert max(map(len, SCREEN.splitlines())) <= 80


def test_the_command_as_json(check, capsys):
    prices = [None if n % 100 == 0 else float(n % 7) for n in N]
    check(stream(user=np.full(ROWS, -1), price=pa.array(prices, pa.float32())))
    assert call("check", "run.yaml", "--json", "--sample", "300") == 2
    value = json.loads(capsys.readouterr().out)
    assert (value["stops"], value["sample"]["rows"], value["sample"]["looked_at"]) == (True, ROWS, 300)
    assert set(value["findings"][0]) == {"id", "severity", "where", "seen", "remedy"}
    assert [value["findings"][0][key] for key in ("id", "severity")] == ["rows.refused", "stop"]
    price = value["columns"][-1]
    seen = {"nulls": 3, "smallest": 0.0, "largest": 6.0, "distinct": 7, "refused": 0}  # a row is refused for one reason
    assert price == {"name": "price", "type": "float"} | seen


def test_a_bare_file_needs_a_config(check, capsys):
    check(stream())
    assert call("check", "clicks.parquet") == 2
    assert "clicks.parquet is data; `exfm check` takes a config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("declared", "feature", "id_", "parts"),
    [
        ({"minimum": 0, "maximum": 499}, {"rows": 2000}, "feature.could-index", ["0 to 499", "2,000 rows", "22 %"]),
        ({}, {"rows": 2000}, "feature.could-index", ["minimum: 0 and maximum: 1999, too"]),
        ({"minimum": 0}, {"rows": 2000, "transform": "index"}, "feature.index-bounds", ["0 to 1,999", "maximum: 1999"]),
        ({"minimum": 0, "maximum": 499}, {"rows": 500, "transform": "index"}, None, []),
        ({"minimum": 0}, {"rows": 10**6}, None, []),
    ],
    ids=["ids that fit and are hashed", "undeclared", "an index without bounds", "an index of all ids", "room"],
)
def test_ids_that_could_have_rows_of_their_own_and_do_not_are_noted(check, declared, feature, id_, parts):
    columns = [{"name": "user", **declared}, {"name": "price", "type": "float32"}]
    notes = found(check(stream(), rows__columns=columns, features__sparse=[{"name": "user", **feature}]))
    assert [*notes] == ([id_] if id_ else [])
    assert [part for part in parts if part not in notes[id_][1]] == []


def test_of_columns_that_no_feature_uses_nothing_is_said(check):
    columns = [{"name": "note", "type": "string", "nullable": True}, {"name": "one"}]
    table = stream(note=pa.nulls(ROWS, pa.string()), one=np.ones(ROWS, int))
    assert found(check(table, rows__columns=[*CONFIG["rows"]["columns"], *columns])) == {}

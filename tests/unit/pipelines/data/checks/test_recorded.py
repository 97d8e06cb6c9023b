"""`exfm check` of a config with a Parquet file: each mistake that a first file has, and the words that name it."""

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
from pipelines.data.checks.screen import report_text
from pipelines.data.profile.finding import Severity

ROWS = 4000
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
        "clicked": (np.arange(ROWS) % 20 == 0).astype(np.int8),
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


def said(report, severity: Severity) -> str:
    found = [f for f in report.findings if f.severity is severity]
    return " | ".join(f"{f.where}: {f.seen}; {f.remedy}" for f in found)


def test_a_good_file_has_nothing_in_its_way(check):
    report = check(stream())
    assert (report.findings, report.verdict) == ([], "nothing stands in the way of this run")
    assert report.sample.labels["ctr"].positives == ROWS // 20
    assert report.sample.verticals == {"home": ROWS // 2, "search": ROWS // 2}


def missing(every: int, values: np.ndarray) -> pa.Array:
    return pa.array(values, mask=np.arange(len(values)) % every != 0)


@pytest.mark.parametrize(
    ("columns", "settings", "words"),
    [
        pytest.param(
            {"delay_s": np.full(ROWS, 5000)},
            {},
            [
                "100 % of the ctr feedback (200 of 200) comes later than its window of 600 s",
                "window_s: 5000 catches 99",
            ],
            id="click delays longer than the window",
        ),
        pytest.param(
            {"price": missing(50, np.ones(ROWS, np.float32))},
            {},
            [
                "98 % of rows (3,920 of 4,000) would become dead letters: null:price",
                "declare the column with `nullable",
            ],
            id="dense columns with missing values",
        ),
        pytest.param(
            {"user": np.full(ROWS, -1)},
            {},
            ["100 % of rows (4,000 of 4,000) would become dead letters: out_of_range:user", "`user` is -1", "minimum"],
            id="negative ids",
        ),
        pytest.param(
            {
                "user": np.where(np.arange(ROWS) % 3 == 1, -1, 5),
                "price": pa.array(np.ones(ROWS, np.float32), mask=np.arange(ROWS) % 3 == 0),
            },
            {},
            ["67 % of rows (2,667 of 4,000) would become dead letters in all, for 2 reasons"],
            id="several reasons that are bearable one by one",
        ),
        pytest.param(
            {},
            {"students": [{"name": "home", "verticals": ["hmoe"]}]},
            ["no row has the vertical `hmoe`: it would learn nothing", "did you mean `home`?", "home (2,000)"],
            id="a student of a vertical that never occurs",
        ),
        pytest.param(
            {"shown_at": np.sort(14_102_100 + np.arange(ROWS) % 24)},
            {},
            ["14102100 looks like a date written as YYMMDDHH", "1970-06-13", "pd.to_datetime"],
            id="integer hours as time",
        ),
        pytest.param(
            {},
            {"source__event_time_unit": "ms"},
            ["read as milliseconds, times go from 1970", "as seconds they would be of 2023", "event_time_unit: s"],
            id="seconds declared as milliseconds",
        ),
        pytest.param(
            {"shown_at": 1_700_000_000_000 + np.arange(ROWS)},
            {},
            ["read as seconds", "as milliseconds they would be of 2023-11-14"],
            id="milliseconds declared as seconds",
        ),
        pytest.param(
            {},
            {"source__columns": {"user": "uid"}},
            ["clicks.parquet has no column uid; it has shown_at, surface, user"],
            id="wrong column",
        ),
        pytest.param(
            {"clicked": ["buy", "view"] * (ROWS // 2)},
            {},
            ["`clicked` is string and holds `buy`", "values: ["],
            id="string labels",
        ),
        pytest.param({"shown_at": ["yesterday"] * ROWS}, {}, ["'yesterday'", "ISO 8601"], id="text that is no time"),
        pytest.param(
            {},
            {"features__sparse": [{"name": "price", "rows": 10}]},
            ["feature `price` hashes column `price` of type float", "`bucketize` for a float"],
            id="sparse feature on a float",
        ),
        pytest.param(
            {},
            {"features__sparse": [{"name": "user", "rows": 100, "transform": "index"}]},
            ["dead letters", "allowed: 0 to 99", "the table that it is an index into"],
            id="an index outside its table",
        ),
        pytest.param(
            {},
            {"source__labels": {"click": {"column": "clicked"}}},
            ["labels name task click; the schema has ctr"],
            id="unknown task",
        ),
        pytest.param({"clicked": np.zeros(ROWS, np.int8)}, {}, ["every label is negative (0 positives"], id="no label"),
        pytest.param(
            {"user": ["a"] * ROWS, "price": ["cheap"] * ROWS},
            {},
            ["`user` is string, and it is declared int64; declare it `type: string`", "`price` is string"],
            id="two columns of other types, both named",
        ),
    ],
)
def test_what_stops_a_run_is_named_with_what_to_do(check, columns, settings, words):
    report = check(stream(**columns), **settings)
    stops = said(report, Severity.STOP)
    assert all(word in stops for word in words), stops


@pytest.mark.parametrize(
    ("columns", "settings", "words"),
    [
        pytest.param(
            {"clicked": (np.arange(ROWS) < 9).astype(np.int8)},
            {},
            "9 positives in 4,000 rows are too few to tell models apart",
            id="nine positives",
        ),
        pytest.param({"clicked": np.minimum(np.arange(ROWS) % 5, 1)}, {}, "80 % of labels are positive", id="many"),
        pytest.param(
            {},
            {"features__sparse": [{"name": "user", "rows": 50}]},
            "distinct ids among the rows looked at share 50 rows of its table",
            id="a small hash table",
        ),
        pytest.param(
            {"price": missing(1, np.ones(ROWS, np.float32)), "user": np.where(np.arange(ROWS) % 40, 1, -5)},
            {},
            "2.5 % of rows (100 of 4,000) would become dead letters: out_of_range:user",
            id="some dead letters",
        ),
        pytest.param(
            {"shown_at": np.arange(ROWS)}, {}, "times that count from the start of a log are fine", id="relative times"
        ),
        pytest.param(
            {"surface": [f"v{n}" for n in range(ROWS)]},
            {},
            "4,000 verticals, which each get files of their own in the lake, and 100 are taken (lake.max_verticals): "
            "rows of further ones become dead letters, 3,902 of 4,000 at least",
            id="many verticals",
        ),
        pytest.param(
            {"surface": [f"v{n // 30}" for n in range(ROWS)]},
            {},
            "134 verticals, which each get files of their own in the lake, and 100 are taken (lake.max_verticals): "
            "rows of further ones become dead letters",
            id="somewhat many verticals",
        ),
        pytest.param(
            {}, {"source__impression_id": "user"}, "rows repeat the id of another one", id="users as impressions"
        ),
    ],
)
def test_what_a_run_can_live_with_is_a_warning(check, columns, settings, words):
    report = check(stream(**columns), **settings)
    assert words in said(report, Severity.WARN) + said(report, Severity.STOP)


def test_null_labels_are_unknown_and_said_so(check):
    clicked = missing(2, (np.arange(ROWS) % 20 == 0).astype(np.int8))
    assert "50 % of labels are null: unknown, not learned" in said(check(stream(clicked=clicked)), Severity.NOTE)


def test_a_wrong_order_far_from_the_rows_looked_at_is_sorted_and_said(check):
    times = 1_700_000_000 + np.arange(ROWS)
    times[1100] -= 500
    report = check(stream(shown_at=times))
    assert "clicks.parquet: rows that were earlier than a row before: 1; sorted on disk" in said(report, Severity.NOTE)
    assert not report.stops
    assert not report.sample.time.lowest_ms > 1_700_000_000_000
    assert check(stream(shown_at=times), source__out_of_order_s=499).findings == []


def test_files_that_are_no_parquet_files(check, tmp_path):
    assert "clicks.parquet: no such file" in said(check(None), Severity.STOP)
    Path("clicks.parquet").write_text("a,b\n1,2\n")
    assert "cannot be read as Parquet" in said(check(None), Severity.STOP)
    assert "has no rows" in said(check(stream().slice(0, 0)), Severity.STOP)
    Path("clicks.csv").write_text("a,b\n1,2\n")
    assert "has no column clicked, delay_s" in said(check(None, source__path="clicks.csv"), Severity.STOP)


def test_text_is_checked_as_it_will_be_played(check, capsys):
    table = stream()
    pyarrow.csv.write_csv(table, "clicks.csv")
    report = check(None, source__path="clicks.csv")
    assert "clicks.csv written as one Parquet file" in said(report, Severity.NOTE)
    assert report.sample.labels["ctr"].positives == ROWS // 20
    assert call("check", "run.yaml") == 0
    assert "runs/mine/source/clicks-" in capsys.readouterr().out
    (copy,) = Path("runs/mine/source").glob("*.parquet")
    before = copy.stat().st_mtime_ns
    assert call("check", "run.yaml") == 0
    assert copy.stat().st_mtime_ns == before


def test_feedback_in_a_file_of_its_own_is_matched_by_id(check):
    when = 1_700_000_000 + np.arange(ROWS)
    clicks = pa.table(
        {
            "impression_id": np.arange(0, 1000, 5),
            "event_time_ms": (when[::5][:200] + 3600) * 1000,
            "task": ["ctr"] * 200,
        }
    )
    pq.write_table(clicks, "feedback.parquet")
    report = check(
        stream(shown_at=when, id=np.arange(ROWS)),
        source__labels={},
        source__impression_id="id",
        source__feedback={"path": "feedback.parquet"},
    )
    assert report.sample.labels["ctr"].positives == 200
    assert "100 % of the ctr feedback (200 of 200) comes later than its window" in said(report, Severity.STOP)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        console.main(list(arguments))
    return int(left.value.code or 0)


def test_the_command_fits_80_columns_and_ends_with_the_verdict(check, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    check(stream(delay_s=np.full(ROWS, 5000)))
    assert call("check", "run.yaml") == 2
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "1 problem stops this run"
    check(stream())
    assert call("check", "run.yaml") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing stands in the way of this run"


def test_the_command_as_json(check, capsys):
    check(stream(user=np.full(ROWS, -1)))
    assert call("check", "run.yaml", "--json", "--sample", "300") == 2
    value = json.loads(capsys.readouterr().out)
    assert value["stops"]
    assert value["findings"][0]["severity"] == "stop"
    assert value["sample"]["rows"] == ROWS
    assert value["sample"]["looked_at"] == 300
    assert value["sample"]["columns"][0]["name"] == "impression_id"


def test_a_report_names_every_column_once(check):
    text = report_text(check(stream()))
    assert [line.split()[0] for line in text.splitlines() if " int64 " in line or "float" in line] == [
        "impression_id", "event_time_ms", "user", "price",
    ]  # fmt: skip


def test_a_bare_file_needs_a_config(check, capsys):
    check(stream())
    assert call("check", "clicks.parquet") == 2
    assert "clicks.parquet is data; `exfm check` takes a config" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("declared", "feature", "words"),
    [
        pytest.param(
            {"minimum": 0, "maximum": 499},
            {"rows": 2000},
            [
                "ids of `user` lie in 0 to 499 and fit into the table of 2,000 rows; hashed, 22 % of the 500",
                "transform: index has no collisions",
            ],
            id="ids that fit and are hashed",
        ),
        pytest.param(
            {}, {"rows": 2000}, ["declare the column with minimum: 0 and maximum: 1999, too"], id="undeclared"
        ),
        pytest.param(
            {"minimum": 0},
            {"rows": 2000, "transform": "index"},
            ["a value outside 0 to 1,999 makes its row a dead letter", "minimum: 0 and maximum: 1999"],
            id="an index without bounds",
        ),
        pytest.param({"minimum": 0, "maximum": 499}, {"rows": 500, "transform": "index"}, [], id="an index of all ids"),
        pytest.param({"minimum": 0}, {"rows": 10**6}, [], id="hashed into a table that has room"),
    ],
)
def test_ids_that_could_have_rows_of_their_own_and_do_not_are_noted(check, declared, feature, words):
    columns = [{"name": "user", **declared}, {"name": "price", "type": "float32"}]
    features = [{"name": "user", **feature}]
    report = check(stream(), rows__columns=columns, features__sparse=features)
    noted = said(report, Severity.NOTE)
    assert all(word in noted for word in words)
    assert bool(noted) == bool(words)


def test_each_column_is_shown_with_what_was_read_of_it(check):
    prices = [None if n % 100 == 0 else float(n % 7) for n in range(ROWS)]
    report = check(stream(price=pa.array(prices, pa.float32())))
    (price,) = (column for column in report.as_json()["columns"] if column["name"] == "price")
    few = ROWS // 100
    seen = {"nulls": few, "smallest": 0.0, "largest": 6.0, "distinct": 7, "refused": few}
    assert price == {"name": "price", "type": "float"} | seen
    assert any(line.split()[:4] == ["price", "float", "1.0%", str(few)] for line in report_text(report).splitlines())


def test_of_columns_that_no_feature_uses_nothing_is_said(check):
    columns = [{"name": "note", "type": "string", "nullable": True}, {"name": "one"}]
    table = stream(note=pa.nulls(ROWS, pa.string()), one=np.ones(ROWS, int))
    report = check(table, rows__columns=[*CONFIG["rows"]["columns"], *columns])
    assert not [finding for finding in report.findings if "note" in finding.seen or "one" in finding.seen]

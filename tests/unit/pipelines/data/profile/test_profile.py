"""Labelled rows, checked before anything trains: what is planted is named first, and what is well is left alone."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.cli import console as cli
from pipelines.data.checks.drift import drifts
from pipelines.data.checks.examine import examined
from pipelines.data.checks.leakage import what_features_know
from pipelines.data.checks.supply import shortages
from pipelines.data.findings import Severity
from pipelines.data.profile.rows import rows_of_file
from streaming.errors import BadInput

DAY_MS = 86_400_000


def rows(n: int = 20_000, days: int = 8, seed: int = 0, **more) -> pa.Table:
    """Clicks that depend on user, ad and hour, as real ones do."""
    rng = np.random.default_rng(seed)
    user, ad = rng.zipf(1.3, n) % 2000, rng.integers(0, 50, n)
    taste, quality = rng.normal(0, 0.8, 2000), rng.normal(0, 0.6, 50)
    p = 1 / (1 + np.exp(-(-2.5 + taste[user] + quality[ad])))
    clicked = rng.random(n) < p
    columns = {
        "impression_id": np.arange(n), "event_time_ms": np.sort(rng.integers(0, days * DAY_MS, n)),
        "vertical": np.where(ad % 2, "feed", "shop"), "user_id": user, "ad_id": ad,
        "bid": rng.lognormal(0, 1, n).astype(np.float32), "label_ctr": clicked.astype(np.int8),
    }  # fmt: skip
    return pa.table(columns | more)


def found(table: pa.Table, **more) -> dict[str, str]:
    return {finding.where: str(finding.severity) for finding in examined(table, **more).findings}


def test_rows_that_are_well_have_no_finding():
    assert found(rows()) == {}
    assert examined(rows()).verdict == "no problems found"


def test_a_planted_leak_and_a_planted_skew_are_named_first():
    table = rows()
    rng = np.random.default_rng(1)
    y = np.array(table["label_ctr"])
    knows = np.where(rng.random(len(y)) < 0.97, y, 1 - y)  # a counter that is filled in after the click
    bid = np.array(table["bid"])
    served = np.where(rng.random(len(y)) < 0.1, 2 * bid, bid).astype(np.float32)
    day = np.array(table["event_time_ms"]) // DAY_MS
    drifting = rng.integers(0, 10, len(y)) + 10 * (day >= 6)
    planted = table.append_column("clicks_today", pa.array(knows)).append_column("served_bid", pa.array(served))
    report = examined(planted.append_column("device", pa.array(drifting)))
    assert [finding.where for finding in report.findings] == ["leakage: clicks_today", "skew: bid", "drift: device"]
    assert [str(finding.severity) for finding in report.findings] == ["stop", "stop", "warn"]
    leak, apart, changed = (finding.seen for finding in report.findings)
    assert "`clicks_today` alone predicts ctr with an AUC of 0.9" in leak
    assert "differ in 9.8 % of 20,000 rows" in apart
    assert "changed most at 1970-01-07" in changed


def test_what_a_feature_knows_is_learned_from_earlier_rows_alone():
    """An id that never comes twice knows nothing, though it is different for every click."""
    table = rows()
    known = {
        one.feature: one for one in what_features_know(table.append_column("nonce", table["impression_id"]), ["ctr"])
    }
    assert known["nonce"].auc == 0.5
    assert 0.55 < known["user_id"].auc < 0.8
    assert known["bid"].auc == pytest.approx(0.5, abs=0.03)


def test_a_feature_that_is_absent_where_it_was_not_clicked_knows_the_label():
    table = rows()
    y = np.array(table["label_ctr"]) > 0
    dwell = pa.array(np.random.default_rng(2).random(len(y)), mask=~y)
    assert found(table.append_column("dwell", dwell)) == {"leakage: dwell": "stop"}


def test_recorded_values_are_found_by_their_id_whatever_their_order():
    table = rows(2000)
    recorded = table.select(["impression_id", "bid", "user_id"]).take(np.random.default_rng(3).permutation(2000))
    assert found(table, recorded=recorded) == {}
    bid = np.array(recorded["bid"].to_pylist(), np.float32)
    bid[:40] = np.nan
    assert found(table, recorded=recorded.set_column(1, "bid", pa.array(bid))) == {"skew: bid": "warn"}
    assert found(table, recorded=recorded.slice(0, 500)) == {"skew": "warn"}


def test_supply_is_told_days_rates_labels_logits_and_repeats():
    table = rows()
    day = np.array(table["event_time_ms"]) // DAY_MS
    thin = table.filter(pa.array((day != 3) | (np.arange(len(day)) % 10 == 0)))
    assert found(thin) == {"volume": "warn"}
    y = np.where(day == 5, 0, np.array(table["label_ctr"])).astype(np.int8)
    at = table.schema.names.index("label_ctr")
    assert found(table.set_column(at, "label_ctr", pa.array(y))) == {"label rate of ctr": "warn"}
    lost = pa.array(np.array(table["label_ctr"]), mask=np.arange(len(y)) % 10 == 0)
    assert found(table.set_column(at, "label_ctr", lost)) == {"join rate of ctr": "warn"}
    logits = pa.array(np.zeros(len(y), np.float32), mask=np.arange(len(y)) % 4 == 0)
    assert found(table.append_column("teacher_logit_ctr", logits)) == {"teacher's logits of ctr": "warn"}
    assert found(pa.concat_tables([table, table.slice(0, 100)])) == {"duplicates": "warn"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("usual", "words"),
    [(0, "0.7500 of 400 rows are positive, 0.0000 of"), (1, "0.2500 of 400 rows are positive, 1.0000 of")],
)
def test_a_day_is_judged_where_all_other_days_are_alike(usual, words):
    day = np.repeat(np.arange(6), 400)
    y = np.where((day == 3) & (np.arange(len(day)) % 4 > 0), 1 - usual, usual).astype(np.int8)
    table = pa.table({"event_time_ms": DAY_MS * day, "label_ctr": y})
    assert f"1970-01-04: {words} the others" in [each.seen for each in shortages(table, ["ctr"])]
    assert found(table.slice(0, 0)) == {"rows": "stop"}


def test_a_lakes_rows_of_another_settlement_lack_no_label():
    both = [rows(4000, seed=seed) for seed in range(2)]
    ctr = (
        both[0]
        .append_column("settlement", pa.repeat("ctr", 4000))
        .append_column("label_cvr", pa.nulls(4000, pa.int8()))
    )
    cvr = both[1].append_column("settlement", pa.repeat("cvr", 4000)).append_column("label_cvr", both[1]["label_ctr"])
    cvr = cvr.set_column(cvr.schema.names.index("label_ctr"), "label_ctr", pa.nulls(4000, pa.int8()))
    table = pa.concat_tables([ctr, cvr.select(ctr.schema.names)])
    assert not [where for where in found(table) if where.startswith(("join", "duplicates", "label"))]


def test_drift_in_one_vertical_is_named_with_it():
    table = rows()
    late = np.array(table["event_time_ms"]) >= 7 * DAY_MS
    shop = np.array(table["vertical"]) == "shop"
    ad = np.where(late & shop, 1000 + np.arange(len(late)) % 3, np.array(table["ad_id"]))
    (most, *_) = drifts(table.set_column(table.schema.names.index("ad_id"), "ad_id", pa.array(ad)))
    assert (most.feature, most.vertical, most.day) == ("ad_id", "shop", "1970-01-08")


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main(["check", *map(str, arguments)])
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_names_a_leak_and_exits_with_2(tmp_path, capsys):
    table = rows(6000)
    y = table["label_ctr"]
    table = table.drop_columns("label_ctr").append_column("click", y).append_column("clicks_today", y)
    pq.write_table(table.rename_columns({"event_time_ms": "shown_at"}), tmp_path / "log.parquet")
    code, out, _ = run(capsys, tmp_path / "log.parquet", "--label", "click", "--time", "shown_at")
    assert code == 2
    assert "stop  leakage: clicks_today" in out.splitlines()
    assert any(line.startswith("bid ") for line in out.splitlines())
    assert out.splitlines()[-1].startswith("1 problem found")
    code, out, _ = run(capsys, tmp_path / "log.parquet", "--label", "click", "--time", "shown_at", "--json")
    shown = json.loads(out)
    assert shown["findings"][0]["where"] == "leakage: clicks_today"
    (ad,) = (column for column in shown["columns"] if column["name"] == "ad_id")
    seen = {"nulls": 0, "smallest": 0, "largest": 49, "distinct": 50, "refused": 0}
    assert ad == {"name": "ad_id", "type": "int64"} | seen


def test_rows_that_are_well_exit_with_0_also_with_what_was_served(tmp_path, capsys):
    pq.write_table(rows(6000), tmp_path / "log.parquet")
    pq.write_table(rows(6000).select(["impression_id", "bid"]), tmp_path / "served.parquet")
    code, out, _ = run(capsys, tmp_path / "log.parquet", "--against", tmp_path / "served.parquet")
    assert (code, out.splitlines()[-1]) == (0, "no problems found")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--label", "clicked"), "has no column `clicked`; columns: impression_id, event_time_ms"),
        (("--label", "vertical"), "a label is a number or true/false"),
        ((), "log.parquet` writes one), or --label COLUMN"),
    ],
)
def test_what_cannot_be_checked_is_told(tmp_path, capsys, given, words):
    pq.write_table(rows(100).drop_columns("label_ctr"), tmp_path / "log.parquet")
    code, _, err = run(capsys, tmp_path / "log.parquet", *given)
    assert code == 2
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.parquet", "there is no none.parquet"),
        ("no.parquet", "no.parquet cannot be read as Parquet"),
        ("rows.csv.gz", "`exfm init` takes text"),
        ("rows.tsv", "`exfm init` takes text"),
        ("none.csv", "there is no none.csv"),
    ],
)
def test_a_file_that_is_not_there_or_no_parquet_is_told(tmp_path, capsys, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    pq.write_table(rows(100), "log.parquet")
    for there in ("no.parquet", "rows.csv.gz", "rows.tsv"):
        (tmp_path / there).write_text("no Parquet")
    calls = [(name,)] if "init" in words else [(name,), ("log.parquet", "--against", name)]
    for call in calls:
        code, _, err = run(capsys, *call)
        assert (code, words in err, "Traceback" in err) == (2, True, False), err


def test_times_may_be_seconds_or_timestamps(tmp_path):
    at = np.array([1_700_000_100, 1_700_000_000])
    for column in (at, at * 1000, pa.array(at * 1000, pa.timestamp("ms"))):
        pq.write_table(pa.table({"ts": column, "label_ctr": [0, 1]}), tmp_path / "x.parquet")
        table = rows_of_file(tmp_path / "x.parquet", [], None)
        assert table["event_time_ms"].to_pylist() == [1_700_000_000_000, 1_700_000_100_000]
        assert table["label_ctr"].to_pylist() == [1, 0]
    with pytest.raises(BadInput, match=r"there is no .*absent\.parquet; give a config, a Parquet file"):
        rows_of_file(tmp_path / "absent.parquet", [], None)
    (tmp_path / "no.parquet").write_text("user,ad")
    with pytest.raises(BadInput, match="cannot be read as Parquet"):
        rows_of_file(tmp_path / "no.parquet", [], None)


def test_severities_are_those_of_configs():
    assert list(map(str, Severity)) == ["stop", "warn", "note", "ok"]

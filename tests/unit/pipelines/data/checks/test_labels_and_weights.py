"""`exfm check` of labels and weights: what counts as positive, and rows that would count for too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.config.settings import parse
from pipelines.data.checks.check import check_config
from pipelines.data.checks.report import CheckReport

ROWS = 4000
USER = {"name": "user", "minimum": 0, "maximum": 1999}


def rows(**columns: Any) -> pa.Table:
    clicked = (np.arange(ROWS) % 20 == 0).astype(np.int8)
    good = {"at": 1_700_000_000 + np.arange(ROWS), "user": np.arange(ROWS) % 500, "clicked": clicked}
    return pa.table(good | columns)


@pytest.fixture
def check(tmp_path) -> Callable[..., CheckReport]:
    def report(table: pa.Table, columns: Any = (USER,), **settings: Any) -> CheckReport:
        pq.write_table(table, tmp_path / "clicks.parquet")
        source = {"kind": "recorded", "path": str(tmp_path / "clicks.parquet"), "event_time": "at"}
        source |= {"event_time_unit": "s", "vertical_value": "all", "labels": {"ctr": {"column": "clicked"}}}
        tasks = settings.pop("tasks", [{"name": "ctr", "window_s": 600}])
        raw = {
            "name": "mine",
            "source": source | settings,
            "rows": {"columns": list(columns), "tasks": tasks},
            "features": {"sparse": [{"name": "user", "rows": 2000, "transform": "index"}]},
            "students": [{"name": "all", "verticals": ["all"]}],
        }
        return check_config(parse(raw))

    return report


def said(report: CheckReport, severity: str) -> str:
    return " | ".join(f"{f.id}: {f.seen}; {f.remedy}" for f in report.findings if f.severity == severity)


def test_which_labels_are_positive_is_said_and_shares_are_warned_about(check):
    report = check(rows(clicked=np.where(np.arange(ROWS) % 20 == 0, 0.3, 0.0)))
    assert report.profile.labels["ctr"].positives == ROWS // 20
    assert f"label.between: 5.0 % of labels (200 of {ROWS:,})" in said(report, "warn")
    assert "(5.00%), positive: above 0" in report.text()
    written = [" TRUE " if row % 20 == 0 else "no" for row in range(ROWS)]
    report = check(rows(clicked=written))
    assert (report.findings, report.profile.labels["ctr"].positives) == ([], ROWS // 20)
    report = check(rows(clicked=["maybe", *written[1:]]))
    assert "`clicked` is string and holds `maybe`" in said(report, "stop")


def test_one_row_of_most_of_the_weight_is_named(check):
    columns = [USER, {"name": "sample_weight"}]
    whole = np.random.default_rng(0).choice([0, 1, 4], ROWS)
    assert check(rows(sample_weight=whole), columns=columns).findings == []
    whole[7] = 10_000_000
    report = check(rows(sample_weight=whole), columns=columns)
    assert "rows.heavy: one of 4,000 rows looked at (impression_id 7) has 100 %" in said(report, "warn")
    report = check(rows(sample_weight=np.zeros(ROWS)), columns=columns)
    assert "rows.no-weight" in said(report, "stop")
    odd = np.ones(ROWS)
    odd[:3] = [-1, np.nan, np.inf]
    report = check(rows(sample_weight=odd), columns=columns)
    assert {reason: seen.rows for reason, seen in report.profile.refused.items()} == {
        "out_of_range:sample_weight": 1, "not_finite:sample_weight": 2
    }  # fmt: skip


def test_an_id_that_candidates_share_is_warned_about_with_what_makes_a_key(check):
    columns = [USER, {"name": "place"}, {"name": "page"}]
    place, page = np.arange(ROWS) % 10, np.arange(ROWS) // 10 % 7
    table = rows(request=np.arange(ROWS) // 10, place=place, page=page)
    report = check(table, columns, impression_id="request")
    words = said(report, "stop")
    parts = "rows.id-repeats: 90 %", "(400 ids in 4,000 rows)", "together with `user` or `place` it"
    assert [part for part in parts if part not in words] == []


def test_rows_sent_twice_make_no_key(check):
    table = rows(id=np.arange(ROWS))
    report = check(pa.concat_tables([table, table]).sort_by("at"), impression_id="id")
    found = said(report, "warn") + said(report, "stop")
    assert "rows.id-repeats: 50 %" in found
    assert "together" not in found


def test_conversions_without_a_click_are_warned_about(check):
    clicked, sold = np.arange(ROWS) % 4 == 0, np.arange(ROWS) % 6 == 0
    tasks = [{"name": "ctr", "window_s": 600}, {"name": "cvr", "window_s": 600, "given": "ctr"}]
    labels = {"ctr": {"column": "clicked"}, "cvr": {"column": "sold"}}
    report = check(rows(clicked=clicked, sold=sold), labels=labels, tasks=tasks)
    assert "label.unmet: 50 % of rows with `cvr` (333 of 667) have no `ctr`" in said(report, "warn")

"""`exfm check` of features: what becomes of the numbers, times and constants that a file has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.config.settings import parse
from pipelines.data.checks.check import check_config
from pipelines.data.findings import Severity

ROWS = 4000
USER = {"name": "user", "rows": 2000, "transform": "index"}
COLUMNS = [{"name": "user", "minimum": 0, "maximum": 1999}, {"name": "price", "type": "float32"}]


def stream(**columns: Any) -> pa.Table:
    random = np.random.default_rng(1)
    good = {
        "shown_at": 1_700_000_000 + np.sort(random.integers(0, 86_400, ROWS)),
        "user": random.integers(0, 500, ROWS),
        "price": random.random(ROWS).astype(np.float32),
        "clicked": (np.arange(ROWS) % 20 == 0).astype(np.int8),
    }
    return pa.table(good | columns)


@pytest.fixture
def check(tmp_path):
    def report(table: pa.Table, time: str | None = "shown_at", columns: Any = (), **features: Any):
        pq.write_table(table, tmp_path / "clicks.parquet")
        return check_config(
            parse(
                {
                    "name": "mine",
                    "source": {
                        "kind": "recorded",
                        "path": str(tmp_path / "clicks.parquet"),
                        "event_time": time,
                        "event_time_unit": "s",
                        "vertical_value": "all",
                        "labels": {"ctr": {"column": "clicked"}},
                    },
                    "rows": {"columns": [*COLUMNS, *columns], "tasks": [{"name": "ctr", "window_s": 600}]},
                    "features": {"sparse": [USER], "dense": [{"name": "price"}]} | features,
                    "students": [{"name": "all", "verticals": "all"}],
                }
            )
        )

    return report


def test_numbers_far_from_one_are_noted_and_those_that_are_scaled_are_not(check):
    prices = stream(price=np.random.default_rng(2).lognormal(9, 1, ROWS).astype(np.float32))
    report = check(prices)
    (found,) = [finding for finding in report.findings if finding.where == "features.price"]
    assert (found.id, found.severity) == ("feature.large", Severity.NOTE)
    for how in ({"statistics": "online", "transform": "standardise"}, {"transform": "quantiles"}, {"clip": [0, 50]}):
        report = check(prices, dense=[{"name": "price"} | how])
        assert not [finding for finding in report.findings if finding.where == "features.price"]


def test_a_constant_that_no_row_has_is_named(check):
    report = check(stream(), sparse=[USER | {"serve_as": 1999}])
    (found,) = [f for f in report.findings if f.where == "features.user" and f.severity is Severity.WARN]
    assert (found.id, "1999" in found.seen) == ("feature.served-as", True)
    report = check(stream(), sparse=[USER | {"serve_as": 7}])
    assert not [f for f in report.findings if f.where == "features.user" and f.severity is Severity.WARN]


def test_hours_of_times_that_are_made_up_are_named(check):
    hour = {"name": "hour", "transform": "hour_of_day"}
    report = check(stream(), sparse=[USER, hour])
    assert not [finding for finding in report.findings if finding.where == "features.hour"]
    report = check(stream(), sparse=[USER, hour], time=None)
    (found,) = [finding for finding in report.findings if finding.where == "features.hour"]
    assert found.id == "feature.made-up-time"


def test_lists_of_another_length_are_named_as_the_dead_letters_that_they_would_be(check):
    vectors = [[0.5] * (2 if row % 50 else 3) for row in range(ROWS)]
    columns = [{"name": "v", "type": "list<float32>", "length": 2}]
    features = [{"name": "price"}, {"name": "v", "length": 2}]
    report = check(stream(v=pa.array(vectors)), columns=columns, dense=features)
    assert any("a list of 2 values is needed" in finding.seen for finding in report.findings)

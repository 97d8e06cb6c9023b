"""Hours and days of an event time are those of Python's datetime, in a named distance from UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from exfm.errors import ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature

OFFSETS = {"+00:00": 0, "+05:30": 330, "-09:30": -570, "+14:00": 840}


def of_python(kind, time_ms, minutes):
    local = datetime.fromtimestamp(time_ms / 1000, UTC).astimezone(timezone(timedelta(minutes=minutes)))
    hour, day = local.hour, local.weekday()
    return {"hour_of_day": hour, "day_of_week": day, "hour_of_week": 24 * day + hour}[kind]


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("kind", ["hour_of_day", "day_of_week", "hour_of_week"])
def test_a_place_in_the_calendar_is_that_of_datetime(kind, offset):
    times = np.random.default_rng(3).integers(0, 4_000_000_000_000, 500)
    feature = SparseFeature(name="when", transform=kind, utc_offset=offset)
    batch = BatchBuilder(FeatureSet(sparse=[feature]), [])(pa.table({"event_time_ms": times}))
    assert batch.sparse.values().tolist() == [of_python(kind, time, OFFSETS[offset]) for time in times.tolist()]
    assert feature.rows == {"hour_of_day": 24, "day_of_week": 7, "hour_of_week": 168}[kind]


def test_sine_and_cosine_go_round_with_the_day_and_a_missing_time_is_neither():
    times = pa.array([0, 6 * 3_600_000, 86_400_000, None])
    features = FeatureSet(
        sparse=[SparseFeature(name="ad", rows=3)],
        dense=[DenseFeature(name="hour", column="at", transform="hour_of_day", utc_offset="+06:00"),
               DenseFeature(name="week", column="at", transform="hour_of_week")],
    )  # fmt: skip
    dense = BatchBuilder(features, [])(pa.table({"ad": [1, 2, 3, 4], "at": times})).dense.numpy()
    assert features.dense_labels == ("hour:sin", "hour:cos", "week:sin", "week:cos")
    np.testing.assert_allclose(dense[:, :2], [[1, 0], [0, -1], [1, 0], [0, 0]], atol=1e-6)
    np.testing.assert_allclose(dense[0, 2:], [np.sin(6 * np.pi / 7), np.cos(6 * np.pi / 7)], atol=1e-6)  # a Thursday


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"transform": "hour_of_day", "rows": 12}, "has 12 rows, and hour_of_day has 24 values"),
        ({"transform": "hour_of_day", "utc_offset": "Berlin"}, "utc_offset"),
        ({"rows": 9, "utc_offset": "+02:00"}, "`utc_offset` belongs to hour_of_day, day_of_week, hour_of_week"),
    ],
)
def test_settings_that_say_no_calendar_are_refused(how, words):
    with pytest.raises(ValidationError, match=words):
        SparseFeature(name="when", **how)


def test_a_column_that_holds_no_times_is_named():
    features = FeatureSet(sparse=[SparseFeature(name="when", column="at", transform="day_of_week")])
    with pytest.raises(ModelError, match="takes times of column `at` of type string; it needs integers"):
        BatchBuilder(features, [])(pa.table({"at": ["monday"]}))

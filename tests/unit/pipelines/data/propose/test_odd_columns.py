"""Columns whose values are not what they seem: each is named, and none becomes a feature in silence."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from pipelines.core.config.settings import load
from pipelines.data.checks.check import check_config
from pipelines.data.propose.proposal import Hints, begin
from streaming.errors import BadInput
from tests.support.streams.foreign_files import clicks, stored

ROWS = 4000
RNG = np.random.default_rng(5)
AT = np.array(clicks(ROWS)["shown_at"])
CLICKED = np.array(clicks(ROWS)["clicked"])


class Look:
    """What `init` wrote of a file, and what `check` says of that."""

    def __init__(self, tmp_path, asked: Hints = Hints(), **changes):
        out = tmp_path / "mine.yaml"
        self.proposal = begin(stored(tmp_path / "rows.parquet", clicks(ROWS, **changes)), out, asked)
        self.said: dict[str, str] = {}
        for finding in self.proposal.findings:
            said = f"{finding.id}: {finding.seen}: {finding.remedy}"
            self.said[finding.where] = f"{self.said.get(finding.where, '')} {said}"
        self.text, self.config = out.read_text(), load(out)
        self.report = check_config(self.config)
        self.columns = {column.name: column for column in self.config.rows.columns}
        self.features = set(self.config.features.needs_columns())
        assert not self.report.stops


@pytest.mark.parametrize("weights", [RNG.integers(1, 4, ROWS), RNG.random(ROWS) + 0.5])
def test_a_sample_weight_is_a_weight_and_no_feature(tmp_path, weights):
    look = Look(tmp_path, sample_weight=weights)
    assert look.config.rows.weighted
    assert "sample_weight" not in look.features
    assert "init.column-weight:" in look.said["column `sample_weight`"]


def test_a_sample_weight_with_gaps_is_left_out_and_named(tmp_path):
    look = Look(tmp_path, sample_weight=pa.array([None, *np.ones(ROWS - 2), 2.0]))
    assert not look.config.rows.weighted
    assert "init.column-left-out: 1 rows" in look.said["column `sample_weight`"]


@pytest.mark.parametrize("name", ["weight", "ipw", "importance"])
def test_what_may_be_a_weight_is_asked_about(tmp_path, name):
    look = Look(tmp_path, **{name: RNG.random(ROWS)})
    assert f"columns: {{sample_weight: {name}}}" in look.said[f"column `{name}`"]
    assert name not in look.columns


def test_nan_is_null_in_floats_and_in_whole_numbers(tmp_path):
    gaps = RNG.random(ROWS) < 0.14
    bid, age = np.where(gaps, np.nan, RNG.random(ROWS)), np.where(gaps, np.nan, RNG.integers(0, 90, ROWS))
    look = Look(tmp_path, bid=bid, age=age)
    for name, type_ in (("bid", "float32"), ("age", "int64")):
        assert (look.columns[name].type, look.columns[name].nullable) == (type_, True)
        assert f"{gaps.sum():,} of 4,000 values are NaN" in look.said[f"column `{name}`"]
        assert look.report.profile.batch[name].null_count == gaps.sum()
    assert not look.report.profile.refused


EMPTY = [pa.float64(), pa.int32(), pa.string(), pa.bool_(), pa.timestamp("us"), pa.date32(), pa.list_(pa.int64())]


@pytest.mark.parametrize("type_", [*EMPTY, pa.list_(pa.float32())], ids=str)
def test_a_column_that_is_null_in_every_row_is_left_out(tmp_path, type_):
    look = Look(tmp_path, age=pa.nulls(ROWS, type_))
    assert "age" not in look.columns
    if not pa.types.is_temporal(type_):  # times but the event time are left out in any case
        assert "null in every row" in look.said["column `age`"]


def test_nulls_inside_lists_are_left_out_and_counted(tmp_path):
    look = Look(tmp_path, tags=[[1, None, 2]] * 2000 + [[3, 4]] * 2000, words=[["a", None], None] * 2000)
    assert "init.column-nulls-in-lists: 2,000" in look.said["column `tags`"]
    assert look.report.profile.batch["tags"][0].as_py() == [1, 2]
    assert look.report.profile.batch["words"].to_pylist()[:2] == [["a"], None]
    assert not look.report.profile.refused


def test_ids_that_floats_have_merged_are_named_with_their_distance_and_left_out(tmp_path):
    ids = pa.array([None if n % 50 == 0 else float(2**60 + n) for n in range(ROWS)], pa.float64())
    look = Look(tmp_path, device_id=ids)
    said = look.said["column `device_id`"]
    assert [part for part in ("init.column-left-out", "256 (2^8)", "17 values") if part not in said] == []
    assert "device_id" not in look.columns


def test_merged_ids_that_the_caller_names_are_taken(tmp_path):
    ids = pa.array([float(2**60 + 256 * (n % 90)) for n in range(ROWS)], pa.float64())
    look = Look(tmp_path, Hints(user="device_id"), device_id=ids)
    assert "init.column-merged-ids" in look.said["column `device_id`"]
    assert "device_id" in look.features


def test_a_row_number_and_an_id_of_every_row_are_no_features(tmp_path):
    look = Look(tmp_path, n=np.arange(ROWS), request=RNG.permutation(ROWS * 50)[:ROWS])
    assert "init.column-left-out: a row number: 0 to 3,999" in look.said["column `n`"]
    assert "init.column-left-out" in look.said["column `request`"]
    assert not {"n", "request"} & set(look.columns)


def test_whole_decimals_are_named_as_ids(tmp_path):
    ids = pa.array([Decimal(int(n)) for n in RNG.integers(0, 300, ROWS) * 1000], pa.decimal128(10, 0))
    look = Look(tmp_path, campaign=ids)
    assert "init.column-ids" in look.said["column `campaign`"]


def test_a_time_in_float32_is_named_with_its_step(tmp_path):
    look = Look(tmp_path, shown_at=AT.astype(np.float32))
    assert "init.time-float32" in look.said["event time `shown_at`"]
    assert " 128:" in look.said["event time `shown_at`"]


def test_unsigned_ids_beyond_64_bits_are_texts(tmp_path):
    ids = [2**63 + int(n) for n in RNG.integers(0, 200, ROWS)]
    own = pa.array([2**63 + n for n in range(ROWS)], pa.uint64())
    look = Look(tmp_path, impression_id=own, user_id=pa.array(ids, pa.uint64()))
    assert look.config.rows.impression_id == "string"
    assert look.report.profile.batch["impression_id"][0].as_py() == str(2**63)
    assert look.report.profile.batch["user_id"].to_pylist() == [str(one) for one in ids]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["Action|Drama", "Comedy", "Drama|War"], "init.column-several-values: texts hold several values with `|`"),
        (["12,55,9", "7", "9,12"], "init.column-several-values: texts hold several values with `,`"),
        (["a:0.3,b:0.1", "c:0.2", "b:1"], "init.column-weighted-ids"),
    ],
)
def test_texts_that_hold_several_values_are_named(tmp_path, values, said):
    look = Look(tmp_path, tags=[values[n % 3] for n in range(ROWS)])
    assert said in look.said["column `tags`"]


def test_texts_of_one_value_are_not(tmp_path):
    look = Look(tmp_path, city=[["New York", "Paris", "St. John's"][n % 3] for n in range(ROWS)])
    assert "column `city`" not in look.said


def test_lists_of_what_was_shown_are_named_with_a_recipe(tmp_path):
    lists = [f"N{n % 90}-1 N{n % 77}-0" for n in range(ROWS)]
    with pytest.raises(BadInput, match=r"`impressions` holds lists of what was shown.*unnest"):
        Look(tmp_path, clicked=None, impressions=lists)


@pytest.mark.parametrize("dates", [np.array(["2026-01-05", "2026-02-07"]), np.array(["1980-03-01", "1999-12-31"])])
@pytest.mark.parametrize("name", ["campaign_id", "user_birthdate", "day"])
def test_a_date_that_rows_do_not_follow_is_not_the_event_time(tmp_path, name, dates):
    values = pa.array(dates[RNG.integers(0, 2, ROWS)].astype("datetime64[D]"))
    look = Look(tmp_path, shown_at=None, **{name: values, "ts": AT})
    assert look.config.source.event_time == "ts"
    assert ", ascending" in look.text


def test_the_runner_up_is_said_with_what_speaks_against_it(tmp_path):
    day = pa.array((AT + RNG.integers(0, 9, ROWS) * 86_400).astype("datetime64[s]").astype("datetime64[D]"))
    look = Look(tmp_path, shown_at=None, day=day, ts=AT)
    assert "else day (11 distinct, not ascending)" in look.text.replace("(10 d", "(11 d")


def test_a_date_that_rows_follow_loses_to_a_finer_time(tmp_path):
    look = Look(tmp_path, shown_at=None, event_date=pa.array(AT.astype("datetime64[s]").astype("datetime64[D]")), ts=AT)
    assert look.config.source.event_time == "ts"


@pytest.mark.parametrize("name", ["t", "epoch", "x"])
def test_a_time_with_hardly_a_name_is_found_by_its_values_and_order(tmp_path, name):
    assert Look(tmp_path, shown_at=None, **{name: AT}).config.source.event_time == name


def test_a_birth_date_alone_is_no_event_time(tmp_path):
    born = pa.array(RNG.integers(0, 9000, ROWS).astype("datetime64[D]"))
    assert Look(tmp_path, shown_at=None, user_birthdate=born).config.source.event_time is None


def test_times_of_pandas_with_a_zone_in_nanoseconds_are_read(tmp_path):
    at = pa.Array.from_pandas(pd.Series(pd.to_datetime(AT, unit="s", utc=True)).astype("datetime64[ns, UTC]"))
    assert at.type == pa.timestamp("ns", "UTC")
    look = Look(tmp_path, shown_at=at)
    assert look.config.source.event_time == "shown_at"
    assert look.report.profile.time.lowest_ms == AT[0] * 1000


def test_times_at_the_edge_of_64_bits_are_no_fault(tmp_path):
    edges = np.iinfo(np.int64)
    far = pa.array(edges.max - 10**9 * np.arange(ROWS)[::-1] - 5).cast(pa.timestamp("ns"))
    assert Look(tmp_path, shown_at=None, ts=far).config.source.event_time == "ts"
    (tmp_path / "two").mkdir()
    infinite = pa.array(np.where(np.arange(ROWS) % 2, edges.max, -edges.max)).cast(pa.timestamp("ns"))
    look = Look(tmp_path / "two", shown_at=None, ts=infinite)
    assert look.config.source.event_time is None
    assert "init.time-unusable: 4,000 of 4,000" in look.said["event time `ts`"]


def test_a_column_that_is_a_label_by_a_part_of_its_name_is_asked_about(tmp_path):
    several = (RNG.random(ROWS) < 0.3).astype(int)
    knows = np.where(RNG.random(ROWS) < 0.99, several, 1 - several)
    look = Look(tmp_path, multiple_buy=several, basket=knows)
    assert set(look.config.source.labels) == {"ctr"}
    assert "init.label-doubtful" in look.said["column `multiple_buy`"]
    assert "else multiple_buy" in look.text
    assert "basket" in look.features
    assert "multiple_buy" not in look.columns


@pytest.mark.parametrize("name", ["purchase", "is_bought", "cvr_label", "conversion"])
def test_a_second_label_by_its_whole_name_is_taken(tmp_path, name):
    look = Look(tmp_path, **{name: CLICKED * (RNG.random(ROWS) < 0.5)})
    assert {task: label.column for task, label in look.config.source.labels.items()} == {"ctr": "clicked", "cvr": name}
    assert look.config.rows.given == {"cvr": "ctr"}


def test_conversions_without_a_click_are_no_task_of_clicks(tmp_path):
    bought = np.where(CLICKED, RNG.random(ROWS) < 0.5, np.arange(ROWS) % 500 == 0).astype(int)
    outside = int((bought & (1 - CLICKED)).sum())
    look = Look(tmp_path, purchase=bought)
    assert look.config.rows.given == {}
    assert f"init.label-outside: {outside} of its {bought.sum():,}" in look.said["task cvr"]


def test_a_label_between_0_and_1_is_warned_about(tmp_path):
    look = Look(tmp_path, clicked=np.where(CLICKED, 0.3, 0.0))
    assert f"init.label-between: {CLICKED.sum():,} of 4,000" in look.said["label `clicked`"]


def test_one_early_click_is_counted_and_delays_are_kept(tmp_path):
    came = AT + 60
    came[np.flatnonzero(CLICKED)[700 // 10]] -= 65
    look = Look(tmp_path, click_time=came)
    assert look.config.source.labels["ctr"].time_column == "click_time"
    assert f"init.label-early: 1 of {CLICKED.sum():,}" in look.said["label time `click_time`"]
    assert look.report.profile.labels["ctr"].positives == CLICKED.sum()


def installs(rows: int = 20_000) -> dict[str, np.ndarray]:
    """Apps of which few are installed, and those mostly; known when the ad is shown."""
    rng = np.random.default_rng(7)
    app, channel = rng.zipf(1.3, rows) % 60, rng.integers(0, 40, rows)
    rate = np.where(app % 20 == 7, 0.7, 0.001)
    return {"app": app, "channel": np.where(app % 20 == 7, 40 + app % 9, channel), "installed": rng.random(rows) < rate}


def test_what_earlier_rows_explain_is_kept_with_a_warning(tmp_path):
    log = installs()
    table = clicks(20_000, clicked=None, **log)
    out = tmp_path / "mine.yaml"
    proposal = begin(stored(tmp_path / "rows.parquet", table), out)
    (leak,) = (finding for finding in proposal.findings if finding.where == "leakage: app")
    assert (leak.id, str(leak.severity)) == ("leak.value", "warn")
    assert "values had in earlier rows" in leak.seen
    assert {"app", "channel"} <= set(load(out).features.needs_columns()) | {load(out).source.vertical}


def test_a_sentinel_of_many_values_knows_the_label(tmp_path):
    order = np.where(CLICKED, RNG.integers(1, 10**6, ROWS), -1)
    look = Look(tmp_path, order_code=order)
    assert "order_code" not in look.columns
    assert "leak.value" in look.said["leakage: order_code"]


def test_what_is_filled_just_where_the_label_is_is_a_leak_of_any_size(tmp_path):
    few = np.isin(np.arange(ROWS), RNG.permutation(ROWS)[:31]).astype(int)
    look = Look(tmp_path, clicked=few, paid=pa.array(RNG.random(ROWS), mask=few == 0))
    said = look.said["leakage: paid"]
    assert [part for part in ("leak.filled", "31 of 31", "0 of 3,969") if part not in said] == []
    assert "paid" not in look.columns
    assert "leak.not-judged" in look.said["leakage of ctr"]


ODD = {
    "whole weights": {"sample_weight": RNG.choice([1, 4], ROWS)},
    "weights with gaps": {"sample_weight": [None, *[1] * (ROWS - 1)]},
    "negative weights": {"sample_weight": RNG.integers(-1, 3, ROWS)},
    "whole numbers, then a fraction": {"bid": [*range(ROWS - 1), 0.5]},
    "numbers with gaps": {"age": [None if n % 7 == 0 else n % 90 for n in range(ROWS)]},
    "one value": {"market": ["de"] * ROWS},
    "nothing": {"market": [None] * ROWS},
    "names that rows cannot have": {
        "lake_seq": np.arange(ROWS) % 9,
        "label_x": np.arange(ROWS) % 7,
        "a.b": ["x"] * ROWS,
    },
    "true and false": {"mobile": RNG.random(ROWS) < 0.5},
    "large numbers": {"amount": RNG.integers(0, 10**15, ROWS)},
    "negative numbers": {"balance": RNG.integers(-500, 500, ROWS)},
    "text with commas and quotes": {"title": [f'a "{n % 9}", b' for n in range(ROWS)]},
    "zeros in front": {"zip": [f"{n % 50:05d}" for n in range(ROWS)]},
}


@pytest.mark.check
@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("name", ODD)
def test_whatever_init_writes_check_takes(tmp_path, name, form):
    table = clicks(ROWS, **ODD[name])
    path, out = tmp_path / f"rows.{form}", tmp_path / "mine.yaml"
    if form == "parquet":
        stored(path, table)
    elif form == "csv":
        table.to_pandas().to_csv(path, index=False)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    begin(path, out)
    report = check_config(load(out))
    assert not report.stops
    assert not report.profile.refused

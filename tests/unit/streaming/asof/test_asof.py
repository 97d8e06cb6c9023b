"""As-of features: what is refused before anything starts, and the bounds of what is remembered."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pipelines.core.config.settings import parse
from streaming.asof.features import NO_LABELS, AsOfState, LabelEvents
from streaming.errors import BadInput
from streaming.schema import RowSchema
from tests.support.pipelines.raw_configs import small

COLUMNS = [
    {"name": "user_id"},
    {"name": "seen", "type": "list<int64>"},
    {"name": "bid", "type": "float32"},
    {"name": "site", "type": "string", "nullable": True},
]
RATE = {"name": "user_rate", "by": "user_id", "rate": "ctr"}


def schema_of(*features: dict, **asof: object) -> RowSchema:
    tasks = [{"name": "ctr", "window_s": 60}, {"name": "cvr", "window_s": 600, "given": "ctr"}]
    return RowSchema(columns=COLUMNS, tasks=tasks, asof={"features": features, **asof})


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (RATE | {"by": "seen"}, "`by` names `seen`, which is list<int64>; keys can be: vertical, user_id, site"),
        (RATE | {"by": "bid"}, "`by` names `bid`, which is float32; keys can be: vertical, user_id, site"),
        (RATE | {"by": "nobody"}, "`by` names `nobody`, which is no column of `rows.columns`"),
        (RATE | {"by": ["user_id", "user_id"]}, "`by` needs one column or more, each once"),
        (RATE | {"half_life_s": 0}, "greater than 0"),
        (RATE | {"rate": "ctrr"}, "rate of `ctrr`; it can be of: ctr, cvr"),
        (RATE | {"name": "bid"}, "fills column `bid`, a name that is taken"),
        (RATE | {"name": "label_x"}, "fills column `label_x`, a name that is taken"),
        (RATE | {"name": "lake_seq"}, "fills column `lake_seq`, a name that is taken"),
        (RATE | {"count": "shown"}, "has rate and count; give it one of"),
        ({"name": "x", "by": "user_id"}, "has no kind; give it one of"),
        ({"name": "x", "by": "user_id", "last": 3}, "`last` needs `of`"),
        ({"name": "x", "by": "user_id", "last": 3, "of": ["site"]}, "`of` names `site`; it can name int64 columns"),
        ({"name": "x", "by": "user_id", "since": "ctr", "half_life_s": 5}, "`half_life_s` is for rate, count"),
        ({"name": "x", "by": "user_id", "residual": "ctr", "against": "y"}, "as-of rates of `ctr`: none yet"),
    ],
)
def test_a_feature_that_cannot_be_is_refused_in_words(feature, words):
    with pytest.raises(ValueError, match="(?s)" + words.replace("[", r"\[").replace("(", r"\(")):
        schema_of(feature)


def test_a_name_that_another_feature_fills_is_refused():
    with pytest.raises(ValueError, match="fills column `user_rate_shown`, a name that is taken"):
        schema_of(RATE, {"name": "user_rate_shown", "by": "site", "count": "shown"})


def test_a_residual_is_of_a_task_that_every_row_has():
    rate = {"name": "buys", "by": "user_id", "rate": "cvr"}
    with pytest.raises(ValueError, match="`cvr` is conditional; residuals are of tasks of every row"):
        schema_of(rate, {"name": "x", "by": "site", "residual": "cvr", "against": "buys"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"asof": 10}, "`features.asof` is a list of features, and `asof` a section such as {tick_s: 10}"),
        ({"asof": {"tick_s": 0}}, "\n  asof.tick_s: Input should be greater than 0"),
        ({"asof": {"ticks": 1}}, "\n  asof.ticks: unknown key"),
        (
            {"features": {"sparse": [], "asof": [RATE, RATE | {"half_life_s": 0}]}},
            "\n  features.asof.1.half_life_s: Input",
        ),
        ({"features": {"sparse": [], "asof": [{"by": "user_id", "rate": "ctr"}]}}, "\n  features.asof.0.name: missing"),
    ],
)
def test_a_section_that_is_none_is_refused_with_its_setting(changes, words):
    raw = small()
    with pytest.raises(BadInput) as refused:
        parse(raw | {"features": raw["features"] | {"asof": [RATE]}} | changes)
    assert words in str(refused.value)


def test_a_number_is_read_as_a_dense_input_unless_there_is_one_of_its_name():
    raw = small()
    own = {"name": "user_rate", "transform": "identity"}
    raw["features"] |= {"asof": [RATE], "dense": [*raw["features"]["dense"], own]}
    config = parse(raw)
    transforms = {feature.name: feature.transform for feature in config.features.dense}
    assert transforms == {"bid": "log1p", "user_rate": "identity", "user_rate_shown": "log1p"}
    assert parse(config.model_dump(mode="json")) == config


def rows_of(users: list[int | None]) -> pa.RecordBatch:
    return pa.record_batch({"user_id": pa.array(users, pa.int64()), "site": pa.array(["a"] * len(users))})


def test_a_million_keys_in_an_hour_take_no_more_room_than_max_keys():
    state = AsOfState(schema_of({"name": "met", "by": "user_id", "count": "shown"}, max_keys=5000))
    for first in range(0, 1_000_000, 100_000):
        users = np.arange(first, first + 100_000)
        state.advance(rows_of(users.tolist()), 3 * users, NO_LABELS)
        state.drop(first + 100_000)
    assert sum(keys.used for keys in state._key_tables) <= 5000
    assert sum(keys.nbytes for keys in state._key_tables) <= 2 * 5000 * state.bytes_per_key["user_id"] + 100_000
    newest, oldest = state.advance(rows_of([995_000, 5]), np.array([3_100_000, 3_100_000]), NO_LABELS)[0].to_pylist()
    assert (newest, oldest) == (1.0, 0.0)


def test_a_null_key_is_new_and_counts_nowhere():
    state = AsOfState(schema_of({"name": "met", "by": "user_id", "count": "shown"}))
    times = np.array([0, 1, 2, 20_000, 20_000])
    assert state.advance(rows_of([None, 7, None, None, 7]), times, NO_LABELS)[0].to_pylist() == [0, 0, 0, 0, 1]


def test_a_label_before_its_impression_counts_from_the_impression_and_one_after_the_tick_not_at_all():
    state = AsOfState(schema_of({"name": "clicks", "by": "user_id", "count": "ctr"}))
    labels = LabelEvents(*(np.array(values) for values in ([0, 1], [0, 0], [5, 20_001], [5, 6])))
    shown = np.array([5, 6, 9_999, 10_000, 20_001])
    assert state.advance(rows_of([7] * 5), shown, labels)[0].to_pylist() == [0, 0, 0, 1, 1]

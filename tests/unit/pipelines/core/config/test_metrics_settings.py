"""Rows are grouped and intervals clustered by columns of ids."""

from __future__ import annotations

import pytest

from pipelines.core.config.settings import load, parse
from tests.support.pipelines.raw_configs import changed, refusal, small
from tests.support.places import CONFIGS


@pytest.mark.parametrize("column", ["bid", "vertical", "nobody"])
def test_rows_are_grouped_by_a_column_of_ids(column):
    assert (
        f"metrics.group_by is `{column}`; it has to be a column of ids that every row has: user_id, ad_id"
        in refusal(changed("metrics.group_by", column))
    )


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            ["user_id", "bid"],
            "metrics.cluster_by is `bid`; it has to be a column of ids that every row has: user_id, ad_id",
        ),
        (["ad_id", "ad_id"], "metrics.cluster_by is `ad_id` twice"),
        (["user_id", "ad_id", "user_id"], "at most 2 items"),
    ],
)
def test_intervals_are_clustered_by_at_most_two_columns_of_ids(columns, says):
    assert says in refusal(changed("metrics.cluster_by", columns))


def test_intervals_are_clustered_by_the_declared_columns_else_by_the_group_else_by_stretches():
    assert parse(small()).metrics.clusters == ()
    assert parse(changed("metrics.group_by", "ad_id")).metrics.clusters == ("ad_id",)
    assert parse(changed("metrics.cluster_by", ["user_id", "ad_id"])).metrics.clusters == ("user_id", "ad_id")


@pytest.mark.parametrize("column", ["vertical", "nothing"])
def test_a_click_is_worth_what_a_column_of_numbers_says(column):
    says = f"metrics.value is `{column}`; it has to be a column of numbers: user_id, ad_id, bid"
    assert says in refusal(changed("metrics.value", column))
    assert parse(changed("metrics.value", "bid")).metrics.value == "bid"


def test_demo_and_movielens_are_grouped_by_user():
    for name in ("demo", "movielens"):
        assert load(CONFIGS / f"{name}.yaml").metrics.group_by == "user_id"

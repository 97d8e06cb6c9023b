"""Students of a condition, of features of their own, and of a later beginning."""

from __future__ import annotations

import pytest

from pipelines.core.config.identity import identity_of
from pipelines.core.config.settings import parse
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import small


def student(**settings) -> dict:
    raw = small()
    raw["students"][0] |= settings
    return raw


def test_a_condition_is_checked_against_the_columns():
    config = parse(student(where="ad_id in (1, 2)"))
    own = config.own_rows(config.students[0])
    assert (own.verticals, own.columns) == (("feed",), ("vertical", "ad_id"))
    with pytest.raises(BadInput, match=r"student `feed`, where: .*no column `add_id`; did you mean `ad_id`"):
        parse(student(where="add_id == 1"))


def test_a_condition_makes_a_student_of_all_verticals_one_that_learns_from_others():
    raw = student(verticals="all", where="ad_id == 1", label_rows="all")
    raw["features"]["sparse"].append({"name": "vertical", "rows": 8})
    config = parse(raw)
    assert config.students[0].learns_from_others
    assert config.reads_all_rows(config.students[0])


def test_own_features_are_of_one_student_alone():
    own = {"sparse": [{"name": "cross", "columns": ["user_id", "ad_id"], "rows": 64}]}
    plain, config = parse(small()), parse(student(own_features=own))
    had, has = (c.student_features(c.students[0]).sparse_names for c in (plain, config))
    assert has == (*had, "cross")
    assert config.teacher_features == plain.teacher_features
    before, now = (c.model_dump(mode="json") for c in (plain, config))
    for worker in ("teacher", "augmentation"):
        assert identity_of(before, worker) == identity_of(now, worker)
    assert identity_of(before, "student-feed") != identity_of(now, "student-feed")


def test_an_own_index_needs_a_bounded_column():
    own = {"sparse": [{"name": "mine", "column": "ad_id", "rows": 10, "transform": "index"}]}
    raw = student(own_features=own)
    for column in raw["rows"]["columns"]:
        if column["name"] == "ad_id":
            column.pop("maximum", None)
    with pytest.raises(BadInput, match=r"its own feature `mine` is an index of 10 rows, and nothing keeps `ad_id`"):
        parse(raw)

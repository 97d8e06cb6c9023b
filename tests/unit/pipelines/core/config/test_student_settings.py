"""What a student says of itself, what it has from the defaults, and which rows and features it reads."""

from __future__ import annotations

import pytest
import yaml

from pipelines.core.config.settings import dump, load, parse
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import changed, file_at, refusal, small


@pytest.fixture
def file(tmp_path):
    return file_at(tmp_path / "run.yaml")


def test_what_a_student_does_not_say_it_has_from_the_defaults(file):
    raw = small(
        student_defaults={"twin": True, "batch_rows": 64, "model": {"width": 4, "arm": {"weight": 2.0}}},
        students=[{"name": "feed"}, {"name": "shop", "twin": False, "model": {"arm": {"kind": "none"}, "width": 16}}],
    )
    del raw["teacher"]
    raw["students"][1]["model"]["arm"] |= {"weight": 1.0}
    raw["students"].append({"name": "video", "model": {"arm": {"adapter": True}}})
    feed, shop, video = load(file(raw)).students
    assert (video.model.width, video.model.arm.weight, video.model.arm.adapter) == (4, 2.0, True)
    assert (feed.twin, feed.batch_rows, feed.model.width, feed.model.arm.weight) == (True, 64, 4, 2.0)
    assert (shop.twin, shop.batch_rows, shop.model.width) == (False, 64, 16)
    assert (shop.model.arm.kind, shop.model.arm.weight) == ("none", 1.0)


def test_a_student_may_change_a_setting_of_the_preset_that_the_defaults_name(file):
    raw = small(
        student_defaults={"model": {"arm": "recommended"}},
        students=[{"name": "feed"}, {"name": "shop", "model": {"arm": {"weight": 2.0}}}],
    )
    del raw["teacher"]
    feed, shop = (student.model.arm for student in load(file(raw)).students)
    assert shop == feed.model_copy(update={"weight": 2.0})


@pytest.mark.parametrize("defaults", [["twin"], "twin", 3])
def test_defaults_that_are_no_settings_are_refused(file, defaults):
    with pytest.raises(BadInput, match=r"student_defaults.*mapping"):
        load(file(small(student_defaults=defaults)))


def test_empty_defaults_are_none(file):
    assert load(file(small(student_defaults=None))) == load(file(small()))


def test_a_student_reads_all_features_but_the_teachers_own_and_its_own_vertical():
    config = parse(small())
    feed, shop = config.students
    assert config.student_features(feed).names == ("ad_id", "bid")
    assert feed.row_filter == ("feed",)
    assert (config.student_tasks(feed), config.student_tasks(shop)) == (("ctr", "cvr"), ("ctr",))
    wide = parse(changed("students.0", {"name": "brand", "verticals": ["feed", "shop"], "features": ["user_id"]}))
    assert wide.students[0].row_filter == ("feed", "shop")
    assert parse(changed("students.0.verticals", "all")).students[0].row_filter == ()  # every one
    assert wide.student_features(wide.students[0]).names == ("user_id",)


@pytest.mark.parametrize("setting", ["label_rows", "distillation_rows"])
def test_a_student_that_learns_rows_of_other_verticals_reads_which_vertical_a_row_is_of(setting):
    raw = changed(f"students.0.{setting}", "all")
    assert (
        f"student `feed` learns from rows of other verticals ({setting}: all), and none of its features reads the "
        "column `vertical`: it could not tell them from its own. Add a sparse feature `vertical` to what it reads, or "
        f"set {setting}: own"
    ) in refusal(raw)
    raw["features"]["sparse"].append({"name": "vertical", "rows": 8})
    config = parse(raw)
    assert [student.learns_from_others for student in config.students] == [True, False]
    assert not parse(raw | {"students": [raw["students"][0] | {"verticals": "all"}]}).students[0].learns_from_others
    assert load_again(config) == config


def test_a_history_of_all_rows_makes_its_student_read_them_and_learn_its_own_alone():
    raw = changed("features.history", [{"name": "ad_ctr", "by": "ad_id", "of": "label_ctr", "rows": "all"}])
    raw["students"][1]["features"] = ["ad_id"]
    config = parse(raw)
    assert [config.reads_all_rows(student) for student in config.students] == [True, False]
    assert not config.students[0].learns_from_others


def load_again(config):
    return parse(yaml.safe_load(dump(config)))


def test_whose_rows_are_learned_is_own_or_all():
    assert "students.0.label_rows: " in refusal(changed("students.0.label_rows", "mine"))


def test_a_student_that_does_not_distil_reads_its_own_rows_whatever_is_distilled_on():
    raw = changed("students.0", {"name": "feed", "distillation_rows": "all", "model": {"arm": {"kind": "none"}}})
    assert not parse(raw).students[0].learns_from_others


def test_residuals_are_by_sparse_features_that_the_student_reads():
    arm = {"recalibration": "residuals", "residuals_by": {"user_id": 10}}
    assert "student `feed`: arm.residuals_by names `user_id`, which is no sparse feature that it reads" in refusal(
        changed("students.0", {"name": "feed", "model": {"arm": arm}})
    )


def test_an_empty_list_of_verticals_is_refused_with_the_ways_out(file):
    with pytest.raises(BadInput) as refused:
        load(file(changed("students.0.verticals", [])))
    assert str(refused.value).endswith(
        "students.feed.verticals: is empty; leave it out for the vertical `feed`, list some, or write `verticals: all`"
    )
    assert load(file(dump(parse(small())))).students[0].row_filter == ("feed",)  # as a run writes it down


def test_a_vertical_that_is_no_list_is_refused_with_the_list():
    assert "students.0.verticals: a list is wanted, as in [a, b], or all (got 'shop')" in refusal(
        changed("students.0.verticals", "shop")
    )


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        ({"ctrr": 0.5}, "student `shop` wants task `ctrr`; did you mean `ctr`? choose from ctr"),
        ({"cvr": 0.5}, "student `shop` wants task `cvr`"),  # a task, and none of its own
        ({"ctr": 0}, "greater than 0"),
        ({"ctr": 1.5}, "less than or equal to 1"),
    ],
)
def test_a_sampling_rate_is_a_share_of_the_rows_of_one_of_the_students_tasks(rate, says):
    assert says in refusal(changed("students.1.negative_rate", rate))


@pytest.mark.parametrize(
    ("most", "students", "named"),
    [
        (1, [{"name": "feed"}], "feed, shop"),  # the generated source names two
        (2, [{"name": "feed"}, {"name": "both", "verticals": ["feed", "travel"]}], "feed, travel, shop"),
    ],
)
def test_more_verticals_than_a_run_takes_cannot_be_named(most, students, named):
    raw = changed("lake.max_verticals", most) | {"students": students}
    said = refusal(raw)
    assert (
        f"lake.max_verticals is {most}, and students and source name {named.count(',') + 1} verticals ({named}" in said
    )
    assert "raise it to" in said
    raw["lake"]["max_verticals"] = named.count(",") + 1
    assert parse(raw).declared_verticals == tuple(named.split(", "))


def test_a_student_of_all_verticals_names_none():
    raw = changed("lake.max_verticals", 2) | {"students": [{"name": "every", "verticals": "all"}]}
    assert parse(raw).declared_verticals == ("feed", "shop")

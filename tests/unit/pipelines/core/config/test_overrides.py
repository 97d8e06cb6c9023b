"""`--set path=value` reaches every setting, or is refused in words."""

from __future__ import annotations

import contextlib

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.config.sections import Generated
from pipelines.core.config.settings import load
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import file_at, small


@pytest.fixture
def file(tmp_path):
    return file_at(tmp_path / "run.yaml")


def test_overrides_reach_every_depth_and_lists_by_name_or_number(file):
    overrides = [
        "seed=7",
        "source.impressions=50",
        "students.feed.twin=true",
        "students.1.batch_rows=32",
        "rows.tasks.ctr.window_s=30",
        "teacher.only=[]",
        "pace.mode=lockstep",  # a section that the file does not have
        "teacher.model.mlp=[8, 4]",
        "kafka.bootstrap_servers=null",
        "teacher.only.0=ad_id",
    ]
    with pytest.raises(BadInput, match=r"teacher\.only"):
        load(file(small()), overrides)
    config = load(file(small()), overrides[:-1])
    assert isinstance(config.source, Generated)
    assert (config.seed, config.source.impressions, config.pace.mode) == (7, 50, "lockstep")
    assert [s.twin for s in config.students] == [True, False]
    assert [s.batch_rows for s in config.students] == [512, 32]
    assert config.rows.tasks[0].window_s == 30
    assert (config.teacher.only, config.teacher.model.mlp) == ((), (8, 4))


@pytest.mark.parametrize(("written", "rate"), [("1500", "1500"), ("60x", "60x"), ("'1500'", "1500"), ("full", "full")])
def test_a_rate_may_be_a_number_or_a_text_in_the_file_and_on_the_command_line(file, written, rate):
    assert load(file(small()), [f"source.rate={written}"]).source.rate == rate
    raw = small()
    raw["source"]["rate"] = yaml.safe_load(written)
    assert load(file(raw)).source.rate == rate


def test_names_that_look_like_numbers_are_names(file):
    config = load(file(small()), ["name=2024", "students.feed.verticals=[1, 2]"])
    assert (config.name, config.students[0].verticals) == ("2024", ("1", "2"))


def test_an_override_of_one_student_wins_over_the_defaults(file):
    raw = small(student_defaults={"twin": True})
    assert [s.twin for s in load(file(raw), ["students.feed.twin=false"]).students] == [False, True]
    assert [s.twin for s in load(file(raw), ["student_defaults.twin=false"]).students] == [False, False]


def test_a_list_of_plain_values_can_be_overridden_by_its_values(file):
    assert load(file(small()), ["teacher.only.user_id=ad_id"]).teacher.only == ("ad_id",)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", "--set seed: write it as path=value"),
        ("=2", "--set =2: write it as path=value"),
        ("pace..lag=2", "--set pace..lag=2: write it as path=value"),
        ("name.more=1", "--set name.more=1: `name` is a single value"),
        ("students.fed.twin=false", "`fed` is none of feed, shop, nor 0 to 1"),
        ("students.2.twin=false", "`2` is none of feed, shop, nor 0 to 1"),
        ("students.-1.twin=false", "`-1` is none of feed, shop"),
        ("students.feed=null", "students.0"),
        ("name=[", "--set name=[: `[` is not a YAML value"),
        ("seed=: :", "is not a YAML value"),
        ("sed=1", "sed: unknown key; did you mean `seed`?"),
        ("source.rate=banana", "source.rate: rate 'banana' is unknown; use"),
        ("source.rate=010", "--set source.rate=010: `010` is not a YAML value; put quotes around a text"),
        ("source.kind=generatd", "source: kind is `generatd`; choose from 'generated', 'recorded'"),
        ("name=2024-01-01", "name: a text is wanted, and YAML reads this as a date; put a text in quotes"),
        ("students.feed.verticals=[no]", "a text is wanted, and YAML reads this as true or false"),
        ("students.feed.verticals=feed", "students.0.verticals: a list is wanted, as in [a, b], or all (got 'feed')"),
        ("students=null", "students: a list is wanted, as in [a, b] (got None)"),
        ("seed=2.5", "seed: a whole number is wanted (got 2.5)"),
        ("tracking.enabled=maybe", "tracking.enabled: true or false is wanted (got 'maybe')"),
        ("kafka.port=70000", "kafka.port: Input should be less than or equal to 65535 (got 70000)"),
    ],
)
def test_a_malformed_override_is_refused_in_words(file, override, words):
    with pytest.raises(BadInput) as refused:
        load(file(small()), [override])
    assert words in str(refused.value)


@pytest.fixture(scope="module")
def plain_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_text(yaml.safe_dump(small()))
    return path


PARTS = st.sampled_from(["students", "feed", "0", "rows", "tasks", "seed", "teacher", "only", "a", ""])
VALUES = st.sampled_from(["null", "[]", "{}", "{a: 1}", "!!python/object:x", "2024-13-45", "*a", "1e999"])


@given(st.lists(PARTS, max_size=4), VALUES | st.text(max_size=12))
@settings(max_examples=150, deadline=None)
def test_any_override_is_taken_or_refused_in_words(plain_file, path, value):
    with contextlib.suppress(BadInput):
        load(plain_file, [f"{'.'.join(path)}={value}"])

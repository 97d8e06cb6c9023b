"""A config is complete and consistent, or refused in words that say where, what is possible and what is near."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.config import Generated, dump, load, parse
from streaming.errors import BadInput
from streaming.kafka import KafkaSettings
from tests.support.pipelines.raw_configs import changed, refusal, small
from tests.support.places import CONFIGS


@pytest.fixture
def file(tmp_path):
    def write(text: str | dict) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text if isinstance(text, str) else yaml.safe_dump(text, sort_keys=False))
        return path

    return write


# --- what is shipped, and what comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads(path):
    assert load(path).students


def test_the_resolved_config_says_everything_and_comes_back_as_the_same_run(file):
    config = load(CONFIGS / "demo.yaml")
    again = load(file(dump(config)))
    assert again == config
    assert again.hash == config.hash
    assert "catchup_rows" in dump(config)  # a default that demo.yaml does not mention


# --- refused: keys, types, names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "near", "also"),
    [
        ("seeds", "seed", "students"),
        ("source.impresions", "impressions", "rate"),
        ("source.verticals.0.shares", "share", "base_rate"),
        ("rows.task", "tasks", "columns"),
        ("rows.columns.0.minimun", "minimum", "maximum"),
        ("rows.tasks.1.windows_s", "window_s", "given"),
        ("features.sparse.0.row", "rows", "transform"),
        ("features.dense.0.transfrom", "transform", "std"),
        ("pace.block_row", "block_rows", "lag"),
        ("kafka.impressions.partition", "partitions", "codec"),
        ("kafka.bootstrap_server", "bootstrap_servers", "feedback"),
        ("settlement.latenes_s", "lateness_s", "dedup_horizon_s"),
        ("augmentation.score_row", "score_rows", "idle_s"),
        ("teacher.batch_row", "batch_rows", "model"),
        ("teacher.model.num_fm", "num_fmb", "layers"),
        ("students.1.twins", "twin", "features"),
        ("students.0.model.widht", "width", "arm"),
        ("students.0.model.arm.weigth", "weight", "temperature"),
        ("students.0.model.trunk.bottoms", "bottom", "mlp"),
        ("students.0.model.learning_rate.warmup", "warmup_rows", "decay_rows"),
        ("tracking.url", "uri", "enabled"),
        ("resources.thread", "threads", "max_restarts"),
    ],
)
def test_an_unknown_key_is_refused_with_its_path_the_nearest_name_and_what_there_is(path, near, also):
    said = refusal(changed(path, 1))
    assert f"{path}: unknown key; did you mean `{near}`?" in said
    assert also in said.partition("there are: ")[2]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("seed", "one", ["seed: ", "a whole number is wanted", "'one'"]),
        ("pace.lag", 0, ["pace.lag: ", "greater than or equal to 1", "(got 0)"]),
        ("pace.mode", "lockstop", ["pace.mode: ", "'lockstep' or 'free'", "'lockstop'"]),
        ("students.0.batch_rows", -5, ["students.0.batch_rows: ", "greater than 0", "(got -5)"]),
        ("students.0.name", "a/b", ["students.0.name: ", "'a/b'"]),
        ("rows.tasks.0.window_s", 0, ["rows.tasks.0.window_s: ", "greater than 0"]),
        ("features.sparse.0.rows", "many", ["features.sparse.0.rows: ", "a whole number is wanted", "'many'"]),
        ("teacher.only", "user_id", ["teacher.only: ", "a list is wanted"]),
        ("source.kind", "generator", ["source: ", "'generated', 'recorded'"]),
        ("name", "my run", ["name: ", "'my run'"]),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_what_is_possible_and_what_came(path, value, words):
    said = refusal(changed(path, value))
    assert all(word in said for word in words), said


def test_what_is_missing_is_named(file):
    raw = small()
    del raw["students"], raw["rows"]["tasks"]
    with pytest.raises(BadInput) as refused:
        load(file(raw))
    assert "rows.tasks: missing" in str(refused.value)
    assert "students: missing" in str(refused.value)


def test_every_problem_has_a_line_of_its_own():
    raw = small(sed=1) | {"pace": {"lag": 0}, "tracking": {"interval_s": "now"}}
    lines = refusal(raw).splitlines()
    assert lines[0] == "config is not a valid config:"
    assert sorted(line.split(":")[0].strip() for line in lines[1:]) == ["pace.lag", "sed", "tracking.interval_s"]


# --- refused: what does not fit together ----------------------------------------------------------------------------


def test_a_feature_of_a_column_that_rows_do_not_have():
    said = refusal(changed("features.sparse.0.column", "user"))
    assert "features read column `user`, which rows do not have; did you mean `user_id`?" in said
    assert "there are: ad_id, bid, event_time_ms, user_id, vertical" in said


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("students.0.features", ["add_id"], "student `feed` wants feature `add_id`; did you mean `ad_id`? there are:"),
        ("students.1.tasks", ["cvrr"], "student `shop` wants task `cvrr`; did you mean `cvr`? there are: ctr, cvr"),
        ("students.1.name", "feed", "two students are named `feed`"),
        ("teacher.only", ["interest"], "teacher.only names feature `interest`; there are: ad_id, bid, user_id"),
        ("rows.tasks.1.given", "click", "task `cvr` is given `click`, which is not a task; tasks: ctr, cvr"),
        ("rows.tasks.1.window_s", 30, "task `cvr` settles after 30 s, before its condition `ctr` (60 s)"),
        ("rows.tasks.1.name", "ctr", "distinct names"),
        ("rows.columns.1.name", "user_id", "column `user_id` is declared twice"),
        ("rows.columns.0.name", "vertical", "column `vertical` is declared twice, or has a reserved name"),
        ("features.sparse.1.name", "user_id", "feature name `user_id` is repeated"),
        ("kafka", {"impressions": {"topic": "i", "partitions": 4}}, "impressions have 4 partitions and feedback 2;"),
        ("kafka", {"examples": {"topic": "feedback"}}, "topics need distinct names"),
        ("students.0.features", ["bid"], "student `feed` reads no sparse feature"),
        ("teacher.only", ["user_id", "ad_id"], "student `feed` reads no sparse feature"),
        ("settlement.dedup_horizon_s", 100, "dedup_horizon_s is 100"),
    ],
)
def test_what_does_not_fit_together_is_refused(path, value, words):
    assert words in refusal(changed(path, value))


def test_a_shared_name_of_a_sparse_and_a_dense_feature_stands_for_both():
    config = parse(changed("features.dense.0", {"name": "ad_id"}))
    features = config.student_features(config.student("feed"))
    assert (features.sparse_names, features.dense_names) == (("ad_id",), ("ad_id",))


# --- defaults of students -------------------------------------------------------------------------------------------


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


def test_the_demo_of_the_release_before_has_the_hash_that_its_runs_carry():
    """Settings that came after it stand at what was before: its runs resume, its results are found."""
    assert load("tests/fixtures/demo_of_0.1.yaml").hash == "2cefe33bc46e108d"


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


# --- files that a config names --------------------------------------------------------------------------------------

RECORDED = {"kind": "recorded", "path": "clicks.parquet", "labels": {"ctr": {"column": "clicked"}}}


def written(folder, source):
    folder.mkdir(exist_ok=True)
    (folder / "mine.yaml").write_text(yaml.safe_dump(small(source=source)))
    return folder / "mine.yaml"


def test_a_path_in_a_config_is_relative_to_the_config_and_one_of_the_command_line_to_where_it_was_typed(
    tmp_path, monkeypatch
):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    feedback = {"path": "../events.parquet"}
    source = {k: v for k, v in RECORDED.items() if k != "labels"} | {"feedback": feedback, "impression_id": "id"}
    path = written(tmp_path / "here", source)
    config = load(path)
    assert config.source.path == str(tmp_path / "here/clicks.parquet")
    assert config.source.feedback.path == str(tmp_path / "here/../events.parquet")
    typed = load(path, ["source.path=other.parquet"])
    assert typed.source.path == str(elsewhere / "other.parquet")
    assert typed.source.feedback.path == config.source.feedback.path
    assert load(path, ["source.path=/data/a.parquet"]).source.path == "/data/a.parquet"


def test_what_a_run_writes_down_names_its_file_from_anywhere(tmp_path, monkeypatch):
    config = load(written(tmp_path / "here", RECORDED))
    again = tmp_path / "run" / "config.yaml"
    again.parent.mkdir()
    again.write_text(dump(config))
    monkeypatch.chdir(tmp_path / "run")
    assert load(again) == config


def test_a_run_is_known_by_its_path_as_written_wherever_the_config_lies(tmp_path):
    """As before 0.2, when the path stayed as it was: checkpoints of those runs are taken up."""
    here, there = (load(written(tmp_path / name, RECORDED)) for name in ("here", "there"))
    assert here.source.path != there.source.path
    before = parse(small(source=RECORDED))
    assert here.hash == there.hash == before.hash
    assert here.decisive == before.decisive
    for worker in ("augmentation", "teacher", "student-feed"):
        assert here.identity(worker) == before.identity(worker)


# --- overrides ------------------------------------------------------------------------------------------------------


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
        ("source.kind=generatd", "source: kind is `generatd`; there are: 'generated', 'recorded'"),
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


# --- files that are no config ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- name: a\n- name: b\n", "holds a list, not a mapping of settings"),
        ("just words", "holds a string, not a mapping of settings"),
        ("", "holds nothing, not a mapping"),
        ("name: [unclosed\n", "is not YAML"),
        ("name: a\n\tseed: 1\n", "is not YAML"),
        ("\x00", "is not YAML"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(file, text, words):
    path = file(text)
    with pytest.raises(BadInput) as refused:
        load(path)
    assert str(path) in str(refused.value)
    assert words in str(refused.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(BadInput, match="is not YAML"):
        load(tmp_path / "run.yaml")


def test_an_absent_file_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(BadInput, match=r"no config at .*nowhere\.yaml; .*demo, .*/configs"):
        load(tmp_path / "nowhere.yaml")


def test_a_folder_is_no_config(tmp_path):
    with pytest.raises(BadInput, match="Is a directory"):
        load(tmp_path)


def test_a_key_given_twice_is_refused_with_its_line(file):
    with pytest.raises(BadInput, match=r"`seed` stands twice.*line 2"):
        load(file("seed: 1\nseed: 2\n"))


# --- the hash -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("seed", 2),
        ("source.impressions", 2000),
        ("rows.tasks.0.window_s", 61),
        ("rows.columns.0.minimum", 0),
        ("features.sparse.0.rows", 101),
        ("features.dense.0.transform", "identity"),
        ("pace.lag", 3),
        ("settlement.lateness_s", 1),
        ("augmentation.score_rows", 100),
        ("teacher.batch_rows", 100),
        ("teacher.model.width", 32),
        ("students.0.model.arm.weight", 3.0),
        ("students.0.batch_rows", 100),
    ],
)
def test_the_hash_changes_with_whatever_decides_the_result(path, value):
    assert parse(changed(path, value)).hash != parse(small()).hash


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tracking.enabled", False),
        ("resources.threads", 2),
        ("kafka.bootstrap_servers", "kafka:9092"),
        ("kafka.port", 9092),
        ("pace", {}),  # said or left to the default
    ],
)
def test_where_it_runs_and_who_watches_does_not_change_the_hash(path, value):
    assert parse(changed(path, value)).hash == parse(small()).hash


def test_a_message_must_have_time_for_a_request():
    with pytest.raises(ValidationError, match="make delivery_timeout_s 31 or more"):
        KafkaSettings(delivery_timeout_s=5)
    assert KafkaSettings(delivery_timeout_s=5, request_timeout_s=4).delivery_timeout_s == 5


def test_the_order_of_keys_does_not_change_the_hash():
    raw = small()
    assert parse(dict(reversed(raw.items()))).hash == parse(raw).hash


def test_a_topic_of_which_only_partitions_are_given_keeps_its_name():
    examples = parse(changed("kafka.examples.partitions", 4)).kafka.examples
    assert (examples.topic, examples.partitions) == ("examples", 4)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (
            "teacher.sharding.tables",
            {"user_ids": "row_wise"},
            "names `user_ids`, which is not a table; did you mean user_id",
        ),
        ("augmentation.sharding.tables", {"x": "row_wise"}, "augmentation.sharding: sharding.tables names `x`"),
        ("teacher.sharding.types", ["grid_shard"], "row-wise AdaGrad is another optimizer"),
        ("teacher.sharding.ranks_per_host", 2, "1 ranks do not fill hosts of 2"),
    ],
)
def test_a_sharding_that_does_not_suit_the_model_is_refused_before_anything_starts(path, value, words):
    assert words in refusal(changed(path, value))


def test_tables_that_do_not_learn_may_be_cut_by_columns():
    parse(changed("augmentation.sharding.types", ["column_wise"]))


# --- sampling and groups --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        ({"ctrr": 0.5}, "student `shop` wants task `ctrr`; did you mean `ctr`? there are: ctr"),
        ({"cvr": 0.5}, "student `shop` wants task `cvr`"),  # a task, and none of its own
        ({"ctr": 0}, "greater than 0"),
        ({"ctr": 1.5}, "less than or equal to 1"),
    ],
)
def test_a_sampling_rate_is_a_share_of_the_rows_of_one_of_the_students_tasks(rate, says):
    assert says in refusal(changed("students.1.negative_rate", rate))


def test_sampling_decides_what_a_run_computes():
    assert parse(changed("students.0.negative_rate", {"ctr": 0.5})).hash != parse(small()).hash


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


def test_demo_and_movielens_are_grouped_by_user():
    for name in ("demo", "movielens"):
        assert load(CONFIGS / f"{name}.yaml").metrics.group_by == "user_id"


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

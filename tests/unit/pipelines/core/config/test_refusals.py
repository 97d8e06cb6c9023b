"""What is unknown, wrong, missing or contradictory is refused in words that say where, and what is near."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipelines.core.config.settings import load, parse
from streaming.errors import BadInput
from streaming.kafka.settings import KafkaSettings
from tests.support.pipelines.raw_configs import changed, file_at, refusal, small


@pytest.fixture
def file(tmp_path):
    return file_at(tmp_path / "run.yaml")


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
    assert also in said.partition("choose from ")[2]


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


def test_a_feature_of_a_column_that_rows_do_not_have():
    said = refusal(changed("features.sparse.0.column", "user"))
    assert "features read column `user`, which rows do not have; did you mean `user_id`?" in said
    assert "choose from ad_id, bid, event_time_ms, user_id, vertical" in said


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("students.0.features", ["add_id"], "student `feed` wants feature `add_id`; did you mean `ad_id`? choose from"),
        ("students.1.tasks", ["cvrr"], "student `shop` wants task `cvrr`; did you mean `cvr`? choose from ctr, cvr"),
        ("students.1.name", "feed", "two students are named `feed`"),
        ("teacher.only", ["interest"], "teacher.only names feature `interest`; choose from ad_id, bid, user_id"),
        ("rows.tasks.1.given", "click", "task `cvr` is given `click`, which is not a task; tasks: ctr, cvr"),
        ("rows.tasks.1.window_s", 30, "task `cvr` settles after 30 s, before its condition `ctr` (60 s)"),
        ("rows.tasks.1.name", "ctr", "distinct names"),
        ("rows.columns.1.name", "user_id", "column `user_id` is declared twice"),
        ("rows.columns.0.name", "vertical", "column `vertical` is declared twice, or has a reserved name"),
        ("features.sparse.1.name", "user_id", "feature name `user_id` is repeated"),
        ("kafka", {"examples": {"topic": "feedback"}}, "topics need distinct names"),
        ("students.0.features", ["bid"], "student `feed` reads no sparse feature"),
        ("teacher.only", ["user_id", "ad_id"], "student `feed` reads no sparse feature"),
        ("settlement.dedup_horizon_s", 100, "dedup_horizon_s is 100"),
        (
            "teacher.model.embeddings",
            {"user_id": {"kind": "managed", "rows": 9, "after_s": 20}},
            "embeddings.user_id.after_s is 20, and labels come up to",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(path, value, words):
    assert words in refusal(changed(path, value))


def test_a_shared_name_of_a_sparse_and_a_dense_feature_stands_for_both():
    config = parse(changed("features.dense.0", {"name": "ad_id"}))
    features = config.student_features(config.student("feed"))
    assert (features.sparse_names, features.dense_names) == (("ad_id",), ("ad_id",))


def test_a_message_must_have_time_for_a_request():
    with pytest.raises(ValidationError, match="make delivery_timeout_s 31 or more"):
        KafkaSettings(delivery_timeout_s=5)
    assert KafkaSettings(delivery_timeout_s=5, request_timeout_s=4).delivery_timeout_s == 5


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


def test_published_tables_of_few_bits_are_not_cut_by_columns():
    cut = changed("teacher.sharding.tables", {"user_id": "column_wise"})
    cut["teacher"] |= {"publish_bits": 4}
    cut["teacher"]["model"] = cut["teacher"].get("model", {}) | {"sparse_optimizer": "adagrad"}
    assert "publish_bits is 4, and table `user_id` may be cut by columns (column_wise)" in refusal(cut)
    cut["teacher"]["publish_bits"] = None
    parse(cut)


def test_tables_that_do_not_learn_may_be_cut_by_columns():
    parse(changed("augmentation.sharding.types", ["column_wise"]))

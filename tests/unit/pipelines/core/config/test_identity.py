"""Which setting is part of whose identity: what a worker depends on, and nothing else."""

from __future__ import annotations

import json

import pytest
import yaml

from pipelines.core.config.identity import depends_on, identity_of
from pipelines.core.config.settings import Config, dump, parse
from tests.support.pipelines.raw_configs import changed, small

LAKE = {"augmentation", "teacher", "student-feed", "student-shop"}
"""Whatever decides which rows the lake holds, in which order, concerns everyone."""
TEACHER = {"augmentation", "teacher"}
FEED, SHOP, STUDENTS = {"student-feed"}, {"student-shop"}, {"student-feed", "student-shop"}

HISTORY = {"name": "ad_ctr", "by": "ad_id", "of": "label_ctr"}

# A setting, another value, and whose identity it changes. In `small()`, user_id is the teacher's alone.
TABLE = [
    ("name", "other", set()),
    ("seed", 2, LAKE),
    ("source.impressions", 2000, LAKE),
    ("source.seed", 2, LAKE),
    ("rows.tasks.0.window_s", 61, LAKE),
    ("rows.columns.0.minimum", 0, LAKE),
    ("features.sparse.0.rows", 101, TEACHER),
    ("features.sparse.1.rows", 21, LAKE),
    ("features.dense.0.transform", "identity", LAKE),
    ("features.history", [HISTORY], STUDENTS),
    ("pace.lag", 3, LAKE),
    ("pace.mode", "lockstep", LAKE),
    ("settlement.lateness_s", 1, LAKE),
    ("kafka.impressions", {"partitions": 2, "codec": "json"}, LAKE),
    ("kafka.feedback", {"partitions": 2, "codec": "json"}, LAKE),
    ("kafka.examples.partitions", 2, TEACHER),
    ("kafka.dead_letters.partitions", 2, set()),
    ("kafka.examples.topic", "elsewhere", set()),
    ("kafka.bootstrap_servers", "kafka:9092", set()),
    ("kafka.port", 9092, set()),
    ("augmentation.score_rows", 100, {"augmentation"}),
    ("augmentation.idle_s", 1, {"augmentation"}),
    ("augmentation.ranks", 2, set()),
    ("teacher.batch_rows", 100, TEACHER),
    ("teacher.model.width", 32, TEACHER),
    ("teacher.publish_every_rows", 100, TEACHER),
    ("teacher.only", [], STUDENTS),  # they read user_id too, the teacher reads it anyway
    ("teacher.only", ["user_id", "bid"], STUDENTS),
    ("teacher.sharding.types", ["row_wise"], set()),
    ("teacher.read_ahead", 0, set()),
    ("teachers", [{"name": "large"}], set()),
    ("students.0.batch_rows", 100, FEED),
    ("students.0.ranks", 2, set()),
    ("students.0.model.arm.weight", 3.0, FEED),
    ("students.0.verticals", ["feed", "video"], FEED),
    ("students.0.verticals", ["feed"], set()),  # what it is by default
    ("students.0.tasks", ["ctr"], FEED),
    ("students.0.features", ["ad_id"], FEED),
    ("students.0.features", ["bid", "ad_id"], set()),  # what it reads by default, in the order of `features`
    ("students.0.negative_rate", {"ctr": 0.5}, FEED),
    ("students.1.twin", True, SHOP),
    ("students.1.distillation_rows", "own", set()),
    ("metrics.group_by", "user_id", STUDENTS),
    ("metrics.cluster_by", ["user_id", "ad_id"], STUDENTS),
    ("metrics.cluster_by", [], set()),
    ("run_dir", "s3://ads/runs/demo", set()),
    ("lake.retention_days", 3, set()),
    ("losses.fail_share", 0.9, set()),
    ("alarms.stalled_s", 9.0, set()),
    ("tracking.enabled", False, set()),
    ("registry.level", 0.01, set()),
    ("resources.threads", 2, set()),
]


def identities(config: Config) -> dict[str, str]:
    return {worker: config.identity(worker) for worker in LAKE}


@pytest.mark.parametrize(("path", "value", "whose"), TABLE)
def test_a_setting_is_part_of_the_identity_of_those_that_depend_on_it(path, value, whose):
    before, now = identities(parse(small())), identities(parse(changed(path, value)))
    assert {worker for worker in LAKE if before[worker] != now[worker]} == whose


def test_the_table_has_a_setting_of_every_section():
    assert {path.partition(".")[0] for path, *_ in TABLE} == set(Config.model_fields)


def test_no_two_workers_have_the_same_identity():
    assert len(set(identities(parse(small())).values())) == len(LAKE)


OTHERS = {"name": "more", "batch_rows": 64, "verticals": ["feed"]}
STUDENTS_ELSEWHERE = {
    "one joins": [{"name": "feed"}, {"name": "shop", "tasks": ["ctr"]}, OTHERS],
    "one joins before the others": [OTHERS, {"name": "feed"}, {"name": "shop", "tasks": ["ctr"]}],
    "they change places": [{"name": "shop", "tasks": ["ctr"]}, {"name": "feed"}],
}


@pytest.mark.parametrize("students", STUDENTS_ELSEWHERE.values(), ids=STUDENTS_ELSEWHERE.keys())
def test_whoever_joins_leaves_every_other_identity_as_it_was(students):
    assert identities(parse(small(students=students))) == identities(parse(small()))


def test_whoever_leaves_leaves_every_other_identity_as_it_was():
    left = parse(small(students=[{"name": "feed"}]))
    before = identities(parse(small()))
    assert {worker: left.identity(worker) for worker in TEACHER | FEED} == {w: before[w] for w in TEACHER | FEED}
    with pytest.raises(KeyError, match="no student is named `shop`"):
        left.identity("student-shop")


@pytest.mark.parametrize("field", ["batch_rows", "twin", "checkpoint_every_rows", "negative_rate", "model"])
def test_every_setting_of_a_student_is_its_own(field):
    values = {"batch_rows": 9, "twin": True, "checkpoint_every_rows": 9, "negative_rate": {"ctr": 0.1}, "model": {}}
    values["model"] = {"width": 16}
    before, now = identities(parse(small())), identities(parse(changed(f"students.0.{field}", values[field])))
    assert {worker for worker in LAKE if before[worker] != now[worker]} == FEED


def test_a_stored_config_keeps_its_identities_whatever_came_since():
    """They are of the settings as they were written: what is not there is not part of them."""
    written = {
        "seed": 1,
        "rows": {"tasks": [{"name": "ctr"}]},
        "teacher": {"batch_rows": 8, "ranks": 2, "only": ["a"]},
        "features": {"sparse": [{"name": "a"}, {"name": "b"}]},
        "students": [{"name": "feed", "twin": True}],
    }
    assert depends_on(written, "teacher")["teacher"] == {"batch_rows": 8}
    assert depends_on(written, "student-feed")["features"] == {"sparse": [{"name": "b"}]}
    assert {worker: identity_of(written, worker) for worker in ("augmentation", "teacher", "student-feed")} == {
        "augmentation": "4502f0af1ce5a4f6",
        "teacher": "1e2472a4c437633c",
        "student-feed": "cffc4fc6198b3f83",
    }


def test_the_resolved_config_read_back_has_the_same_identities():
    config = parse(small())
    settings = json.loads(json.dumps(yaml.safe_load(dump(config))))
    assert {worker: identity_of(settings, worker) for worker in LAKE} == identities(config)

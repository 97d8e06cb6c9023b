"""The config of a run that follows another's lake: what it takes from there, and what it may not set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.core.config.settings import Config, dump, load, parse
from pipelines.core.run_dir.lake_link import LakeLink, write_link
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import small

STUDENTS = [{"name": "shop", "tasks": ["ctr"]}]


@pytest.fixture
def leader(tmp_path: Path) -> Path:
    (root := tmp_path / "leads").mkdir()
    (root / "config.yaml").write_text(dump(parse(small(seed=7))))
    return root


def follow(leader: Path, **settings: Any) -> Config:
    raw = {"name": "team", "source": {"lake": "leads"}, "students": STUDENTS} | settings
    path = leader.parent / "team.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return load(path)


def refusal(leader: Path, **settings: Any) -> str:
    with pytest.raises(BadInput) as refused:
        follow(leader, **settings)
    return str(refused.value)


def test_what_decides_the_rows_is_that_of_the_run_that_leads(leader):
    theirs, config = load(leader / "config.yaml"), follow(leader)
    for section in ("rows", "features", "pace", "kafka", "settlement", "augmentation", "lake", "teacher", "teachers"):
        assert getattr(config, section) == getattr(theirs, section), section
    assert (config.seed, [student.name for student in config.students]) == (1, ["shop"])
    assert config.follows is not None
    assert config.follows.lake == str(leader)
    assert config.reader_names == ["student-shop"]


def test_a_student_has_the_identity_that_it_would_have_there(leader):
    theirs = load(leader / "config.yaml")
    assert follow(leader, seed=7).identity("student-shop") == theirs.identity("student-shop")
    assert follow(leader, seed=8).identity("student-shop") != theirs.identity("student-shop")


def test_its_own_config_as_written_down_says_the_same_whatever_becomes_of_the_other(leader):
    config = follow(leader, source={"lake": "leads", "from": 40})
    (written := leader.parent / "written.yaml").write_text(dump(config))
    raw = yaml.safe_load(written.read_text())["source"]
    assert (raw["kind"], raw["lake"], raw["from"]) == ("lake", str(leader), 40)
    (leader / "config.yaml").unlink()
    assert load(written) == config


def test_another_teacher_there_changes_nothing_here(leader):
    before = follow(leader)
    raw = small(seed=7, teacher={"only": ["user_id"], "batch_rows": 77}, augmentation={"idle_s": 9.0})
    (leader / "config.yaml").write_text(dump(parse(raw)))
    assert follow(leader).hash == before.hash


def test_students_begin_no_earlier_than_the_run(leader):
    source = {"lake": "leads", "from": 40}
    config = follow(leader, source=source, students=[{"name": "feed"}, {"name": "shop", "first_seq": 50}])
    assert [student.first_seq for student in config.students] == [40, 50]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kafka": {"port": 3}}, "`kafka.port`"),
        ({"teacher": {"batch_rows": 3}}, "`teacher.batch_rows`"),
        ({"settlement": {"lateness_s": 99.0}}, "`settlement.lateness_s`"),
        ({"features": {"sparse": [{"name": "user_id", "rows": 7}]}}, "`features.sparse`"),
        ({"asof": {"tick_s": 3}}, "`asof.tick_s`"),
        ({"lake": {"retention_days": 3.0}}, "`lake.retention_days`"),
        ({"pace": {"mode": "lockstep"}}, "`pace.mode`"),
    ],
)
def test_a_setting_of_the_run_that_leads_is_refused_by_name(leader, settings, named):
    words = refusal(leader, **settings)
    assert named in words
    assert str(leader) in words
    assert "Leave it out" in words


def test_a_setting_that_says_the_same_is_taken(leader):
    assert follow(leader, teacher={"only": ["user_id"]}, pace={"mode": "free"}) == follow(leader)


def test_columns_that_the_lake_lacks_are_named(leader):
    words = refusal(leader, students=[{"name": "shop", "features": ["no_such"]}])
    assert "student `shop` wants feature `no_such`" in words
    own = {"sparse": [{"name": "x", "column": "colour", "rows": 8}]}
    assert "column `colour`, which rows do not have" in refusal(
        leader, students=[{"name": "shop", "own_features": own}]
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"lake": "nowhere"}, "there is no such folder"),
        ({"lake": "."}, "no config.yaml there"),
        ({"lake": "gs://bucket/runs/ads"}, "is not supported"),
        ({"lake": None}, "give the folder of a run"),
        ({"lake": "leads", "from": -1}, "source.from"),
        ({"lake": "leads", "since": 3}, "source.since: unknown key"),
    ],
)
def test_a_lake_that_cannot_be_followed_is_refused_with_the_reason(leader, source, words):
    assert words in refusal(leader, source=source)


def test_a_run_that_follows_is_not_followed_itself(leader):
    write_link(leader, LakeLink(Path("/runs/first"), "7c", "leads-1"))
    assert "follow /runs/first" in refusal(leader)

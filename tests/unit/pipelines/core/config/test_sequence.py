"""`teacher.model.sequence` in a config: the lists that it makes as-of features of, and what is refused."""

import pytest

from pipelines.core.config.settings import dump, load, parse
from pipelines.core.config.text import read_yaml
from streaming.errors import BadInput

SEQUENCE = "teacher.model.sequence={of: user_id, events: [ad_id, category_id], length: 16}"


def test_it_adds_the_lists_that_the_teacher_reads():
    config = load("configs/demo.yaml", [SEQUENCE])
    events = config.rows.asof.features[-1]
    assert (events.name, events.by, events.last) == ("user_id_events", ("user_id",), 16)
    assert events.of == ("ad_id", "category_id", "ctr", "cvr", "gap_s")
    assert {column.name for column in events.columns} <= set(config.teacher_features.needs_columns())


def test_no_student_reads_them():
    config = load("configs/demo.yaml", [SEQUENCE])
    lists = {column.name for column in config.rows.asof.features[-1].columns}
    assert not any(lists & set(config.student_features(student).needs_columns()) for student in config.students)


def test_a_config_that_a_run_wrote_down_means_the_same():
    config = load("configs/demo.yaml", [SEQUENCE])
    assert parse(read_yaml(dump(config))) == config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("{of: user, events: [ad_id]}", "teacher.model.sequence: `of` names `user`; it can name columns"),
        ("{of: user_id, events: [bid]}", "teacher.model.sequence: `events` names `bid`; it can name int64 columns"),
        ("{of: user_id, events: [ad_id], having: like}", "`having` names `like`; tasks are ctr, cvr"),
        ("{of: user_id, events: [ad_id], length: 0}", "teacher.model.sequence.length"),
        ("{of: user_id, events: [ad_id], width: 10, heads: 4}", "width 10 is no multiple of heads 4"),
        (
            "{of: user_id, events: [ad_id], as_of: settlement}",
            "a run cannot know when a row is shown; leave it out, or",
        ),
        ("{of: user_id, events: [ad_id], as_of: settlement, having: ctr}", "leave one of them out"),
    ],
)
def test_what_no_sequence_can_be_made_of_is_refused_with_its_setting(changes, words):
    with pytest.raises(BadInput) as refused:
        load("configs/demo.yaml", [f"teacher.model.sequence={changes}"])
    assert words in str(refused.value)


def test_an_event_needs_a_sparse_feature_that_reads_its_column():
    raw = load("configs/demo.yaml").model_dump(mode="json")
    raw["rows"]["columns"].append({"name": "campaign_id"})
    raw["teacher"]["model"]["sequence"] = {"of": "user_id", "events": ["campaign_id"]}
    with pytest.raises(BadInput) as refused:
        parse(raw)
    assert "`campaign_id`, which no sparse feature reads" in str(refused.value)


def test_the_events_are_written_under_the_teacher():
    raw = load("configs/demo.yaml", [SEQUENCE]).model_dump(mode="json")
    raw["features"]["events"] = [{"name": "user_id_events"}]
    with pytest.raises(BadInput) as refused:
        parse(raw)
    assert "`features.events` is made of `teacher.model.sequence`" in str(refused.value)

"""Histories in a run: which may be configured, and that a student's worker keeps, stores and serves them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exfm.models.served import load_served
from pipelines.core.config.evolve import evolution, made_with_teacher
from pipelines.core.config.settings import load, parse
from pipelines.live.workers.student.reading import lake_columns
from pipelines.served_model import _load_pyfunc
from streaming.errors import BadInput
from tests.support.models.states import same
from tests.support.pipelines.raw_configs import refusal, small
from tests.support.pipelines.stored_run import SMALL_RUN, rows_of
from tests.support.pipelines.student_at_work import learn, starting

OWN = {"name": "ad_ctr", "by": "ad_id", "of": "label_ctr"}
BOUGHT = {"name": "ad_cvr", "by": "ad_id", "of": "label_cvr"}
LOGIT = {"name": "ad_logit", "by": "ad_id", "of": "teacher_logit_ctr"}
TASTE = {"name": "ad_taste", "by": "ad_id", "of": "teacher_embedding"}
LABELS_ONLY = {"arm": {"kind": "none", "adapter": False}}


def with_histories(*histories, **students):
    """The small config with these histories, and its students' settings by name."""
    raw = small()
    raw["features"]["history"] = list(histories)
    raw["students"] = [student | students.get(student["name"], {}) for student in raw["students"]]
    return raw


# --- configured ------------------------------------------------------------------------------------------------------


def test_students_choose_histories_by_name_and_the_teacher_has_none():
    config = parse(with_histories(OWN, LOGIT, shop={"features": ["ad_id", "ad_ctr"]}))
    feed, shop = config.students
    assert config.student_features(feed).names == ("ad_id", "bid", "ad_ctr", "ad_logit")
    assert config.student_features(shop).names == ("ad_id", "ad_ctr")
    assert made_with_teacher(config) == made_with_teacher(parse(small()))


@pytest.mark.parametrize(
    ("history", "student", "words"),
    [
        (OWN | {"by": "ad"}, {}, "history `ad_ctr` is by `ad`, which is not one of its sparse features"),
        (OWN | {"of": "clicks"}, {}, "history `ad_ctr` is of `clicks`; it can be of `label_<task>`, `teacher_logit_"),
        (OWN | {"by": "user_id"}, {}, "`feed` reads history `ad_ctr` by `user_id`, a sparse feature that it does not"),
        (BOUGHT, {}, "`shop` reads history `ad_cvr` of `label_cvr`, and its tasks are ctr; list its features"),
        (LOGIT, {"model": LABELS_ONLY}, "what the teacher says, and its arm `none` never looks at it"),
        (TASTE, {}, "`feed` reads 16 values of the teacher's representation (`teacher_embedding`), which has none"),
        (OWN | {"prior": 3}, {}, "features.history.0.prior: unknown key; did you mean `prior_rows`?"),
    ],
)  # fmt: skip
def test_a_history_that_a_student_cannot_have_is_refused(history, student, words):
    assert words in refusal(with_histories(history, feed=student))


def test_a_student_reads_the_representations_column_only_where_it_has_a_use_for_it():
    arm = {"arm": {"preset": "recommended", "representation_weight": 0.5, "representation_width": 8}}
    raw = with_histories(TASTE | {"width": 4}, feed={"features": ["ad_id"]}, shop={"features": ["ad_id", "ad_taste"]})
    raw["teacher"] = raw.get("teacher", {}) | {"model": {"representation": 8}}
    config = parse(raw)
    feed, shop = config.students
    distilling = feed.model_copy(update={"model": type(feed.model).model_validate(arm)})
    columns = {"teacher_embedding", "teacher_space"}
    assert [columns & set(lake_columns(config, student)) for student in (feed, shop, distilling)] == [
        set(), columns, columns,
    ]  # fmt: skip
    assert [config.embedding_width(student) for student in (feed, shop, distilling)] == [0, 4, 8]
    assert columns <= set(config.rows.augmented.names)
    assert parse(config.model_dump(mode="json")).rows == config.rows
    assert not columns & set(parse(small()).rows.augmented.names)


def test_a_run_goes_on_without_them_and_a_student_gets_none_that_it_did_not_begin_with():
    before, listed = parse(small()), {"features": ["ad_id", "bid"]}
    with pytest.raises(BadInput, match="student `feed` would read the new feature `ad_ctr`"):
        evolution(before, parse(with_histories(OWN)))
    now = parse(with_histories(OWN, feed=listed, shop=listed))
    assert evolution(before, now) == ["`ad_ctr` is added: it starts empty"]


# --- at work ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path):
    """Starts a worker of a student that reads both histories, and has a twin, in one run directory."""
    config = load(SMALL_RUN, [f"features.history={[OWN, LOGIT | {'by': 'user_id'}]}"])
    with starting(config, tmp_path) as start:
        yield start


def exports(root: Path) -> list[Path]:
    return sorted((root / "snapshots" / "students" / "feed").glob("v*"))


def test_a_students_worker_that_was_stopped_goes_on_with_its_histories(started, tmp_path):
    first = started()
    learn(first, 0, 1)
    first.abandon()
    second = started()
    assert second.position == 63
    learn(second, 2)
    for name, one in first.state.engine.models.items():
        other = second.state.engine.models[name]
        one.train_step(first.build(rows_of(2)))  # as if it had never been stopped
        assert same(one.state(), other.state())
    kept = second.state.engine.state()
    assert kept["student/history/ad_ctr/count"].sum() == kept["student/history/ad_logit/count"].sum() == 96
    assert {key.split("/")[2] for key in kept if key.startswith("no_teacher/history/")} == {"ad_ctr"}


def test_what_is_served_answers_from_raw_columns_with_the_histories_of_its_moment(started, tmp_path):
    worker = started()
    learn(worker, 0, 1, 2)
    probe = rows_of(9)
    path = exports(tmp_path)[-1]
    batch = worker.build(probe)
    assert np.allclose(load_served(path).score(batch), worker.state.engine.student.score(batch), atol=1e-6)
    asked = probe.select(["user_id", "ad_id", "bid"]).to_pandas()
    told = _load_pyfunc(str(path)).predict(asked)["ctr"].to_numpy()
    assert np.allclose(told, 1 / (1 + np.exp(-worker.state.engine.student.score(batch)[:, 0])), atol=1e-6)

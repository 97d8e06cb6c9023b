"""Ids that a run is asked to forget: every model does, once, at a position that a restart finds again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from exfm.features.batch import BatchBuilder
from exfm.models.served import load_served
from pipelines.core.config.settings import load
from pipelines.core.run_dir.forgotten import (
    ask_to_forget,
    forget_anew,
    forgotten,
    note_forgotten,
    note_removed,
    take_places,
)
from pipelines.core.run_dir.paths import BesideRun, RunDir
from pipelines.live.training.forgetting import Forgetting, ids_of
from pipelines.live.workers.teacher.candidate import CandidateTeacher
from pipelines.live.workers.teacher.worker import TeacherWorker
from streaming.asof.forgotten import RemovedCounts
from streaming.errors import BadInput, DataLost
from tests.support.models.states import same
from tests.support.pipelines.stored_run import SMALL_RUN, rows_of
from tests.support.pipelines.student_at_work import learn, starting

KINDS = {
    "managed": {"kind": "managed", "rows": 400, "fallback": "zero"},
    "full": {"kind": "full"},
    "hash": {"kind": "hash", "rows": 30},
}


def config_with(kind):
    config = load(SMALL_RUN, ["features.history=[{name: user_ctr, by: user_id, of: label_ctr}]"])
    embeddings = {"embeddings": {"user_id": KINDS[kind]}}
    first, *others = config.students
    model = type(first.model).model_validate(first.model.model_dump() | embeddings)
    teacher = type(config.teacher.model).model_validate(config.teacher.model.model_dump() | embeddings)
    return config.model_copy(
        update={
            "students": (first.model_copy(update={"model": model}), *others),
            "teacher": config.teacher.model_copy(update={"model": teacher}),
        }
    )


CONFIG = config_with("full")


def test_a_request_is_done_once_at_a_position_that_is_written_down(tmp_path):
    run_dir, features = RunDir(tmp_path), CONFIG.teacher_features
    asks = lambda began: Forgetting(run_dir, "teacher", features, CONFIG.rows, began)  # noqa: E731
    worker = asks(0)
    assert worker.due(0) == []
    ask_to_forget(run_dir, "user_id", "7")
    wanted = [("user_id", ids_of(features, CONFIG.rows, "user_id", "7"))]
    assert worker.due(3) == wanted
    assert forgotten(run_dir).at == {"teacher": {1: 3}}
    assert worker.due(4) == []
    assert (asks(2).due(2), asks(4).due(4)) == ([], [])  # it comes to it yet, or has it in its state
    for began in (2, 3):
        again = asks(began)
        assert again.due(3) == wanted
    other = Forgetting(run_dir, "student-feed", features, CONFIG.rows, 0)
    assert other.due(9) == wanted
    note_forgotten(run_dir, "student-feed", [1], 11)
    assert forgotten(run_dir).at == {"teacher": {1: 3}, "student-feed": {1: 9}}


def test_a_worker_beside_a_run_forgets_where_the_runs_own_did_or_at_its_next_position(tmp_path):
    run_dir, features = RunDir(tmp_path), CONFIG.teacher_features
    beside = BesideRun(tmp_path / "replacement", run_dir)
    ask_to_forget(run_dir, "user_id", "7")
    wanted = [("user_id", ids_of(features, CONFIG.rows, "user_id", "7"))]
    worker = Forgetting(beside, "teacher", features, CONFIG.rows, 0)
    assert worker.due(2) == []  # the run's own has not come to it
    note_forgotten(run_dir, "teacher", [1], 5)
    assert (worker.due(4), worker.due(5), worker.due(6)) == ([], wanted, [])
    ask_to_forget(run_dir, "user_id", "8")
    note_forgotten(run_dir, "teacher", [2], 7)
    assert worker.due(9) == [("user_id", ids_of(features, CONFIG.rows, "user_id", "8"))]  # it was ahead
    assert forgotten(beside).at == {"teacher": {1: 5, 2: 9}}
    assert forgotten(run_dir).at == {"teacher": {1: 5, 2: 7}}
    again = Forgetting(beside, "teacher", features, CONFIG.rows, 6)
    assert (again.due(8), len(again.due(9))) == ([], 1)


def test_who_takes_a_runs_place_forgets_what_it_has_not_come_to_before_it_learns(tmp_path):
    run_dir, features = RunDir(tmp_path), CONFIG.teacher_features
    beside = BesideRun(tmp_path / "replacement", run_dir)
    for number, id_ in enumerate("789", start=1):
        ask_to_forget(run_dir, "user_id", id_)
        note_forgotten(run_dir, "teacher", [number], number)
    note_forgotten(run_dir, "student-feed", [1], 40)
    note_forgotten(beside, "teacher", [1, 2], 2)
    for _ in range(2):  # a takeover that was killed is done again
        take_places(run_dir, beside, {"teacher": 6, "student-other": 9})
        assert forgotten(run_dir).at == {"teacher": {1: 2, 2: 2, 3: 6}, "student-feed": {1: 40}}
    assert [due.table for due in Forgetting(run_dir, "teacher", features, CONFIG.rows, 6).due(6)] == ["user_id"]


def test_positions_behind_an_event_time_that_is_set_back_are_come_to_again(tmp_path):
    run_dir = RunDir(tmp_path)
    forget_anew(run_dir, "augmentation", after=50)  # nothing was asked
    note_forgotten(run_dir, "augmentation", [1], 50)
    note_forgotten(run_dir, "augmentation", [2], 51)
    note_forgotten(run_dir, "teacher", [1], 60)
    note_removed(run_dir, {1: RemovedCounts(1, 0), 2: RemovedCounts(2, 0)})
    forget_anew(run_dir, "augmentation", after=50)
    assert forgotten(run_dir).at == {"augmentation": {1: 50}, "teacher": {1: 60}}
    assert forgotten(run_dir).removed == {1: RemovedCounts(1, 0)}


def test_a_damaged_record_is_refused_for_what_it_asks_may_not_be_passed_over(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.forgotten.write_text('{"requests": 3}')
    with pytest.raises(DataLost, match=r"forgotten.json is damaged .* ask for every id again"):
        ask_to_forget(run_dir, "user_id", "7")


def test_an_id_that_is_none_is_refused():
    features = CONFIG.teacher_features
    with pytest.raises(BadInput, match="`seven` is no id of table `user_id`, whose column `user_id` is int64"):
        ids_of(features, CONFIG.rows, "user_id", "seven")


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_forgets_before_its_next_rows_and_one_that_was_killed_does_at_the_same_place(kind, tmp_path):
    config, run_dir = config_with(kind), RunDir(tmp_path)
    (user,) = {int(rows_of(0)["user_id"][0].as_py())}
    (id_,) = ids_of(config.student_features(config.students[0]), config.rows, "user_id", str(user))
    without = [rows_of(n).filter(np.array(rows_of(n)["user_id"]) != user) for n in range(4)]
    assert rows_of(0).num_rows > without[0].num_rows
    with starting(config, tmp_path) as start:
        first = start()
        learn(first, 0, 1)
        student = first.state.engine.student
        assert student.histories.each[0].count[id_] > 0
        ask_to_forget(run_dir, "user_id", str(user))
        first.abandon()  # killed before it came to it
        second = start()
        seen = []
        step = second.state.engine.step
        second.state.engine.step = lambda batch: seen.append(copied(second)) or step(batch)
        learn(second, 2)
        begun = seen[0]
        assert begun["student/history/user_ctr/count"][id_] == 0
        rows = rows_that(second, id_)
        assert all(not begun[f"student/table/{name}/accumulator"][at].any() for name, at in rows.items() if len(at))
        if kind == "managed":
            assert id_ not in begun["student/table/user_id/served:ids"]
        assert forgotten(run_dir).at == {"student-feed": {1: rows_of(2)["lake_seq"][0].as_py()}}
        learn(second, 3)
        after = copied(second)
        # one that is behind what it had forgotten comes to the same place
        for path in sorted((tmp_path / "checkpoints" / "student-feed").glob("v*"))[-2:]:
            for file in sorted(path.rglob("*")):
                file.unlink()
            path.rmdir()
        second.abandon()
        third = start()
        assert third.position < rows_of(3)["lake_seq"][0].as_py()
        learn(third, *range((third.position + 1) // 32, 4))
        assert same(copied(third), after)


def copied(worker):
    return {name: tensor.clone() for name, tensor in worker.state.engine.state().items()}


def rows_that(worker, id_):
    """Rows of plain tables that an id reads."""
    tables = worker.state.engine.student.net.tables
    whole = next(t for t in getattr(tables, "whole", tables.tables) if t.name == "user_id")
    if not hasattr(whole, "read"):
        return {"user_id": torch.tensor([id_])}
    read = whole.read(torch.tensor([id_]))
    return {plain.name: at[at >= 0] for plain, at in zip(whole.tables, read, strict=True)}


def test_what_is_served_afterwards_holds_nothing_of_the_id(tmp_path):
    config, run_dir = config_with("managed"), RunDir(tmp_path)
    user = int(rows_of(0)["user_id"][0].as_py())
    (id_,) = ids_of(config.student_features(config.students[0]), config.rows, "user_id", str(user))
    with starting(config, tmp_path) as start:
        worker = start()
        learn(worker, 0)
        versions = lambda: sorted((tmp_path / "snapshots" / "students" / "feed").glob("v*"))  # noqa: E731
        assert id_ in load_served(versions()[-1]).state_dict()["tables.user_id/served:ids"]
        ask_to_forget(run_dir, "user_id", str(user))
        later = next(n for n in range(1, 9) if user not in rows_of(n)["user_id"].to_pylist())
        learn(worker, later)
        served = load_served(versions()[-1])
        assert id_ not in served.state_dict()["tables.user_id/served:ids"]


def test_a_teacher_forgets_before_its_next_block(tmp_path):
    config, run_dir = config_with("managed"), RunDir(tmp_path)
    user = int(rows_of(0)["user_id"][0].as_py())
    (id_,) = ids_of(config.teacher_features, config.rows, "user_id", str(user))
    worker = TeacherWorker(config, run_dir)
    worker.resume()
    try:
        worker.engine.step(BatchBuilder(config.teacher_features, config.tasks)(rows_of(0)))
        assert id_ in worker.engine.state()["table/user_id/served:ids"]
        ask_to_forget(run_dir, "user_id", str(user))
        worker.forget()
        assert id_ not in worker.engine.snapshot()["table/user_id/served:ids"]
        assert forgotten(run_dir).at == {"teacher": {1: 0}}
    finally:
        worker.abandon()
        worker.engine.close()


def test_a_candidate_for_its_place_forgets_at_the_same_block(tmp_path):
    config, run_dir = config_with("managed"), RunDir(tmp_path)
    beside = BesideRun(run_dir.replacement, run_dir)
    user = int(rows_of(0)["user_id"][0].as_py())
    (id_,) = ids_of(config.teacher_features, config.rows, "user_id", str(user))
    candidate = CandidateTeacher(config, beside, 1)
    candidate.resume()
    try:
        candidate.engine.step(BatchBuilder(config.teacher_features, config.tasks)(rows_of(0)))
        ask_to_forget(run_dir, "user_id", str(user))
        candidate.forget()
        assert id_ in candidate.engine.state()["table/user_id/served:ids"]
        note_forgotten(run_dir, "teacher", [1], 0)
        candidate.forget()
        assert id_ not in candidate.engine.snapshot()["table/user_id/served:ids"]
    finally:
        candidate.abandon()
        candidate.engine.close()

"""Rows that spoil a step are left out of it; the others are learned as if they had come alone, to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from exfm.features.learned_rows import LearnedRows
from exfm.models import bad_rows
from exfm.models.engine import STUDENT, TWIN, StudentEngine, TeacherEngine
from exfm.models.teacher import Teacher
from exfm.parallel.group import RankGroup
from exfm.step import GRADIENT, INPUT, LEARNED, LOGIT, LOSS
from tests.support.models import teachers
from tests.support.models.states import same
from tests.support.models.students import ARMS, FEATURES, SMALL, TASKS, stream


@pytest.fixture(scope="module")
def group():
    with RankGroup() as group:
        yield group


@pytest.fixture
def no_ceiling(monkeypatch):
    """Inputs of any size reach the models."""
    monkeypatch.setattr(bad_rows, "LARGEST_INPUT", float("inf"))


def engine(arm="adapter", **options):
    cfg = SMALL.model_copy(update={"arm": ARMS[arm]})
    one = StudentEngine(cfg, FEATURES, TASKS, 5, twin=True, baselines=True, **options)
    for batch in stream(1_024)[:3]:
        one.step(batch)
    return one


def with_values(batch, name, values):
    changed = getattr(batch, name).clone()
    for row, value in values.items():
        changed[row] = value
    return replace(batch, **{name: changed})


def kept(batch, rows):
    mask = torch.ones(len(batch), dtype=torch.bool)
    mask[list(rows)] = False
    return batch.only(mask)


def assert_as_if_they_had_not_come(one, other, poisoned, rows, reason, models):
    """`one` was given the poisoned rows, `other` was not: `models` are the same, and the rows have no logit."""
    judged, alone = one.step(poisoned), other.step(kept(poisoned, rows))
    for model in models:
        result, expected = judged.results[model], alone.results[model]
        assert result.finite
        assert np.flatnonzero(result.left_out).tolist() == sorted(rows)
        assert set(result.left_out[list(rows)].tolist()) == {reason}
        assert result.left_out_rows in (0, len(rows))
        assert result.finite_rows == len(poisoned) - len(rows)
        assert np.isnan(result.logits[list(rows)]).all()
        np.testing.assert_array_equal(np.delete(result.logits, list(rows), axis=0), expected.logits)
        assert result.loss == expected.loss
    return judged


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(("name", "value"), [("dense", 2.0**24 + 2), ("dense", float("nan")), ("weights", 3e38)])
def test_an_input_that_no_step_bears_is_left_out_of_every_model(arm, name, value):
    one, other, rows = engine(arm), engine(arm), (7, 8, 200)
    poisoned = with_values(stream(1_024)[3], name, dict.fromkeys(rows, value))
    judged = assert_as_if_they_had_not_come(one, other, poisoned, rows, INPUT, one.names)
    assert judged.finite_rows == 253
    assert same(one.state(), other.state())


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("name", ["dense", "weights"])
def test_rows_whose_logits_or_losses_overflow_are_found(no_ceiling, arm, name):
    one, other, rows = engine(arm), engine(arm), (0, 99, 255)
    poisoned = with_values(stream(1_024)[3], name, dict.fromkeys(rows, 3e38))
    reason = LOGIT if name == "dense" else LOSS
    judged = one.step(poisoned)
    alone = other.step(kept(poisoned, rows))
    for model in (STUDENT, TWIN):
        found = judged.results[model].left_out
        assert np.flatnonzero(found).tolist() == [0, 99, 255]
        assert judged.results[model].finite
        assert judged.results[model].loss == alone.results[model].loss
        if name == "dense":
            assert set(found[list(rows)].tolist()) == {reason}
    for model in (STUDENT, TWIN):
        state, expected = ({k: v for k, v in e.state().items() if k.startswith(model)} for e in (one, other))
        assert same(state, expected)


def test_a_teacher_logit_that_only_the_adapter_does_not_bear_is_left_out_of_the_student_alone():
    one, other = engine(), engine()
    batch = stream(1_024)[3]
    row = int(batch.labels[:, 0].argmin())
    poisoned = with_values(batch, "teacher_logits", {row: 1e25})
    judged = one.step(poisoned)
    assert np.flatnonzero(judged.results[STUDENT].left_out).tolist() == [row]
    assert judged.results[STUDENT].left_out[row] == GRADIENT
    assert judged.results[TWIN].left_out is None
    assert judged.results[TWIN].finite
    other.step(kept(poisoned, [row]))
    state, expected = ({k: v for k, v in e.state().items() if k.startswith("student/")} for e in (one, other))
    assert same(state, expected)
    assert {name: count - one.trained_rows[STUDENT] for name, count in one.trained_rows.items()} == {
        name: name not in (STUDENT, "ftrl") for name in one.names
    }


def test_a_row_of_another_vertical_that_spoils_the_step_is_left_out_of_models_that_learn_from_it():
    options = {"learned_rows": LearnedRows("own", "all")}
    one, other = engine(**options), engine(**options)
    own = torch.arange(256) % 2 == 0
    poisoned = with_values(replace(stream(1_024)[3], own=own), "dense", {3: float("inf"), 4: float("inf")})
    judged, alone = one.step(poisoned), other.step(kept(poisoned, (3, 4)))
    assert judged.results[STUDENT].left_out.nonzero()[0].tolist() == [3, 4]
    assert judged.logits.shape == (128, 2)
    assert np.isnan(judged.logits[2]).all()
    np.testing.assert_array_equal(np.delete(judged.logits, 2, axis=0), alone.logits)
    assert judged.finite_rows == 127
    assert same(one.state(), other.state())


def test_a_batch_of_such_rows_alone_is_left_out_whole():
    one = engine()
    before, batch = one.state(), stream(1_024)[3]
    judged = one.step(replace(batch, dense=batch.dense * float("inf")))
    assert not any(result.finite for result in judged.results.values())
    assert judged.finite_rows == 0
    assert all(result.logits.shape == (256, 2) for result in judged.results.values())
    assert set(judged.results) == set(one.names)
    assert same(one.state(), before)
    assert one.step(batch).results[STUDENT].finite


def test_a_batch_that_would_take_too_long_is_left_out_whole(monkeypatch):
    one = engine()
    before, batch = one.state(), stream(1_024)[3]
    poisoned = with_values(batch, "teacher_logits", dict.fromkeys(range(0, 256, 2), 1e25))
    judged = one.step(poisoned)
    assert not judged.results[STUDENT].finite
    assert judged.results[TWIN].finite
    assert same(*({k: v for k, v in state.items() if k.startswith("student/")} for state in (before, one.state())))
    monkeypatch.setattr(bad_rows, "MOST_TRIES", 10**6)
    judged = one.step(poisoned)
    assert judged.results[STUDENT].finite
    labelled = batch.labels[::2, 0] == 0
    assert judged.results[STUDENT].left_out[::2].astype(bool)[labelled.numpy()].all()


class Together:
    """A model that bears at most three of the rows that weigh 2."""

    def __init__(self):
        self.learned, self.tried = [], 0

    def train_step(self, batch):
        result = self.try_step(batch)
        if result.finite:
            self.learned.append(len(batch))
        return result

    def try_step(self, batch):
        self.tried += 1
        finite = int((batch.weights == 2).sum()) <= 3
        return bad_rows.StepResult(self.score(batch), 1.0, np.zeros(2), finite)

    def score(self, batch):
        return np.zeros((len(batch), 2), np.float32)


def test_rows_that_spoil_a_step_together_only_leave_it_out_whole():
    model, batch = Together(), with_values(stream(256)[0], "weights", dict.fromkeys((3, 70, 140, 210), 2.0))
    failed = model.train_step(batch)
    assert bad_rows.learn_good_rows(model, batch, failed) is failed
    assert model.learned == []
    assert model.tried < 20


def teacher_engine(group, **changes):
    one = TeacherEngine(Teacher(teachers.CFG, teachers.FEATURES, teachers.TASKS, 3, group=group))
    for seed in range(3):
        one.step(teachers.batch(seed))
    return one


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("ceiling", [2.0**24, float("inf")])
def test_a_teacher_learns_the_rest_of_a_batch(group, monkeypatch, ahead, ceiling):
    monkeypatch.setattr(bad_rows, "LARGEST_INPUT", ceiling)
    one, other = teacher_engine(group), teacher_engine(group)
    poisoned = with_values(teachers.batch(7), "dense", {3: 3e38, 60: float("-inf")})
    alone, after = kept(poisoned, (3, 60)), teachers.batch(8)
    if ahead:  # the next batch's ids are on their way when the step fails
        sent = one.prepare(poisoned)
        following = one.prepare(after)
        judged = one.step(sent)
        one.step(following)
    else:
        judged = one.step(poisoned)
        one.step(after)
    expected = other.step(alone)
    other.step(after)
    (result,) = judged.results.values()
    assert result.left_out_rows == 2
    assert np.flatnonzero(result.left_out).tolist() == [3, 60]
    assert set(result.left_out.tolist()) == {LEARNED, INPUT if ceiling == 2.0**24 else LOGIT}
    np.testing.assert_array_equal(np.delete(judged.logits, [3, 60], axis=0), expected.logits)
    assert same(one.state(), other.state())


def test_a_teacher_finds_a_row_of_which_only_the_loss_is_not_finite(group, monkeypatch):
    monkeypatch.setattr(bad_rows, "LARGEST_INPUT", float("inf"))
    one, other = teacher_engine(group), teacher_engine(group)
    poisoned = with_values(teachers.batch(7), "weights", {11: float("inf")})
    judged = one.step(poisoned)
    (result,) = judged.results.values()
    assert result.left_out.tolist() == [0] * 11 + [LOSS] + [0] * 52
    other.step(kept(poisoned, [11]))
    assert same(one.state(), other.state())


def test_a_teacher_whose_batch_holds_nothing_else_stays_as_it_was(group):
    one = teacher_engine(group)
    before, batch = one.state(), teachers.batch(7)
    judged = one.step(replace(batch, dense=batch.dense * float("nan")))
    assert judged.finite_rows == 0
    assert same(one.state(), before)

"""The prior: the log-odds of the label rate so far is part of every logit that a model makes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from exfm.baselines.prior import label_sums, label_sums_anywhere
from exfm.errors import ModelError
from exfm.features.learned_rows import LearnedRows
from exfm.models.growth.refit import MadeWith, fitted_student, fitted_teacher
from exfm.models.scorer import TeacherScorer, snapshot_of
from exfm.models.served import check_parity, load_served, save_served
from exfm.models.student import Student, StudentNet
from exfm.models.teacher import Teacher
from exfm.parallel.group import RankGroup
from tests.support.models import teachers
from tests.support.models.students import ARMS, FEATURES, SMALL, TASKS, stream, student


@pytest.fixture
def group():
    with RankGroup() as group:
        yield group


def teacher_of(group, **changes):
    return Teacher(teachers.CFG.model_copy(update=changes), teachers.FEATURES, teachers.TASKS, 0, group=group)


def sums_of(state):
    return torch.stack([state["prior/positive"], state["prior/negative"]])


def counted(batches):
    """n₁ and n₀ of these rows, per task."""
    y = np.concatenate([batch.labels.numpy() for batch in batches])
    known = np.concatenate([batch.label_mask.numpy() for batch in batches])
    return [(known & (y == 1)).sum(0).tolist(), (known & (y == 0)).sum(0).tolist()]


def test_it_counts_the_labels_of_finite_steps_alone(group):
    batches = stream(1_000)
    one = student()
    teacher, lessons = teacher_of(group), [teachers.batch(seed) for seed in range(3)]
    for batch in batches:
        one.train_step(batch)
        one.train_step(replace(batch, dense=batch.dense * float("nan")))
    for targets in lessons:
        teacher.train_step(targets)
        teacher.train_step(replace(targets, dense=targets.dense * float("inf")))
    assert sums_of(one.state()).tolist() == counted(batches)
    assert sums_of(teacher.state()).tolist() == counted(lessons)


def test_a_step_is_judged_with_the_rate_of_the_rows_before_it(group):
    """An untrained teacher says nothing but the prior: heads that never learn leave it alone."""
    frozen = teacher_of(group, dense_lr=1e-30, wide=False)
    assert not frozen.train_step(teachers.batch(0)).logits.any()
    positive, negative = np.array(counted([teachers.batch(0)]))
    logits = frozen.train_step(teachers.batch(1)).logits
    assert np.allclose(logits, np.log((positive + 0.5) / (negative + 0.5)), atol=1e-6)


@pytest.mark.parametrize("arm", ARMS)
def test_every_head_of_a_student_starts_from_it(arm, monkeypatch):
    """Labels that are 1 once in 500: before the first step of a head all say so, give or take its first draw."""
    one = student(arm)
    one.prior.add(torch.tensor([[20.0, 20.0], [9_980.0, 9_980.0]], dtype=torch.float64))
    batch = stream(256)[0]
    plain = student(arm)
    assert np.allclose(one.score(batch) - plain.score(batch), np.log(20.5 / 9_980.5), atol=1e-5)
    seen, live = [], StudentNet.training_logits
    monkeypatch.setattr(StudentNet, "training_logits", lambda self, *of: seen.append(live(self, *of)) or seen[-1])
    loss, from_zero = one.train_step(batch).loss, plain.train_step(batch).loss
    assert loss > from_zero  # this world's labels are 1 more often than that: every head pays for it
    mine, theirs = seen
    assert len(mine) == {"auxiliary_head": 1, "adapter": 2}.get(arm, 0)
    for name, z in mine.items():
        assert np.allclose((z - theirs[name]).detach(), np.log(20.5 / 9_980.5), atol=1e-5)


def test_the_rate_is_that_of_the_whole_stream_where_negatives_are_downsampled():
    one = student()
    for batch in stream(2_560):
        one.train_step(replace(batch, negative_rate=torch.tensor([0.25, 1.0]), weights=batch.weights * 2))
    positive, negative = np.array(counted(stream(2_560)))
    assert sums_of(one.state()).tolist() == [(2 * positive).tolist(), [8 * negative[0], 2 * negative[1]]]


def test_it_is_the_rate_of_a_students_own_rows_whatever_else_it_learns_from():
    one = student()
    batch = stream(256)[0]
    own = torch.arange(256) < 100
    one.train_step(replace(batch, own=own))
    assert sums_of(one.state()).tolist() == counted([batch.only(own)])
    everything = Student(one.cfg, FEATURES, TASKS, 5, LearnedRows("all", "all"))
    everything.train_step(replace(batch, own=own))
    assert sums_of(everything.state()).tolist() == counted([batch.only(own)])


def test_weights_of_any_size_are_summed_to_the_same_bits_wherever_batches_are_cut():
    rng = np.random.default_rng(0)
    (whole,) = stream(512, batch_rows=512)
    whole = replace(whole, weights=torch.from_numpy(rng.lognormal(0, 2, 512).astype(np.float32)))
    cut = [replace(b, weights=whole.weights[at * 64 :][:64]) for at, b in enumerate(stream(512, batch_rows=64))]
    one, other = student(), student()
    one.train_step(whole)
    for batch in reversed(cut):
        other.train_step(batch)
    assert torch.equal(sums_of(one.state()), sums_of(other.state()))


def test_the_scorer_and_the_export_say_what_the_model_says(group, tmp_path):
    teacher, one = teacher_of(group), student()
    for seed in range(5):
        teacher.train_step(teachers.batch(seed))
    for batch in stream(2_000):
        one.train_step(batch)
    scorer = TeacherScorer(teachers.CFG, teachers.FEATURES, teachers.TASKS)
    scorer.load(teacher.snapshot())
    np.testing.assert_allclose(scorer.score(teachers.batch(9)), teacher.score(teachers.batch(9)), rtol=0, atol=1e-6)
    scorer.load(snapshot_of(teacher.state()))
    np.testing.assert_allclose(scorer.score(teachers.batch(9)), teacher.score(teachers.batch(9)), rtol=0, atol=1e-6)
    served = load_served(save_served(one.export(), tmp_path, "export"))
    assert torch.equal(served.prior.positive, one.state()["prior/positive"])
    assert check_parity(one, served, stream(500, seed=3)[0]) <= 1e-6


def test_states_whose_tables_grow_keep_their_prior(group):
    wider = FEATURES.model_copy(
        update={"sparse": (FEATURES.sparse[0].model_copy(update={"rows": 300}), *FEATURES.sparse[1:])}
    )
    one, larger = student(), Student(SMALL.model_copy(update={"arm": ARMS["adapter"]}), wider, TASKS, 5)
    for batch in stream(1_000):
        one.train_step(batch)
    was, now = (MadeWith.of(one.cfg, features, TASKS, 5) for features in (FEATURES, wider))
    larger.load_state(fitted_student(one.state(), was, now))
    assert torch.equal(sums_of(larger.state()), sums_of(one.state()))

    cfg, features = teachers.CFG, teachers.FEATURES
    more = features.model_copy(
        update={"sparse": (features.sparse[0].model_copy(update={"rows": 100}), *features.sparse[1:])}
    )
    teacher, grown = teacher_of(group), Teacher(cfg, more, teachers.TASKS, 0, group=group)
    teacher.train_step(teachers.batch(0))
    was, now = (MadeWith.of(cfg, each, teachers.TASKS, 0) for each in (features, more))
    grown.load_state(fitted_teacher(teacher.state(), was, now))
    assert torch.equal(sums_of(grown.state()), sums_of(teacher.state()))


def test_a_state_with_a_prior_of_other_tasks_is_refused():
    one = student()
    state = one.state()
    with pytest.raises(ModelError, match="do not fit"):
        one.load_state(state | {"prior/positive": torch.zeros(3, dtype=torch.float64)})


@pytest.mark.parametrize("rates", [None, [0.3, 0.7]])
@pytest.mark.parametrize("own", [False, True])
def test_one_pass_over_the_labels_counts_what_operators_count(rates, own):
    batch = stream(700)[0]
    weights = torch.rand(len(batch), generator=torch.Generator().manual_seed(0))
    batch = replace(
        batch,
        weights=weights,
        negative_rate=None if rates is None else torch.tensor(rates[: len(TASKS)]),
        own=weights > 0.4 if own else None,
    )
    assert torch.equal(label_sums(batch), label_sums_anywhere(batch))

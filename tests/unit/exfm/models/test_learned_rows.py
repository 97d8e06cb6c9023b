"""A student that learns from rows of other verticals, from their teacher logits alone or from their labels as well."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from exfm.distillation.arm import Arm
from exfm.features.features import FeatureSet, HistoryFeature
from exfm.features.learned_rows import LearnedRows
from exfm.models.engine import STUDENT, TWIN, StudentEngine
from exfm.models.student import Student
from tests.support.models.states import same
from tests.support.models.students import ARMS, FEATURES, SMALL, TASKS, served, stream

ALL_LOGITS = LearnedRows(distillation="all")
ALL_ROWS = LearnedRows(labels="all", distillation="all")
RECOMMENDED = Arm.model_validate({"preset": "recommended", "single_head_rows": 150})
EVERY_ARM = {**ARMS, "recommended": RECOMMENDED, "extra_steps": Arm(adapter=True, extra_steps=2)}
EVERY_ARM["residuals"] = Arm(recalibration="residuals", residuals_by={"user": 10, "ad": 40})


def mixed(rows=1_500, **options):
    """Batches of which about a third of the rows are the student's own."""
    rng = np.random.default_rng(1)
    return [replace(b, own=torch.from_numpy(rng.random(len(b)) < 0.35)) for b in stream(rows, **options)]


def student(arm="auxiliary_head", learned_rows=ALL_LOGITS, **changes):
    return Student(SMALL.model_copy(update={"arm": EVERY_ARM[arm], **changes}), FEATURES, TASKS, 5, learned_rows)


def learned(one, batches):
    return [one.train_step(batch).logits for batch in batches]


@pytest.mark.parametrize("arm", ["recommended", "extra_steps", "residuals"])
def test_the_twin_learns_bit_for_bit_what_that_of_a_student_of_its_own_rows_does(arm):
    engine = StudentEngine(
        SMALL.model_copy(update={"arm": EVERY_ARM[arm]}), FEATURES, TASKS, 5, twin=True, learned_rows=ALL_LOGITS
    )
    alone = StudentEngine(SMALL.model_copy(update={"arm": EVERY_ARM[arm]}), FEATURES, TASKS, 5, twin=True)
    for batch in mixed():
        judged, plain = engine.step(batch), alone.step(batch.own_rows)
        assert np.array_equal(judged.results[TWIN].logits, plain.results[TWIN].logits)
        assert judged.results[STUDENT].logits.shape == plain.results[STUDENT].logits.shape
    assert same(engine.twin.state(), alone.twin.state())
    assert not same(served(engine.student.state()), served(alone.student.state()))


@pytest.mark.parametrize("arm", EVERY_ARM)
def test_labels_of_other_verticals_never_reach_a_student_that_learns_its_own_alone(arm):
    """Neither its weights nor what corrects its teacher nor its histories: all is the same to the last bit."""
    ends = []
    for flipped in (False, True):
        one = student(arm)
        for batch in mixed(bias=0.5):
            others = ~batch.own.unsqueeze(1) & batch.label_mask & flipped
            one.train_step(replace(batch, labels=torch.where(others, 1 - batch.labels, batch.labels)))
        ends.append(one.state())
    assert same(*ends)


@pytest.mark.parametrize(("learned_rows", "moved"), [(ALL_LOGITS, True), (LearnedRows(labels="all"), False)])
def test_logits_of_other_verticals_count_where_distillation_is_on_all_rows(learned_rows, moved):
    ends = []
    for bias in (0.0, 1.0):
        one = student(learned_rows=learned_rows)
        for batch in mixed():
            logits = torch.where(batch.own.unsqueeze(1), batch.teacher_logits, batch.teacher_logits + bias)
            one.train_step(replace(batch, teacher_logits=logits))
        ends.append(one.state())
    assert same(*ends) == (not moved)


def test_with_labels_and_logits_of_all_rows_it_learns_what_a_student_of_all_verticals_does():
    """But for the prior and the stack, which are that of its own rows alone."""
    one, every = student(learned_rows=ALL_ROWS, prior=False, wide=False), student(prior=False, wide=False)
    for batch in mixed():
        judged = one.train_step(batch).logits
        assert np.array_equal(judged, every.train_step(replace(batch, own=None)).logits[batch.own.numpy()])
    assert same(one.state(), every.state())


def test_own_rows_alone_are_what_is_learned_by_default_whatever_else_a_batch_holds():
    one, plain = student(learned_rows=LearnedRows()), student(learned_rows=LearnedRows())
    batches = mixed()
    assert all(map(np.array_equal, learned(one, batches), learned(plain, [b.own_rows for b in batches])))
    assert same(one.state(), plain.state())


def test_rows_seen_and_labels_learned_are_those_of_label_rows_and_distilled_rows_are_all():
    one, batches = student("recommended"), mixed()
    learned(one, batches)
    own = sum(int(b.own.sum()) for b in batches)
    assert one.rows == one.progress["labelled"][0] == own
    assert one.progress["distilled"][0] == sum(len(b) for b in batches) > own


@pytest.mark.parametrize("arm", ["recommended", "extra_steps", "residuals"])
def test_a_state_taken_between_two_batches_goes_on_with_the_same_bits(arm):
    batches = mixed()
    whole, first, second = student(arm), student(arm), student(arm)
    learned(whole, batches)
    learned(first, batches[:3])
    second.load_state(first.state())
    learned(second, batches[3:])
    assert same(whole.state(), second.state())


def test_a_batch_without_an_own_row_teaches_the_student_and_leaves_its_twin_as_it_is():
    cfg = SMALL.model_copy(update={"arm": EVERY_ARM["auxiliary_head"]})
    engine = StudentEngine(cfg, FEATURES, TASKS, 5, twin=True, learned_rows=ALL_LOGITS)
    before = engine.state()
    (batch,) = stream(100)
    judged = engine.step(replace(batch, own=torch.zeros(100, dtype=torch.bool)))
    assert [len(judged.results[name].logits) for name in (STUDENT, TWIN)] == [0, 0]
    after = engine.state()
    assert all(torch.equal(before[k], after[k]) for k in before if k.startswith(TWIN))
    assert not torch.equal(before["student/table/ad/weight"], after["student/table/ad/weight"])


def test_an_extra_step_learns_from_the_teacher_and_repeats_no_label():
    """After one batch the serving head is that of a student without the extra step; what the teacher reaches is not."""
    (batch,) = stream(256)
    once, twice = student("adapter"), student("extra_steps")
    results = [one.train_step(batch) for one in (once, twice)]
    a, b = once.state(), twice.state()
    assert np.array_equal(results[0].logits, results[1].logits)
    assert results[0].loss == results[1].loss
    assert torch.equal(a["dense/serving.weight"], b["dense/serving.weight"])
    assert all(torch.equal(a[k], b[k]) for k in a if k.startswith(("progress/", "adapter/", "rng")))
    for moved in ("dense/auxiliary.weight", "dense/trunk.top.0.weight", "table/ad/weight"):
        assert not torch.equal(a[moved], b[moved])


def test_an_extra_step_of_a_teacher_that_weighs_nothing_is_none():
    arms = [Arm(weight=0, extra_steps=steps) for steps in (0, 3)]
    once, thrice = (Student(SMALL.model_copy(update={"arm": arm}), FEATURES, TASKS, 5) for arm in arms)
    batches = stream(1_000)
    learned(once, batches), learned(thrice, batches)
    assert same(once.state(), thrice.state())


# --- histories over the rows of all verticals ------------------------------------------------------------------------

OF_ALL = HistoryFeature(name="user_ctr", by="user", of="label_ctr", rows="all")


def remembering(history, learned_rows=LearnedRows(), arm="none"):
    features = FeatureSet(sparse=FEATURES.sparse, dense=FEATURES.dense, history=[history])
    return Student(SMALL.model_copy(update={"arm": EVERY_ARM[arm]}), features, TASKS, 5, learned_rows)


def history_of(one):
    return {name: tensor for name, tensor in one.state().items() if name.startswith("history/")}


@pytest.mark.parametrize("learned_rows", [LearnedRows(), ALL_LOGITS, ALL_ROWS])
def test_a_history_of_all_rows_counts_labels_of_every_vertical_for_students_and_their_twins_alike(learned_rows):
    batches = mixed()
    found, twin = (remembering(OF_ALL, learned_rows, arm) for arm in ("auxiliary_head", "none"))
    every, own = remembering(OF_ALL), remembering(OF_ALL.model_copy(update={"rows": "own"}))
    for batch in batches:
        found.train_step(batch), twin.train_step(batch), own.train_step(batch)
        every.train_step(replace(batch, own=None))
    assert same(history_of(found), history_of(every))
    assert same(history_of(twin), history_of(every))
    labelled = [int((b.own & b.label_mask[:, 0]).sum()) for b in batches]
    assert history_of(own)["history/user_ctr/total"][0] == sum(labelled)


def test_what_is_remembered_of_other_verticals_is_an_input_and_nothing_else_of_them_is_learned():
    """With the same memory, rows of others in the batches change nothing: the own rows alone are learned."""
    one, alone = remembering(OF_ALL), remembering(OF_ALL)
    for batch in mixed():
        judged = one.train_step(batch).logits
        assert np.array_equal(judged, alone.train_step(batch.own_rows).logits)
        alone.load_state(alone.state() | history_of(one))
    assert same(one.state(), alone.state())

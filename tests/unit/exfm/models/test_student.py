"""A student learns from labels and a teacher, and serves as if it had never had one."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from exfm.distillation.adapter import initial_adapter, updated
from exfm.distillation.arm import Arm
from exfm.errors import ConfigError, ModelError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.student import Student
from exfm.models.student_config import LearningRate, StudentConfig
from tests.support.models.states import same
from tests.support.models.students import (
    ARMS,
    FEATURES,
    FORGETFUL,
    SMALL,
    TASKS,
    build,
    served,
    stream,
    student,
)


@pytest.mark.parametrize("arm", ARMS)
def test_a_twin_starts_from_the_same_bits_and_the_global_generator_is_left_alone(arm):
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = student(arm)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    twin = Student(one.cfg.without_teacher(), FEATURES, TASKS, seed=5)
    assert same(served(one.state()), served(twin.state()))
    other_seed = student(arm, seed=6).state()
    assert not torch.equal(other_seed["dense/serving.weight"], one.state()["dense/serving.weight"])
    assert not torch.equal(other_seed["table/ad/weight"], one.state()["table/ad/weight"])


def test_a_task_starts_the_same_whatever_tasks_are_beside_it():
    heads = student().state()["dense/serving.weight"]
    assert not torch.equal(heads[0], heads[1])
    alone = Student(SMALL, FEATURES, ["cvr"], seed=5).state()
    assert torch.equal(alone["dense/serving.weight"][0], student().state()["dense/serving.weight"][1])


@pytest.mark.parametrize("arm", [Arm(weight=0), Arm(gradient_scale=0, adapter=True), Arm(kind="single_head", weight=0)])
def test_distillation_switched_off_leaves_exactly_the_twin(arm):
    one = student(arm_of=arm)
    twin = student("none")
    for batch in stream(2_000):
        assert np.array_equal(one.train_step(batch).logits, twin.train_step(batch).logits)
    assert same(served(one.state()), served(twin.state()))


@pytest.mark.parametrize("arm", ARMS)
def test_what_a_teacher_says_moves_a_student_and_never_its_twin(arm):
    cfg = student(arm).cfg
    ends = {}
    for bias in (0.0, 2.0):
        one, twin = (Student(c, FEATURES, TASKS, seed=5) for c in (cfg, cfg.without_teacher()))
        for batch in stream(1_000, bias=bias):
            one.train_step(batch), twin.train_step(batch)
        ends[bias] = served(one.state()), served(twin.state())
    assert same(ends[0.0][1], ends[2.0][1])
    assert same(ends[0.0][0], ends[2.0][0]) == (arm == "none")


@pytest.mark.parametrize("arm", ["auxiliary_head", "adapter"])
def test_serving_heads_get_their_gradient_from_labels_alone(arm):
    """After one step from the same start, the serving heads are the twin's; the trunk is not."""
    one, twin = student(arm), student("none")
    batch = stream(256)[0]
    one.train_step(batch), twin.train_step(batch)
    a, b = one.state(), twin.state()
    assert torch.equal(a["dense/serving.weight"], b["dense/serving.weight"])
    assert torch.equal(a["dense/serving.bias"], b["dense/serving.bias"])
    assert not torch.equal(a["dense/trunk.top.0.weight"], b["dense/trunk.top.0.weight"])
    assert not torch.equal(a["table/ad/weight"], b["table/ad/weight"])


def test_a_biased_teacher_miscalibrates_a_single_head_and_not_an_auxiliary_one():
    """Every teacher logit is one too high (ExFM, arXiv 2502.17494): the serving head predicts what its twin's does. The
    stack, which learns from labels alone, sets a single head right, too."""
    batches = stream(70_000, bias=1.0)
    half = len(batches) // 2
    assert sum(batch.labels[:, 0].sum().item() for batch in batches[half:]) > 10_000

    def predicted(arm, wide=False):
        one = student(arm_of=arm, wide=wide)
        logits = [torch.from_numpy(one.train_step(batch).logits[:, 0]) for batch in batches]
        return torch.cat(logits[half:]).sigmoid().sum().item()

    twin = predicted(Arm(kind="none"))
    assert predicted(Arm(kind="auxiliary_head")) / twin == pytest.approx(1, abs=0.02)
    assert predicted(Arm(kind="auxiliary_head", adapter=True)) / twin == pytest.approx(1, abs=0.02)
    assert predicted(Arm(kind="single_head", weight=0.5)) / twin > 1.15
    assert predicted(Arm(kind="single_head", weight=0.5), wide=True) / twin == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("head_start", ["serving", "random"])
def test_the_heads_of_teacher_and_adapter_start_as_configured(head_start):
    state = student(arm_of=Arm(adapter=True, head_start=head_start)).state()
    for name in ("auxiliary", "adapted"):
        same_start = torch.equal(state[f"dense/{name}.weight"], state["dense/serving.weight"])
        assert same_start == (head_start == "serving")


def test_the_adapter_learns_on_the_labelled_rows_that_have_a_teacher():
    one, expected = student("adapter"), initial_adapter(TASKS, 8, seed=5)
    for batch in stream(1_000):
        one.train_step(batch)
        known = batch.label_mask & batch.teacher_mask
        expected = updated(expected, 4e-3, batch.teacher_logits, batch.labels, known, batch.weights)
    for key, value in expected._asdict().items():
        assert torch.equal(one.state()[f"adapter/{key}"], value)


def test_logits_are_those_of_before_the_update():
    one = student()
    for batch in stream(1_000):
        before = one.score(batch)
        assert np.allclose(one.train_step(batch).logits, before, atol=1e-6)
        assert not np.allclose(one.score(batch), before, atol=1e-6)


def test_it_learns():
    one = student()
    losses = [one.train_step(batch).loss for batch in stream(20_000)]
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:10])


def test_rows_are_counted_by_task_and_those_without_a_teacher_are_too():
    one = student()
    batches = stream(600)
    results = [one.train_step(batch) for batch in batches]
    labelled = sum(batch.label_mask.sum(0) for batch in batches)
    missing = sum((batch.label_mask & ~batch.teacher_mask).sum(0) for batch in batches)
    assert [r.rows_per_task.tolist() for r in results] == [b.label_mask.sum(0).tolist() for b in batches]
    assert one.progress == {
        "rows": 600,
        "labelled": labelled.tolist(),
        "distilled": (labelled - missing).tolist(),
        "without_teacher": missing.tolist(),
    }
    assert missing[1] > 0


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("cut", [0, 1, 5])
def test_a_student_that_was_saved_and_loaded_goes_on_bit_for_bit(arm, cut):
    rates = LearningRate(warmup_rows=600, decay_rows=1_000)
    whole, first, second = (student(arm, seed=seed, learning_rate=rates) for seed in (5, 5, 77))
    batches = stream(2_500)
    for batch in batches:
        whole.train_step(batch)
    for batch in batches[:cut]:
        first.train_step(batch)
    kept = first.state()
    frozen = {key: value.clone() for key, value in kept.items()}
    for batch in batches[cut : cut + 1]:
        first.train_step(batch)
    assert same(kept, frozen)  # what was saved does not move on with the student
    second.load_state(kept)
    for batch in batches[cut:]:
        second.train_step(batch)
    assert same(second.state(), whole.state())


def test_state_of_another_student_is_refused_and_nothing_is_loaded():
    one, other = student("adapter"), student("none")
    before = one.state()
    with pytest.raises(ModelError, match="do not fit"):
        one.load_state(other.state())
    assert same(one.state(), before)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("broken", ["dense", "teacher_logits", "weights"])
def test_a_batch_that_is_not_finite_changes_nothing(arm, broken):
    one = student(arm)
    batches = stream(1_024)
    for batch in batches[:3]:
        one.train_step(batch)
    values = getattr(batches[3], broken).clone()
    values[7] = float("nan")
    before = one.state()
    result = one.train_step(replace(batches[3], **{broken: values}))
    if arm == "none" and broken == "teacher_logits":
        assert result.finite
        return
    assert not result.finite
    assert same(one.state(), before)
    assert one.train_step(batches[3]).finite


@pytest.mark.parametrize("arm", ["none", "adapter"])
@pytest.mark.parametrize("size", [1e30, 1e12])  # the square of the gradient overflows, or would all but fill AdaGrad's
def test_a_gradient_that_overflows_behind_a_finite_loss_changes_nothing(arm, size):
    one = student(arm)
    batch = stream(256)[0]
    one.train_step(batch)
    huge = replace(batch, dense=batch.dense * size, weights=batch.weights * 1e8)
    before = one.state()
    with torch.no_grad():
        one.net.trunk.bottom[0].weight.mul_(1 / size)  # logits stay small; the gradient of this layer does not
    before = one.state()
    result = one.train_step(huge)
    assert np.isfinite(result.loss)
    assert np.isfinite(result.logits).all()
    assert not result.finite
    assert same(one.state(), before)


def test_an_adapter_that_overflows_changes_nothing_though_the_loss_is_finite():
    one = student("adapter")
    batch = stream(256)[0]
    wild = batch.teacher_logits.clone()
    wild[int(batch.labels[:, 0].argmin())] = 1e25  # certain of a click that did not happen
    before = one.state()
    result = one.train_step(replace(batch, teacher_logits=wild))
    assert np.isfinite(result.loss)
    assert not result.finite
    assert same(one.state(), before)


@pytest.mark.parametrize("arm", ARMS)
def test_a_batch_with_no_target_at_all_is_judged_and_changes_no_weight(arm):
    one = student(arm)
    first, second = stream(512)
    one.train_step(first)
    before = one.state()
    nothing = torch.zeros_like(second.label_mask)
    result = one.train_step(replace(second, label_mask=nothing, teacher_mask=nothing))
    assert result.finite
    assert result.loss == 0
    assert result.logits.shape == (256, 2)
    assert result.rows_per_task.tolist() == [0, 0]
    broken = replace(second, label_mask=nothing, teacher_mask=nothing, dense=second.dense * float("nan"))
    assert not one.train_step(broken).finite
    after = one.state()
    assert after.pop("progress/rows") == before.pop("progress/rows") + 256
    assert same(after, before)


def test_no_rows_are_no_step():
    one = student()
    empty = build(pa.table({"user": [0], "ad": [0], "topic": [0], "hour": [0.0], "age": [0.0]}).slice(0, 0))
    before = one.state()
    result = one.train_step(empty)
    assert result.logits.shape == (0, 2)
    assert result.finite
    assert same(one.state(), before)


def test_students_without_logits_yet_learn_from_labels_like_their_twins():
    one, twin = student("adapter"), student("none")
    for batch in stream(1_000):
        blind = replace(batch, teacher_mask=torch.zeros_like(batch.teacher_mask))
        one.train_step(blind), twin.train_step(batch)
    assert same(served(one.state()), served(twin.state()))


def test_learning_rates_follow_from_the_rows_seen():
    rate = LearningRate(warmup_rows=1_000, decay_rows=4_000)
    assert [rate.factor(n) for n in (250, 1_000, 4_000, 16_000)] == [0.25, 1.0, 1.0, 0.5]
    assert LearningRate().factor(10**9) == 1.0
    slow, fast = student("none", learning_rate=LearningRate(warmup_rows=10**9)), student("none")
    start = fast.state()
    for batch in stream(512):
        slow.train_step(batch), fast.train_step(batch)
    for key in ("dense/serving.weight", "table/ad/weight"):
        moved, crept = (fast.state()[key] - start[key]).abs().max(), (slow.state()[key] - start[key]).abs().max()
        assert crept < 1e-4 * moved


def test_a_small_batch_adds_to_the_tables_what_its_rows_add_in_a_full_one():
    """AdaGrad's sums are of the same size whatever the batches' size, and Adam's steps follow it."""
    batches = stream(512, batch_rows=32)
    full, small = (Student(SMALL, FEATURES, TASKS, 5, full_batch=rows) for rows in (None, 512))
    start = full.state()
    for batch in batches[:1]:
        full.train_step(batch), small.train_step(batch)
    ratio = small.state()["table/ad/accumulator"].sum() / full.state()["table/ad/accumulator"].sum()
    assert ratio == pytest.approx((32 / 512) ** 2)
    moved = [(s.state()["dense/serving.weight"] - start["dense/serving.weight"]).abs().max() for s in (full, small)]
    assert moved[1] / moved[0] == pytest.approx(32 / 512, rel=1e-3)


def test_a_student_with_dropout_goes_on_bit_for_bit_wherever_and_beside_whomever_it_is_restored():
    batches = stream(2_500)
    whole = student(trunk=FORGETFUL)
    logits = [whole.train_step(batch).logits for batch in batches]

    torch.manual_seed(7)
    first, neighbour = student(trunk=FORGETFUL), student(trunk=FORGETFUL, seed=6)
    found = []
    for batch in batches[:5]:
        found.append(first.train_step(batch).logits)
        neighbour.train_step(batch)
        torch.rand(3)  # somebody else of this process draws too
    kept = first.state()
    torch.manual_seed(8)
    second = student(trunk=FORGETFUL, seed=77)
    second.load_state(kept)
    for batch in batches[5:]:
        neighbour.train_step(batch)
        found.append(second.train_step(batch).logits)
    assert all(np.array_equal(a, b) for a, b in zip(logits, found, strict=True))
    assert same(second.state(), whole.state())


def test_every_step_of_a_student_draws_anew_and_leaves_the_global_generator_alone():
    one, batch = student(trunk=FORGETFUL), stream(256)[0]
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    state = one.state()
    one.train_step(batch)
    drawn = one.state()["rng"]
    one.load_state(state | {"rng": drawn})  # the same weights and batch, the next step's numbers
    again = one.train_step(batch).logits
    one.load_state(state)
    assert not np.array_equal(again, one.train_step(batch).logits)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    "trunk",
    [
        TrunkConfig(name="mlp", mlp=(8,)),
        TrunkConfig(name="tests.support.models.students:WideAndShort", options={"hidden": 6}),
    ],
)
def test_other_trunks_train_and_start_from_the_seed_alone(trunk):
    torch.manual_seed(1)
    one = student(trunk=trunk)
    torch.manual_seed(2)
    assert same(one.state(), student(trunk=trunk).state())
    losses = [one.train_step(batch).loss for batch in stream(10_000)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_a_feature_twice_as_wide_counts_as_two_embeddings():
    wide = with_topic_of(width=8)
    one = Student(SMALL, wide, TASKS, seed=1)
    assert one.train_step(BatchBuilder(wide, TASKS)(table_of(300))).finite
    assert one.net.trunk.top[0].in_features == 5 * 4 // 2 + 4


def with_topic_of(width):
    topic = SparseFeature(name="topic", rows=10, width=width)
    return FeatureSet(sparse=[*FEATURES.sparse[:2], topic], dense=FEATURES.dense)


def table_of(rows):
    zeros = np.zeros(rows, dtype=np.int64)
    return pa.table({"user": zeros, "ad": zeros, "topic": zeros, "hour": zeros * 1.0, "age": zeros * 1.0})


@pytest.mark.parametrize(
    ("trunk", "words"),
    [
        (TrunkConfig(name="no.such.module:Thing"), "no.such.module"),
        (TrunkConfig(name="torch.nn:Identity", options={"x": 1}), "out_width"),
        (TrunkConfig(name="tests.support.models.students:WideAndShort", options={"depth": 6}), "depth"),
        (TrunkConfig(name="mlp", mlp=()), "0 layers"),
    ],
)
def test_trunks_that_cannot_be_made_are_explained(trunk, words):
    with pytest.raises(ConfigError, match=words):
        student(trunk=trunk)


def test_a_width_that_does_not_divide_is_explained_with_both_numbers():
    with pytest.raises(ConfigError, match="6 wide, the model 4"):
        Student(SMALL, with_topic_of(width=6), TASKS, seed=1)
    with pytest.raises(ValidationError, match="multiple of 4"):
        StudentConfig(width=6)

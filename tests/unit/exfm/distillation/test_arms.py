"""What an arm can have beyond its heads: it is saved, served, masked and refused as any arm is."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from exfm.distillation.arm import Arm
from exfm.models.student_config import StudentConfig
from tests.support.models.arms import ARMS, aged, learn
from tests.support.models.states import same
from tests.support.models.students import served, stream, student


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("cut", [1, 3])
def test_a_student_goes_on_bit_for_bit_wherever_it_was_saved(arm, cut):
    whole, first, second = (student(arm_of=ARMS[arm], seed=seed) for seed in (5, 5, 77))
    batches = aged(stream(1_500))
    learn(whole, batches)
    learn(first, batches[:cut])
    kept = first.state()
    learn(first, batches[cut : cut + 1])
    second.load_state(kept)
    learn(second, batches[cut:])
    assert same(second.state(), whole.state())
    assert second.correction_figures() == whole.correction_figures()


@pytest.mark.parametrize("arm", ARMS)
def test_what_is_served_has_the_same_parameters_and_its_twin_nothing_of_the_arm(arm):
    one, twin = student(arm_of=ARMS[arm]), student("none")
    assert one.cfg.without_teacher().arm == Arm(kind="none")
    assert one.export().parameter_count == twin.export().parameter_count
    assert same(one.export().state_dict(), twin.export().state_dict())
    assert same(served(one.state()), served(twin.state()))
    learn(one, aged(stream(600)))
    assert one.export().state_dict().keys() == twin.export().state_dict().keys()
    assert not [key for key in twin.state() if key.startswith(("platt", "adapter", "advantage"))]
    assert twin.correction_figures() == {}


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("rows", ["labelled", "all"])
def test_rows_without_a_logit_are_masked_whatever_lies_there(arm, rows):
    """Half of the rows have none: what stands in their place is never looked at, and they are counted."""
    clean, spoilt = (student(arm_of=ARMS[arm].model_copy(update={"rows": rows})) for _ in range(2))
    for batch in aged(stream(1_200)):
        half = batch.teacher_mask & (torch.arange(len(batch)) % 2 == 0).unsqueeze(1)
        masked = [
            replace(batch, teacher_mask=half, teacher_logits=torch.where(half, batch.teacher_logits, instead))
            for instead in (0.0, float("nan"))
        ]
        results = [clean.train_step(masked[0]), spoilt.train_step(masked[1])]
        assert all(result.finite for result in results)
        assert results[0].loss == results[1].loss
    assert same(clean.state(), spoilt.state())
    assert min(clean.progress["without_teacher"]) > 0


@pytest.mark.parametrize("arm", ARMS)
def test_nothing_that_corrects_a_teacher_learns_from_a_row_of_which_it_said_nothing(arm):
    """One step from the same start: labels of rows without a logit may be what they like."""
    batch = aged(stream(256))[0]
    half = batch.teacher_mask & (torch.arange(256) % 2 == 0).unsqueeze(1)
    states = []
    for labels in (batch.labels, torch.where(half, batch.labels, 1 - batch.labels)):
        one = student(arm_of=ARMS[arm])
        one.train_step(replace(batch, teacher_mask=half, labels=labels))
        corrections = ("platt", "adapter/", "advantage")
        states.append({key: value for key, value in one.state().items() if key.startswith(corrections)})
    assert same(*states)
    assert states[0]


@pytest.mark.parametrize("arm", ["platt", "platt, single head", "context", "everything"])
def test_a_correction_that_overflows_changes_nothing_though_the_loss_is_finite(arm):
    one = student(arm_of=ARMS[arm])
    batch = aged(stream(256))[0]
    wild = batch.teacher_logits.clone()
    wild[int(batch.labels[:, 0].argmin())] = 1e25  # certain of a click that did not happen
    before = one.state()
    result = one.train_step(replace(batch, teacher_logits=wild))
    assert not result.finite
    assert same(one.state(), before)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("broken", ["dense", "teacher_logits", "weights"])
def test_a_batch_that_is_not_finite_changes_nothing(arm, broken):
    one = student(arm_of=ARMS[arm])
    batches = aged(stream(1_024))
    learn(one, batches[:3])
    values = getattr(batches[3], broken).clone()
    values[7] = float("nan")
    before = one.state()
    assert not one.train_step(replace(batches[3], **{broken: values})).finite
    assert same(one.state(), before)
    assert one.train_step(batches[3]).finite
    assert not same(one.state(), before)


@pytest.mark.parametrize("arm", ARMS)
def test_a_batch_with_no_target_at_all_changes_no_weight(arm):
    one = student(arm_of=ARMS[arm])
    first, second = aged(stream(512))
    one.train_step(first)
    before = one.state()
    nothing = torch.zeros_like(second.label_mask)
    assert one.train_step(replace(second, label_mask=nothing, teacher_mask=nothing)).finite
    after = one.state()
    assert after.pop("progress/rows") == before.pop("progress/rows") + 256
    after.pop("progress/without_teacher"), before.pop("progress/without_teacher")  # of `all` rows: these too
    assert same(after, before)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "none", "recalibration": "platt"}, "recalibration `platt` in arm `none`"),
        ({"kind": "none", "follows": "advantage"}, "follows `advantage` in arm `none`"),
        ({"kind": "single_head", "single_head_rows": 10}, "single_head_rows 10 .* use kind `auxiliary_head`"),
        ({"kind": "none", "single_head_rows": 10}, "single_head_rows 10"),
        ({"single_head_weight": 2}, "single_head_weight 2.0 .* set `single_head_rows`"),
        ({"adapter_input": "context"}, "adapter_input `context` .* set `adapter: true`"),
        ({"adapter": True, "adapter_input": "trunk"}, "adapter_input"),
        ({"recalibration": "isotonic"}, "platt"),
        ({"follows": "loss"}, "advantage"),
        ({"single_head_rows": -1}, "single_head_rows"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings, words):
    with pytest.raises(ValidationError, match=words):
        Arm(**settings)


def test_a_student_has_the_recommended_arm_unless_it_is_configured():
    assert StudentConfig().arm == Arm.model_validate("recommended")
    assert StudentConfig.model_validate({"arm": "recommended"}) == StudentConfig()


def test_a_preset_may_be_changed_and_is_stored_as_its_settings():
    arm = Arm.model_validate({"preset": "recommended", "weight": 16, "rows": "all"})
    assert arm == Arm.model_validate("recommended").model_copy(update={"weight": 16.0, "rows": "all"})
    assert "preset" not in arm.model_dump()
    assert Arm.model_validate(arm.model_dump(mode="json")) == arm
    with pytest.raises(ValidationError, match="unknown arm `best`; choose from recommended"):
        Arm.model_validate("best")
    with pytest.raises(ValidationError, match="in arm `none` has no teacher"):
        Arm.model_validate({"preset": "recommended", "kind": "none", "adapter": False})
    with pytest.raises(ValidationError, match=r"unknown arm `\{\}`; choose from recommended"):
        Arm.model_validate({"preset": {}})


def test_none_of_it_is_on_unless_it_is_asked_for():
    arm = Arm()
    assert (arm.recalibration, arm.adapter_input, arm.single_head_rows, arm.follows) == ("none", "logit", 0, "nothing")
    assert [key for key in student(arm_of=Arm()).state() if key.startswith(("platt", "adapter/", "advantage"))] == []

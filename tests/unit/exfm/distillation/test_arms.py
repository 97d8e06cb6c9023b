"""What an arm can have beyond its heads: Platt scaling, an adapter with context, a schedule, a weight that follows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from exfm.distillation import Arm
from exfm.distillation.adapter import adapted_logits, context_of
from exfm.distillation.advantage import measured, no_advantage_yet, share
from exfm.distillation.loss import cross_entropy
from exfm.models import StudentConfig
from tests.support.models.states import same
from tests.support.models.students import FORGETFUL, WideAndShort, served, stream, student

ARMS = {
    "platt, single head": Arm(kind="single_head", recalibration="platt"),
    "platt": Arm(recalibration="platt", weight=1.5, label_scale=1.2),
    "context": Arm(adapter=True, adapter_input="context"),
    "schedule": Arm(adapter=True, single_head_rows=700, single_head_weight=2.0),
    "follows": Arm(adapter=True, follows="advantage"),
    "follows, single head": Arm(kind="single_head", follows="advantage"),
    "everything": Arm(
        adapter=True,
        adapter_input="context",
        recalibration="platt",
        single_head_rows=700,
        single_head_weight=0.5,
        follows="advantage",
        rows="all",
        temperature=2.0,
        gradient_scale=3.0,
    ),
}


def aged(batches):
    """As if snapshots had scored them that were a few thousand rows old."""
    rng = np.random.default_rng(4)
    ages = [torch.from_numpy(rng.integers(0, 50_000, len(batch)).astype(np.float32)) for batch in batches]
    return [replace(batch, teacher_age=age) for batch, age in zip(batches, ages, strict=True)]


def learn(one, batches):
    return [one.train_step(batch) for batch in batches]


def calibration(one, batches, task=0):
    """Σ predicted / Σ clicked over the second half of the stream."""
    logits = np.concatenate([result.logits[:, task] for result in learn(one, batches)])
    labels = np.concatenate([batch.labels[:, task].numpy() for batch in batches])
    half = len(labels) // 2
    return (1 / (1 + np.exp(-logits[half:]))).sum() / labels[half:].sum()


# --- every arm ------------------------------------------------------------------------------------------------------


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


# --- Platt scaling ----------------------------------------------------------------------------------------------------


def test_platt_scaling_and_the_adapter_undo_a_teacher_that_is_one_too_high():
    """What such a teacher says, a single head serves (test_student.py); with Platt scaling it serves what is true."""
    batches = stream(40_000, bias=1.0)
    platt = student(arm_of=Arm(kind="single_head", recalibration="platt"))
    assert calibration(platt, batches) == pytest.approx(1, abs=0.03)
    told = platt.correction_figures()
    assert told["platt_scale_ctr"] == pytest.approx(1, abs=0.15)
    assert told["platt_shift_ctr"] == pytest.approx(-1, abs=0.15)

    adapter = student(arm_of=Arm(adapter=True, adapter_lr=0.01))
    learn(adapter, batches[:100])
    assert adapter.correction_figures()["adapter_shift_ctr"] == pytest.approx(-1, abs=0.25)


def test_platt_scaling_learns_first_and_is_run_again_before_the_student_learns():
    """The first batch already has the corrected target; without a label there is nothing to correct it by."""
    batch = stream(256, bias=3.0)[0]
    unlabelled = replace(batch, label_mask=torch.zeros_like(batch.label_mask))
    plain = Arm(rows="all")
    for given, same_as_without in ((unlabelled, True), (batch, False)):
        arms = plain, plain.model_copy(update={"recalibration": "platt"})
        losses = [student(arm_of=arm).train_step(given).loss for arm in arms]
        assert (losses[0] == losses[1]) == same_as_without


def test_platt_scaling_changes_nothing_of_what_a_teacher_is_seen_to_know():
    """Its a and b were learned from labels: with them, a teacher of noise would seem to know what the student does."""
    arm = Arm(follows="advantage", rows="all", gradient_scale=0.0)
    plain, scaled = (student(arm_of=arm.model_copy(update={"recalibration": how})) for how in ("none", "platt"))
    for batch in stream(4_096, bias=1.0):
        noise = torch.randn(batch.teacher_logits.shape, generator=torch.Generator().manual_seed(plain.rows))
        for one in (plain, scaled):
            one.train_step(replace(batch, teacher_logits=noise))
    known = [one.correction_figures()["teacher_weight_ctr"] for one in (plain, scaled)]
    assert known[0] == known[1] < 0.5
    advantage = [{k: v for k, v in one.state().items() if k.startswith("advantage/")} for one in (plain, scaled)]
    assert same(*advantage)


# --- context ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trunk", [None, FORGETFUL])
def test_an_adapter_with_context_starts_as_its_teacher(trunk):
    """Frozen (a rate of next to nothing), both kinds repeat the teacher: their students learn the same bits."""
    trunks = {} if trunk is None else {"trunk": trunk}
    plain, context = (
        student(arm_of=Arm(adapter=True, adapter_input=kind, adapter_lr=1e-30), **trunks)
        for kind in ("logit", "context")
    )
    for batch in aged(stream(1_000)):
        assert np.array_equal(plain.train_step(batch).logits, context.train_step(batch).logits)
    assert same(served(plain.state()), served(context.state()))


@pytest.mark.parametrize("by", ["age", "trunk"])
def test_only_with_context_an_adapter_learns_where_its_teacher_is_wrong(by):
    """The teacher is two too high where its snapshot is old, or where `hour` is late: of that a logit says nothing."""
    losses = {}
    for kind in ("logit", "context"):
        one = student(arm_of=Arm(adapter=True, adapter_input=kind, adapter_lr=3e-2))
        found = []
        for batch in aged(stream(15_000)):
            wrong = batch.teacher_age > 25_000 if by == "age" else batch.dense[:, 0] > 0.5
            if by == "age":
                batch = replace(batch, teacher_age=torch.where(wrong, 50_000.0, 0.0))
            said = torch.where(wrong.unsqueeze(1), batch.teacher_logits + 2.0, batch.teacher_logits)
            batch = replace(batch, teacher_logits=said)
            found.append(adapter_loss(one, batch))
            one.train_step(batch)
        losses[kind] = np.mean(found[-20:])
    assert losses["context"] < 0.985 * losses["logit"]


def adapter_loss(one, batch):
    """Of SA, before it learns from the batch."""
    with torch.no_grad():
        x = one.net.trunk(one.net.units(one.net.tables(batch.sparse).values(), batch.sparse), batch.dense)
        context = context_of(batch.teacher_age, x) if one.cfg.arm.adapter_input == "context" else None
        sa = adapted_logits(one.state()["adapter/weights"], batch.teacher_logits, context)
        return cross_entropy(sa, batch.labels)[:, 0].mean().item()


def test_no_gradient_reaches_the_trunk_through_the_context():
    """β = 0 and no weight on labels: whatever the adapter reads of the trunk, nothing in it moves."""
    one = student(arm_of=Arm(adapter=True, adapter_input="context", gradient_scale=0))
    before = one.state()
    for batch in aged(stream(600)):
        one.train_step(replace(batch, label_mask=torch.zeros_like(batch.label_mask)))
    unlabelled = student(arm_of=Arm(adapter=True, adapter_input="context", gradient_scale=0, rows="all"))
    for batch in aged(stream(600)):
        unlabelled.train_step(replace(batch, label_mask=torch.zeros_like(batch.label_mask)))
    for after in (one.state(), unlabelled.state()):
        assert torch.equal(after["dense/trunk.top.0.weight"], before["dense/trunk.top.0.weight"])
        assert torch.equal(after["table/ad/weight"], before["table/ad/weight"])
    assert not torch.equal(unlabelled.state()["dense/adapted.weight"], before["dense/adapted.weight"])


def test_any_trunk_can_be_context():
    assert issubclass(WideAndShort, torch.nn.Module)
    one = student(arm_of=ARMS["context"], trunk=FORGETFUL)
    assert all(result.finite for result in learn(one, aged(stream(600))))
    assert one.state()["adapter/weights"].shape == (2, 3 * 8 + 1 + 8 * (1 + FORGETFUL.options["hidden"]))


# --- schedule ---------------------------------------------------------------------------------------------------------


def test_before_the_change_it_is_a_single_head_and_its_other_heads_are_warm():
    scheduled = student(arm_of=Arm(single_head_rows=10_000, single_head_weight=0.7, label_scale=1.2))
    single, auxiliary = student(arm_of=Arm(kind="single_head", weight=0.7)), student(arm_of=Arm())
    cold = scheduled.state()["dense/auxiliary.weight"]
    for batch in stream(1_000):
        assert np.array_equal(scheduled.train_step(batch).logits, single.train_step(batch).logits)
        auxiliary.train_step(batch)
    assert same(served(scheduled.state()), served(single.state()))
    assert not same(served(scheduled.state()), served(auxiliary.state()))
    assert not torch.equal(scheduled.state()["dense/auxiliary.weight"], cold)


@pytest.mark.parametrize("change", [512, 600, 767, 768])
def test_the_schedule_changes_at_exactly_its_row(change):
    """The third step has rows 512 to 767. Of one row in it the teacher says something, and no label is known: the
    serving head moves where the row comes before the change, and stays where it does not."""
    batches = stream(768)
    for row in {change - 1, change, change + 1} & set(range(512, 768)):
        one = student(arm_of=Arm(single_head_rows=change, rows="all"))
        learn(one, batches[:2])
        second = student(arm_of=one.cfg.arm)
        second.load_state(one.state())
        before = one.state()
        nothing = torch.zeros_like(batches[2].label_mask)
        told = nothing.clone()
        told[row - 512] = True
        batch = replace(batches[2], label_mask=nothing, teacher_mask=told)
        for resumed in (one, second):
            optimizer_at_rest(resumed)
            resumed.train_step(batch)
            after = resumed.state()
            moved = {name: not torch.equal(after[name], before[name]) for name in before if name.startswith("dense/")}
            assert moved["dense/serving.weight"] == (row < change)
            assert moved["dense/auxiliary.weight"]
            assert moved["dense/trunk.top.0.weight"]


def optimizer_at_rest(one):
    """Adam without momentum: what has no gradient does not move."""
    state = one.state()
    one.load_state(state | {k: torch.zeros_like(v) for k, v in state.items() if k.startswith("adam/")})


def test_after_the_change_it_is_an_auxiliary_head_and_nothing_more():
    """From the same state on, a scheduled student and one that never had a schedule learn the same bits."""
    scheduled, plain = student(arm_of=Arm(single_head_rows=512)), student(arm_of=Arm())
    batches = stream(2_000)
    learn(scheduled, batches[:2])
    plain.load_state(scheduled.state())
    learn(scheduled, batches[2:]), learn(plain, batches[2:])
    assert same(scheduled.state(), plain.state())


# --- a weight that follows --------------------------------------------------------------------------------------------


def test_a_teacher_that_is_worse_loses_its_weight_and_one_that_is_better_keeps_it():
    weights = {}
    for wrong in (False, True):
        one = student(arm_of=Arm(adapter=True, follows="advantage"))
        rng = torch.Generator().manual_seed(3)
        for batch in stream(8_000):
            noise = 3 * torch.randn(batch.teacher_logits.shape, generator=rng)
            one.train_step(replace(batch, teacher_logits=noise) if wrong else batch)
        weights[wrong] = one.correction_figures()
    assert weights[False]["teacher_weight_ctr"] > 0.9
    assert weights[True]["teacher_weight_ctr"] < 0.1


def test_the_weight_of_a_batch_is_that_of_the_rows_before_it():
    """What a batch says of the teacher counts from the next one on: the first one teaches what labels teach."""
    one, twin = student(arm_of=Arm(adapter=True, follows="advantage")), student("none")
    first, second = stream(4_096, batch_rows=2_048)
    one.train_step(first), twin.train_step(first)
    assert same(served(one.state()), served(twin.state()))
    assert one.correction_figures()["teacher_weight_ctr"] > 0
    one.train_step(second), twin.train_step(second)
    assert not same(served(one.state()), served(twin.state()))


def test_the_weight_is_about_the_same_where_only_a_share_of_the_negatives_is_there():
    generator = torch.Generator().manual_seed(1)
    known, unknown, kept = torch.randn(3, 40_000, 1, generator=generator)
    y = torch.bernoulli(torch.sigmoid(known + 0.5 * unknown - 1), generator=generator)
    z_S, z_F = known - 1, known + 0.5 * unknown - 1
    there = (y == 1) | (kept > 0.67)  # of all, and of every fourth negative
    found = []
    for mask in (torch.ones_like(there), there):
        state = no_advantage_yet(1)
        for rows in torch.arange(len(y)).split(1_000):
            state = measured(state, z_S[rows], z_F[rows], y[rows], mask[rows], torch.ones(1_000))
        found.append(share(state).item())
    assert found[0] == pytest.approx(found[1], abs=0.1)
    assert min(found) > 0.4


def test_a_weight_of_zero_leaves_exactly_the_twin():
    one, twin = student(arm_of=Arm(adapter=True, follows="advantage")), student("none")
    batches = stream(1_500)
    state = one.state()
    state["advantage/information"] *= 1e9  # so sure that a teacher knows nothing that no batch changes that
    one.load_state(state)
    for batch in batches:
        assert np.array_equal(one.train_step(batch).logits, twin.train_step(batch).logits)


# --- settings ---------------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValidationError, match="there is no arm `best`; there are: recommended"):
        Arm.model_validate("best")
    with pytest.raises(ValidationError, match="in arm `none` has no teacher"):
        Arm.model_validate({"preset": "recommended", "kind": "none", "adapter": False})


def test_none_of_it_is_on_unless_it_is_asked_for():
    arm = Arm()
    assert (arm.recalibration, arm.adapter_input, arm.single_head_rows, arm.follows) == ("none", "logit", 0, "nothing")
    assert [key for key in student(arm_of=Arm()).state() if key.startswith(("platt", "adapter/", "advantage"))] == []

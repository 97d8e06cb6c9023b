"""A teacher that is wrong is corrected by Platt scaling, or by an adapter that knows the context."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from exfm.distillation.adapter import adapted_logits, context_of
from exfm.distillation.arm import Arm
from tests.support.models.arms import ARMS, aged, learn
from tests.support.models.losses import cross_entropy
from tests.support.models.states import same
from tests.support.models.students import FORGETFUL, WideAndShort, served, stream, student


def calibration(one, batches, task=0):
    """Σ predicted / Σ clicked over the second half of the stream."""
    logits = np.concatenate([result.logits[:, task] for result in learn(one, batches)])
    labels = np.concatenate([batch.labels[:, task].numpy() for batch in batches])
    half = len(labels) // 2
    return (1 / (1 + np.exp(-logits[half:]))).sum() / labels[half:].sum()


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
        for batch in aged(stream(30_000)):
            wrong = batch.teacher_age > 25_000 if by == "age" else batch.dense[:, 0] > 0.5
            if by == "age":
                batch = replace(batch, teacher_age=torch.where(wrong, 50_000.0, 0.0))
            said = torch.where(wrong.unsqueeze(1), batch.teacher_logits + 2.0, batch.teacher_logits)
            batch = replace(batch, teacher_logits=said)
            found.append(adapter_loss(one, batch))
            one.train_step(batch)
        losses[kind] = np.mean(found[-20:])
    assert losses["context"] < 0.97 * losses["logit"]


def adapter_loss(one, batch):
    """Of SA, before it learns from the batch."""
    with torch.no_grad():
        tables = one.net.tables
        x = one.net.trunk(one.net.units(tables.lookup(tables.send(batch)).pooled, batch.sparse), batch.dense)
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

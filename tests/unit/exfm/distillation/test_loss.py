"""The losses, term by term, against the equations written out by hand."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from exfm.distillation.arm import Arm
from exfm.distillation.loss import objective, scale_gradient
from exfm.distillation.targets import RowMasks
from tests.support.models.objectives import objective_of

B, T = 6, 2


def h(z, y):
    p = 1 / (1 + math.exp(-z))
    return -(y * math.log(p) + (1 - y) * math.log(1 - p))


@pytest.fixture
def logits():
    torch.manual_seed(3)
    z_S, z_D, z_D2, sa, teacher = torch.randn(5, B, T)
    labels = (torch.rand(B, T) < 0.5).float()
    for z in (z_S, z_D, z_D2, sa, teacher):
        z.requires_grad_()
    return {"z_S": z_S, "z_D": z_D, "z_D2": z_D2, "adapted": sa, "labels": labels, "teacher_logits": teacher}


def by_hand(logits, arm, adapter):
    total = 0.0
    for b in range(B):
        for t in range(T):
            z_S, z_D, z_D2, sa, y, f = (logits[k][b, t].item() for k in logits)
            p = 1 / (1 + math.exp(-f))
            total += h(z_S, y)
            if arm.kind == "single_head":
                total += arm.weight * h(z_S, p)
            if arm.kind == "auxiliary_head":
                total += arm.weight * h(z_D, min(1.0, arm.label_scale * p))
            if adapter:
                total += h(z_D2, 1 / (1 + math.exp(-sa)))
    return total / B


@pytest.mark.parametrize(
    "arm",
    [
        Arm(kind="none"),
        Arm(kind="single_head", weight=0.7),
        Arm(kind="auxiliary_head", weight=10, label_scale=5),
        Arm(kind="auxiliary_head", weight=0.7, label_scale=1.5, adapter=True),
    ],
    ids=lambda arm: f"{arm.kind}{'+adapter' * arm.adapter}",
)
def test_the_objective_is_that_of_the_paper(logits, arm):
    given = {"z_S", "labels", "teacher_logits"}
    given |= {"z_D"} if arm.kind == "auxiliary_head" else set()
    given |= {"z_D2", "adapted"} if arm.adapter else set()
    loss = objective_of(arm, **{k: v for k, v in logits.items() if k in given})
    assert loss.total.item() == pytest.approx(by_hand(logits, arm, arm.adapter), rel=1e-5)


@pytest.mark.parametrize("adapter", [False, True])
def test_only_labels_reach_the_serving_logit_of_an_auxiliary_head(logits, adapter):
    arm = Arm(kind="auxiliary_head", weight=3, adapter=adapter)
    (with_teacher,) = torch.autograd.grad(objective_of(arm, **logits).total, logits["z_S"])
    (labels_only,) = torch.autograd.grad(
        objective_of(Arm(kind="none"), logits["z_S"], logits["labels"], logits["teacher_logits"]).total, logits["z_S"]
    )
    assert torch.equal(with_teacher, labels_only)


def test_neither_the_teacher_nor_the_adapter_is_moved_by_the_student(logits):
    loss = objective_of(Arm(kind="auxiliary_head", adapter=True), **logits).total
    moved = torch.autograd.grad(loss, [logits["teacher_logits"], logits["adapted"]], allow_unused=True)
    assert moved == (None, None)


@pytest.mark.parametrize("beta", [0.0, 1.0, 20.0])
def test_gradient_scale_is_exact_and_leaves_values_alone(beta):
    x = torch.randn(5, 3, requires_grad=True)
    target = torch.randn(5, 3)
    (plain,) = torch.autograd.grad((x * target).sum(), x)
    scaled = scale_gradient(x, beta)
    assert torch.equal(scaled, x)
    assert torch.equal(torch.autograd.grad((scaled * target).sum(), x)[0], plain * beta)


def test_the_teacher_target_is_capped_at_one():
    z = torch.zeros(1, 1, requires_grad=True)
    for logit, target in ((-2.0, 0.17880), (0.0, 0.75), (2.0, 1.0)):
        loss = objective(Arm(label_scale=1.5), z, torch.zeros(1, 1), torch.tensor([[logit]]), z_D=z).distillation
        assert torch.autograd.grad(loss, z)[0].item() == pytest.approx(0.5 - target, abs=1e-5)


def test_temperature_softens_both_sides():
    arm = Arm(kind="single_head", temperature=2.0)
    z, f = torch.tensor([[1.0]]), torch.tensor([[-3.0]])
    loss = objective(arm, z, torch.zeros(1, 1), f)
    assert loss.distillation.item() == pytest.approx(h(0.5, 1 / (1 + math.exp(1.5))), rel=1e-6)


def test_losses_are_stable_at_extreme_logits_and_soft_targets():
    z, labels = torch.tensor([[1e4], [-1e4], [80.0]], requires_grad=True), torch.tensor([[0.25], [0.25], [1.0]])
    for b, expected in enumerate([7500, 2500, 0]):
        loss = objective(Arm(kind="none"), z[[b]], labels[[b]], labels[[b]]).label
        assert loss.item() == pytest.approx(expected, abs=1e-6)
        assert torch.isfinite(torch.autograd.grad(loss, z)[0]).all()


def test_each_term_is_a_mean_over_the_rows_that_have_its_target(logits):
    label_mask = torch.tensor([[1, 1], [1, 0], [1, 0], [0, 1], [1, 1], [0, 0]], dtype=torch.bool)
    teacher_mask = torch.tensor([[1, 0], [1, 0], [0, 0], [1, 0], [1, 0], [1, 0]], dtype=torch.bool)
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0, 0.5, 3.0])
    arm = Arm(kind="single_head")
    loss = objective_of(
        arm,
        logits["z_S"],
        logits["labels"],
        logits["teacher_logits"],
        label_mask=label_mask,
        teacher_mask=teacher_mask,
        weights=weights,
    )
    z, y, p = logits["z_S"], logits["labels"], torch.sigmoid(logits["teacher_logits"])
    of = lambda b, t, target: weights[b].item() * h(z[b, t].item(), target[b, t].item())  # noqa: E731
    label = sum(of(b, 0, y) for b in (0, 1, 2, 4)) / 4 + sum(of(b, 1, y) for b in (0, 3, 4)) / 3
    distillation = sum(of(b, 0, p) for b in (0, 1, 4)) / 3  # task 1 has no teacher logit: it adds nothing
    assert loss.label.item() == pytest.approx(label, rel=1e-5)
    assert loss.distillation.item() == pytest.approx(distillation, rel=1e-5)
    assert loss.labelled_rows.tolist() == [4, 3]
    assert loss.distilled_rows.tolist() == [3, 0]
    assert loss.rows_without_teacher.tolist() == [1, 3]


def test_a_conversion_is_distilled_on_clicked_rows_unless_all_rows_are_asked_for(logits):
    clicked = torch.tensor([[True, True]] * 2 + [[True, False]] * 4)
    given = {k: v for k, v in logits.items() if k in ("z_S", "labels", "teacher_logits", "z_D")}
    assert objective_of(Arm(), **given, label_mask=clicked).distilled_rows.tolist() == [6, 2]
    assert objective_of(Arm(rows="all"), **given, label_mask=clicked).distilled_rows.tolist() == [6, 6]


def test_what_lies_under_a_false_mask_is_never_looked_at(logits):
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[2] = False
    spoilt = {k: v.detach().clone() for k, v in logits.items()}
    for name in ("labels", "teacher_logits", "adapted"):
        spoilt[name][2] = float("nan")
    arm = Arm(kind="auxiliary_head", adapter=True)
    clean = objective_of(arm, **logits, label_mask=mask, teacher_mask=mask)
    assert objective_of(arm, **spoilt, label_mask=mask, teacher_mask=mask).total.item() == clean.total.item()


def test_an_empty_mask_gives_zero_and_zero_gradients(logits):
    none = torch.zeros(B, T, dtype=torch.bool)
    loss = objective_of(Arm(kind="auxiliary_head", adapter=True), **logits, label_mask=none, teacher_mask=none).total
    assert loss.item() == 0
    assert all(not g.any() for g in torch.autograd.grad(loss, [logits["z_S"], logits["z_D"], logits["z_D2"]]))
    assert objective(Arm(kind="none"), *torch.zeros(3, 0, T)).total.item() == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "single_head", "label_scale": 5}, "label_scale 5.0"),
        ({"kind": "single_head", "gradient_scale": 20}, "gradient_scale 20.0"),
        ({"kind": "single_head", "adapter": True}, "no place for a student adapter"),
        ({"kind": "none", "adapter": True}, "no place for a student adapter"),
        ({"kind": "twin_head"}, "single_head"),
        ({"weight": -1}, "weight"),
        ({"weigth": 1}, "weigth"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_words(settings, words):
    with pytest.raises(ValidationError, match=words):
        Arm(**settings)


def test_a_missing_logit_is_named(logits):
    with pytest.raises(ValueError, match="needs `z_D`"):
        objective_of(Arm(), logits["z_S"], logits["labels"], logits["teacher_logits"])


@pytest.mark.parametrize("label_rows", [None, [True, False, True, False, True, True]])
@pytest.mark.parametrize("distillation_rows", [None, [True, True, False, False, True, True]])
@pytest.mark.parametrize("rows", ["labelled", "all"])
def test_labels_and_logits_count_on_the_rows_of_their_own_mask(label_rows, distillation_rows, rows):
    """L = mean over label rows of h(z_S, y) + w · mean over distillation rows with a logit of h(z_D, p_F), by hand."""
    rng = np.random.default_rng(3)
    z_S, z_D, z_F = rng.normal(size=(3, 6, 2))
    y = (rng.random((6, 2)) < 0.5).astype(float)
    known, taught, w = rng.random((6, 2)) < 0.7, rng.random((6, 2)) < 0.7, rng.random(6) + 0.5
    of = lambda mask: np.ones(6, bool) if mask is None else np.array(mask)  # noqa: E731
    h = lambda z, p: np.log1p(np.exp(z)) - p * z  # noqa: E731

    def mean(losses, mask):
        return sum(losses[mask[:, t], t] @ w[mask[:, t]] / max(1, mask[:, t].sum()) for t in range(2))

    labelled = known & of(label_rows)[:, None]
    distilled = taught & of(distillation_rows)[:, None] & (known if rows == "labelled" else True)
    label, distillation = mean(h(z_S, y), labelled), mean(h(z_D, 1 / (1 + np.exp(-z_F))), distilled)

    masks = [None if mask is None else torch.tensor(mask) for mask in (label_rows, distillation_rows)]
    given = RowMasks(
        torch.from_numpy(known),
        torch.from_numpy(taught),
        torch.from_numpy(w),
        label_rows=masks[0],
        distillation_rows=masks[1],
    )
    tensors = [torch.from_numpy(a) for a in (z_S, y, z_F, z_D)]
    found = objective(Arm(weight=1.5, rows=rows), *tensors[:3], z_D=tensors[3], rows=given)
    assert found.total.item() == pytest.approx(label + 1.5 * distillation)
    assert found.of_teacher.item() == pytest.approx(1.5 * distillation)
    assert found.labelled_rows.tolist() == labelled.sum(0).tolist()
    assert found.distilled_rows.tolist() == distilled.sum(0).tolist()

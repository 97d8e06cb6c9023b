"""What holds of every arm's objective, whatever the batch; and of every arm whose teacher is kept from the trunk."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.distillation.arm import Arm
from tests.support.models.objectives import objective_of
from tests.support.models.states import same
from tests.support.models.students import served, stream, student

LOGITS = ("z_S", "z_D", "z_D2")
GIVEN = ("labels", "teacher_logits", "adapted")
MASKS = ("label_mask", "teacher_mask")
PER_TASK = ("factors", "adapted_factors")
UNKNOWN = (float("nan"), float("inf"), -float("inf"), 1e30)

numbers = st.floats(0.0, 4.0)
options = {
    "weight": numbers,
    "temperature": st.floats(0.5, 4.0),
    "rows": st.sampled_from(["labelled", "all"]),
}
arms = st.one_of(
    st.just(Arm(kind="none")),
    st.builds(Arm, kind=st.just("single_head"), **options),
    st.builds(Arm, adapter=st.booleans(), label_scale=st.floats(0.2, 5.0), **options),
    st.builds(Arm, adapter=st.booleans(), single_head_rows=st.just(1), single_head_weight=numbers, **options),
)


@st.composite
def cases(draw, arms=arms):
    """An arm and a batch of it: everything that `objective` may be given, in float64."""
    arm, B, T = draw(arms), draw(st.integers(1, 7)), draw(st.integers(1, 3))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch = {name: torch.randn(B, T, generator=g, dtype=torch.float64) for name in (*LOGITS, *GIVEN)}
    batch["labels"] = (batch["labels"] > 0).double()
    batch |= {name: torch.rand(B, T, generator=g) < draw(st.floats(0, 1)) for name in MASKS}
    batch |= {name: torch.rand(T, generator=g, dtype=torch.float64) for name in PER_TASK}
    batch["weights"] = 3 * torch.rand(B, generator=g, dtype=torch.float64)
    if arm.single_head_rows:
        batch["cold"] = torch.rand(B, generator=g) < 0.5
    return arm, batch


def told(arm, batch):
    """The loss, and its gradient at every logit, (B, T) or zeros."""
    leaves = [batch[name].detach().requires_grad_() for name in LOGITS]
    found = objective_of(arm, **batch | dict(zip(LOGITS, leaves, strict=True)))
    gradients = torch.autograd.grad(found.total, leaves, allow_unused=True)
    zero = torch.zeros_like(batch["z_S"])
    return found, {name: zero if g is None else g for name, g in zip(LOGITS, gradients, strict=True)}


def rows_of(batch, rows):
    return {name: t if name in PER_TASK else t[rows] for name, t in batch.items()}


def tasks_of(batch, tasks):
    return {name: t if t.dim() == 1 and name not in PER_TASK else t[..., tasks] for name, t in batch.items()}


def close(a, b):
    return torch.allclose(a, b, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(cases(), st.sampled_from(UNKNOWN), st.sampled_from(UNKNOWN))
def test_what_is_not_known_is_never_looked_at(case, label, logit):
    arm, batch = case
    spoilt = dict(batch)
    distilled = batch["teacher_mask"] & (batch["label_mask"] if arm.rows == "labelled" else True)
    spoilt["labels"] = batch["labels"].where(batch["label_mask"], label)
    spoilt["teacher_logits"] = batch["teacher_logits"].where(distilled, logit)
    spoilt["adapted"] = batch["adapted"].where(distilled, logit)
    (clean, g), (found, h) = told(arm, batch), told(arm, spoilt)
    assert torch.equal(clean.total, found.total)
    assert all(torch.equal(g[name], h[name]) for name in LOGITS)
    untouched = ~(batch["label_mask"] | distilled)
    assert not any(g[name][untouched].any() for name in LOGITS)
    assert not any(g[name][~distilled].any() for name in ("z_D", "z_D2"))


@settings(deadline=None, max_examples=60)
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_rows_is_no_part_of_it(case, random):
    arm, batch = case
    order = list(range(len(batch["z_S"])))
    random.shuffle(order)
    (straight, g), (shuffled, h) = told(arm, batch), told(arm, rows_of(batch, order))
    assert close(straight.total, shuffled.total)
    assert all(close(g[name][order], h[name]) for name in LOGITS)


@settings(deadline=None, max_examples=60)
@given(cases())
def test_tasks_do_not_know_of_each_other(case):
    arm, batch = case
    together, g = told(arm, batch)
    alone = [told(arm, tasks_of(batch, [t])) for t in range(batch["z_S"].shape[1])]
    assert close(together.total, sum(found.total for found, _ in alone))
    for name in LOGITS:
        assert close(g[name], torch.cat([h[name] for _, h in alone], dim=1))
    for counts in ("labelled_rows", "distilled_rows", "rows_without_teacher"):
        assert torch.equal(getattr(together, counts), torch.cat([getattr(found, counts) for found, _ in alone]))


@settings(deadline=None, max_examples=60)
@given(cases(), st.floats(0.1, 10.0), st.data())
def test_a_weight_pulls_its_own_row_and_no_other(case, times, data):
    arm, batch = case
    row = data.draw(st.integers(0, len(batch["z_S"]) - 1))
    heavier = batch | {"weights": batch["weights"].clone()}
    heavier["weights"][row] *= times
    (_, g), (_, h) = told(arm, batch), told(arm, heavier)
    others = [b for b in range(len(batch["z_S"])) if b != row]
    for name in LOGITS:
        assert close(h[name][row], times * g[name][row])
        assert torch.equal(h[name][others], g[name][others])


@settings(deadline=None, max_examples=60)
@given(cases(arms.filter(lambda arm: arm.kind == "auxiliary_head")))
def test_the_serving_logit_of_an_auxiliary_head_hears_labels_alone_once_it_is_warm(case):
    arm, batch = case
    _, g = told(arm, {name: t for name, t in batch.items() if name != "cold"})
    _, twin = told(Arm(kind="none"), {name: t for name, t in batch.items() if name != "cold"})
    assert torch.equal(g["z_S"], twin["z_S"])


kept_out = st.one_of(
    st.builds(
        Arm,
        gradient_scale=st.just(0.0),
        weight=numbers,
        adapter=st.booleans(),
        recalibration=st.sampled_from(["none", "platt"]),
        follows=st.sampled_from(["nothing", "advantage"]),
        head_start=st.sampled_from(["random", "serving"]),
        rows=st.sampled_from(["labelled", "all"]),
    ),
    st.builds(
        Arm,
        kind=st.sampled_from(["single_head", "auxiliary_head"]),
        weight=st.just(0.0),
        recalibration=st.sampled_from(["none", "platt"]),
        follows=st.sampled_from(["nothing", "advantage"]),
    ),
    st.builds(Arm, gradient_scale=st.just(0.0), single_head_rows=st.integers(1, 900), single_head_weight=st.just(0.0)),
    st.just(Arm(gradient_scale=0.0, adapter=True, adapter_input="context")),
)


@settings(deadline=None, max_examples=12)
@given(kept_out, st.sampled_from([-3.0, 0.0, 1.0]))
def test_a_teacher_that_is_kept_from_the_trunk_leaves_the_bits_of_the_twin(arm, bias):
    """β = 0, or w = 0 without an adapter: heads of its own may learn what they like."""
    one, twin = student(arm_of=arm), student("none")
    for batch in stream(768, bias=bias):
        assert one.train_step(batch).logits.tobytes() == twin.train_step(batch).logits.tobytes()
    assert same(of_twin(one), of_twin(twin))


def of_twin(one):
    return {k: t for k, t in served(one.state()).items() if not k.startswith(("platt/", "advantage/"))}

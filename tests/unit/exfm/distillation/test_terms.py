"""The objective says what an oracle, written term by term, says of every arm's loss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.distillation.arm import Arm
from exfm.distillation.loss import objective
from exfm.distillation.targets import RowMasks, Targets
from tests.support.models.losses import terms_by_autograd

numbers = st.floats(0.0, 4.0)
options = {"weight": numbers, "temperature": st.floats(0.5, 4.0), "rows": st.sampled_from(["labelled", "all"])}
arms = st.one_of(
    st.just(Arm(kind="none")),
    st.builds(Arm, kind=st.just("single_head"), **options),
    st.builds(Arm, adapter=st.booleans(), label_scale=st.floats(0.2, 5.0), **options),
    st.builds(Arm, adapter=st.booleans(), single_head_rows=st.just(1), single_head_weight=numbers, **options),
)


@st.composite
def batches(draw, dtype=torch.float64):
    """An arm, and a batch of it, of which every part that may be left out is left out at times."""
    arm, B, T = draw(arms), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape):
        return 3 * torch.randn(*shape, generator=g, dtype=dtype)

    def maybe(tensor):
        return tensor if draw(st.booleans()) else None

    def mask(*shape):
        return torch.rand(*shape, generator=g) < draw(st.floats(0, 1))

    z_S, z_D, z_D2, z_F, adapted = normal(5, B, T)
    labels = (normal(B, T) > 0).to(dtype)
    shares = torch.rand(2, T, generator=g, dtype=dtype).unbind()
    targets = Targets(z_F, adapted, *map(maybe, shares))
    rate = maybe(torch.rand(T, generator=g, dtype=dtype) * 0.9 + 0.1)
    weights = maybe(3 * torch.rand(B, generator=g, dtype=dtype))
    cold = mask(B) if arm.single_head_rows else None
    every = (maybe(mask(B, T)), maybe(mask(B, T)), weights, rate, cold, maybe(mask(B)), maybe(mask(B)))
    return arm, labels, targets, RowMasks(*every), [z_S, z_D, z_D2]


def told(terms, leaves):
    """Values, and the gradient of each by each of the logits."""
    gradients = [
        torch.autograd.grad(term, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
        if term.requires_grad
        else [torch.zeros_like(leaf) for leaf in leaves]
        for term in terms
    ]
    return [*(term.detach() for term in terms), *(g for of in gradients for g in of)]


def terms_of(arm, labels, targets, rows, leaves):
    found = objective(arm, leaves[0], labels, targets, z_D=leaves[1], z_D2=leaves[2], rows=rows)
    return [found.label, found.distillation, found.adapted, found.single_head]


@settings(deadline=None, max_examples=300)
@given(batches())
def test_terms_and_gradients_are_those_of_the_oracle(case):
    arm, labels, targets, rows, logits = case
    leaves = [z.clone().requires_grad_() for z in logits]
    expected = told(terms_by_autograd(arm, labels, targets, rows, *leaves), leaves)
    for mine, theirs in zip(told(terms_of(arm, labels, targets, rows, leaves), leaves), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@settings(deadline=None, max_examples=100)
@given(batches())
def test_the_total_is_the_weighted_sum_of_the_terms(case):
    arm, labels, targets, rows, (z_S, z_D, z_D2) = case
    found = objective(arm, z_S, labels, targets, z_D=z_D, z_D2=z_D2, rows=rows)
    of_teacher = arm.weight * found.distillation + found.adapted + arm.single_head_weight * found.single_head
    torch.testing.assert_close(found.of_teacher, of_teacher)
    torch.testing.assert_close(found.total, found.label + of_teacher)


@settings(deadline=None, max_examples=50)
@given(batches(torch.float32))
def test_floats_are_as_close_to_the_truth_as_they_can_be(case):
    """Losses of logits in single precision are computed in double: the error is no larger than a bit or two."""
    arm, labels, targets, rows, logits = case

    def double(parts):
        return [t.double() if t is not None and t.is_floating_point() else t for t in parts]

    exact, leaves = ([z.clone().requires_grad_() for z in of] for of in (double(logits), logits))
    given_double = (labels.double(), Targets(*double(targets)), RowMasks(*double(rows)))
    truth = told(terms_of(arm, *given_double, exact), exact)
    for mine, theirs in zip(told(terms_of(arm, labels, targets, rows, leaves), leaves), truth, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=5e-7, atol=5e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_have_their_gradient_in_it(dtype):
    z = torch.randn(5, 2, dtype=dtype, requires_grad=True)
    loss = objective(Arm(kind="none"), z, torch.ones(5, 2), torch.zeros(5, 2)).total
    (g,) = torch.autograd.grad(loss, z)
    assert loss.dtype == g.dtype == dtype
    torch.testing.assert_close(g.float(), (z.detach().float().sigmoid() - 1) / 5, rtol=1e-2, atol=1e-2)

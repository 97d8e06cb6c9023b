"""The loop over a batch says what torch's operators and autograd say of every arm's loss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.distillation.arm import Arm
from exfm.distillation.loss import objective, teacher_part
from exfm.distillation.terms import Lesson, RowMasks, terms_of
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
    lesson = Lesson(z_F, adapted, *map(maybe, shares))
    rate = maybe(torch.rand(T, generator=g, dtype=dtype) * 0.9 + 0.1)
    weights = maybe(3 * torch.rand(B, generator=g, dtype=dtype))
    cold = mask(B) if arm.single_head_rows else None
    every = (maybe(mask(B, T)), maybe(mask(B, T)), weights, rate, cold, maybe(mask(B)), maybe(mask(B)))
    return arm, labels, lesson, RowMasks(*every), [z_S, z_D, z_D2]


@settings(deadline=None, max_examples=300)
@given(batches())
def test_terms_and_slopes_are_those_of_autograd(case):
    arm, labels, lesson, rows, logits = case
    leaves = [z.clone().requires_grad_() for z in logits]
    expected = terms_by_autograd(arm, labels, lesson, rows, *leaves)
    found = terms_of(arm, labels, lesson, rows, *logits)
    torch.testing.assert_close(found.values, torch.stack([term.detach() for term in expected]))
    of = (0, 0 if arm.kind == "single_head" else 1, 2, 0)
    for term, slope, leaf in zip(expected, found.slopes, of, strict=True):
        g = (
            torch.autograd.grad(term, leaves[leaf], allow_unused=True, retain_graph=True)[0]
            if term.requires_grad
            else None
        )
        torch.testing.assert_close(slope, torch.zeros_like(slope) if g is None else g)


@settings(deadline=None, max_examples=100)
@given(batches(), st.data())
def test_the_gradient_of_an_objective_is_that_of_its_terms(case, data):
    """Of any sum of its parts, not of the total alone."""
    arm, labels, lesson, rows, logits = case
    parts = torch.tensor(data.draw(st.lists(numbers, min_size=4, max_size=4)), dtype=torch.float64)
    sums = []
    for autograd in (True, False):
        leaves = [z.clone().requires_grad_() for z in logits]
        if autograd:
            terms = terms_by_autograd(arm, labels, lesson, rows, *leaves)
            loss = terms[0] + teacher_part(arm, *terms[1:])
        else:
            found = objective(arm, leaves[0], labels, lesson, z_D=leaves[1], z_D2=leaves[2], rows=rows)
            terms = [found.label, found.distillation, found.adapted, found.single_head]
            loss = found.total
        loss = loss + (parts * torch.stack(terms)).sum()
        sums.append([loss.detach(), *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)])
    for a, b in zip(*sums, strict=True):
        torch.testing.assert_close(a, b)


@settings(deadline=None, max_examples=50)
@given(batches(torch.float32))
def test_floats_are_as_close_to_the_truth_as_torch_is(case):
    """The error of the loop in floats is no larger than a bit or two; torch's is."""
    arm, labels, lesson, rows, logits = case

    def double(parts):
        return [t.double() if t is not None and t.is_floating_point() else t for t in parts]

    truth = terms_of(arm, labels.double(), Lesson(*double(lesson)), RowMasks(*double(rows)), *double(logits))
    found = terms_of(arm, labels, lesson, rows, *logits)
    torch.testing.assert_close(found.values, truth.values, rtol=5e-7, atol=5e-7)
    torch.testing.assert_close(found.slopes.double(), truth.slopes, rtol=5e-7, atol=5e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_have_their_gradient_in_it(dtype):
    z = torch.randn(5, 2, dtype=dtype, requires_grad=True)
    loss = objective(Arm(kind="none"), z, torch.ones(5, 2), torch.zeros(5, 2)).total
    (g,) = torch.autograd.grad(loss, z)
    assert loss.dtype == g.dtype == dtype
    torch.testing.assert_close(g.float(), (z.detach().float().sigmoid() - 1) / 5, rtol=1e-2, atol=1e-2)

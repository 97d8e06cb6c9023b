"""A row of weight 2 is two rows, one of weight 0 is none: for every loss and every figure."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.distillation.arm import Arm
from exfm.metrics.classification import calibration, log_loss, normalised_entropy
from exfm.metrics.paired import paired_gain
from exfm.metrics.progressive import Tally
from exfm.metrics.ranking import auc, gauc
from exfm.parallel.planning.law import loss_blocks
from tests.support.models.objectives import objective_of


@st.composite
def weighted_rows(draw):
    """Logits of two models, labels, groups and whole weights, some of them 0; and the rows repeated as often."""
    count = draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits, others = rng.normal(-1, 1.5, (2, count)).round(1)  # rounded: there are ties
    labels, groups = rng.integers(0, 2, count), rng.integers(0, max(2, count // 6), count)
    weights = rng.integers(0, 4, count).astype(float)
    columns = (logits, others, labels, groups)
    return columns, weights, tuple(np.repeat(column, weights.astype(int)) for column in columns)


def same(found, expected):
    if expected is None:
        return found is None
    return found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(weighted_rows())
@settings(max_examples=80, deadline=None)
def test_every_figure_is_that_of_the_rows_repeated(case):
    (z, other, y, groups), w, (z2, other2, y2, groups2) = case
    for figure in (log_loss, normalised_entropy, calibration, auc):
        assert same(figure(z, y, w), figure(z2, y2)), figure.__name__
    found, expected = gauc(z, y, groups, w), gauc(z2, y2, groups2)
    assert same(found.value, expected.value)
    assert found.groups == expected.groups
    one, two = Tally(), Tally()
    one.add(z, y, w)
    two.add(z2, y2)
    for name in ("ne", "auc", "log_loss", "calibration"):
        assert same(getattr(one.metrics(), name), getattr(two.metrics(), name)), name
    assert (one.metrics().rows, one.metrics().positives) == (len(y), y.sum())  # rows are counted, not weighed
    gain, expected = paired_gain(z, other, y, groups, w), paired_gain(z2, other2, y2, groups2)
    assert same(gain.difference, expected.difference)
    assert (gain.clusters, gain.rows) == (expected.clusters, len(y))


def test_a_gain_and_its_error_are_those_of_the_rows_repeated():
    rng = np.random.default_rng(6)
    z, other = rng.normal(-1, 1.5, (2, 900))
    y, groups, w = rng.integers(0, 2, 900), rng.integers(0, 30, 900), rng.integers(0, 4, 900)
    found = paired_gain(z, other, y, groups, w.astype(float))
    repeated = paired_gain(*(np.repeat(column, w) for column in (z, other, y, groups)))
    assert found[:5] == pytest.approx(repeated[:5], rel=1e-9)


def test_rows_that_count_nothing_are_no_clusters():
    z, y = np.array([0.0, 1.0, -1.0, 9.0, 9.0]), np.array([0, 1, 0, 1, 0])
    found = paired_gain(z, z + 1, y, np.array([0, 0, 1, 2, 3]), np.array([1.0, 1, 1, 0, 0]))
    without = paired_gain(z[:3], z[:3] + 1, y[:3], np.array([0, 0, 1]))
    assert (found.clusters, found.rows, found.positives) == (2, 5, 1)
    assert found.difference == pytest.approx(without.difference)


def test_blocks_of_a_scaling_law_weigh_their_rows():
    rng = np.random.default_rng(0)
    z, y, w = rng.normal(size=(2, 500)), rng.integers(0, 2, 500), rng.uniform(0, 3, 500)
    blocks = loss_blocks(z, y, 90, w)
    assert blocks.ne(np.ones((1, 6)))[0] == pytest.approx([normalised_entropy(model, y, w) for model in z])


@given(st.integers(0, 2**32), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_a_row_of_weight_2_pulls_a_loss_as_two_rows_do(seed, count):
    """The sum over rows is the same; the mean divides by the number of rows that there are."""
    rng = np.random.default_rng(seed)
    z = torch.tensor(rng.normal(size=(count, 2)), requires_grad=True)
    y = torch.tensor(rng.random((count, 2)))
    mask, w = torch.tensor(rng.random((count, 2)) < 0.7), torch.tensor(rng.integers(0, 4, count))
    again = torch.repeat_interleave(torch.arange(count), w)
    for t in range(2):
        here, there = mask[:, [t]], mask[again][:, [t]]
        arm = Arm(kind="none")
        loss = objective_of(arm, z[:, [t]], *2 * (y[:, [t]],), label_mask=here, weights=w).label * here.sum()
        repeated = objective_of(arm, z[again][:, [t]], *2 * (y[again][:, [t]],), label_mask=there).label * there.sum()
        assert loss.item() == pytest.approx(repeated.item(), rel=1e-9, abs=1e-12)
        (a,), (b,) = torch.autograd.grad(loss, z), torch.autograd.grad(repeated, z)
        torch.testing.assert_close(a, b)


def test_every_term_of_an_objective_is_weighted():
    rng = torch.Generator().manual_seed(0)
    z, teacher, adapted, z_D, z_D2 = torch.randn(5, 8, 1, generator=rng)
    labels, weights = (torch.rand(8, 1, generator=rng) < 0.5).float(), torch.tensor([1.0, 0, 2, 1, 1, 0, 1, 3])
    heads = {"z_D": z_D, "z_D2": z_D2, "adapted": adapted}
    arm = Arm(kind="auxiliary_head", adapter=True)
    weighted = objective_of(arm, z, labels, teacher, weights=weights, **heads)
    again = torch.repeat_interleave(torch.arange(8), weights.long())
    repeated = objective_of(arm, z[again], labels[again], teacher[again], **{k: v[again] for k, v in heads.items()})
    for term in ("total", "label", "distillation", "adapted"):
        assert (8 * getattr(weighted, term)).item() == pytest.approx(len(again) * getattr(repeated, term).item())

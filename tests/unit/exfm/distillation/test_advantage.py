"""What a student listens to: a teacher that knows something it does not, however it puts it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from exfm.distillation.advantage import HALF_LIFE_ROWS, factor, measured, no_advantage_yet, share
from exfm.distillation.regression import Regression

ROWS = 20_000


class Stream:
    """Rows of which the student knows one half of the logit, and nobody the other but a teacher."""

    def __init__(self, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        self.student, self.unknown, self.noise = torch.randn(3, ROWS, 1, generator=generator)
        self.truth = self.student + self.unknown - 1
        self.labels = torch.bernoulli(torch.sigmoid(self.truth), generator=generator)
        self.everywhere, self.ones = torch.ones(ROWS, 1, dtype=torch.bool), torch.ones(ROWS)

    def after(self, teacher: Tensor, start: Regression | None = None, z_S: Tensor | None = None) -> Regression:
        state, z_S = start or no_advantage_yet(1), self.student if z_S is None else z_S
        for rows in torch.arange(ROWS).split(512):
            state = measured(state, z_S[rows], teacher[rows], self.labels[rows], self.everywhere[rows], self.ones[rows])
        return state


def test_a_teacher_is_not_heard_before_it_has_shown_anything() -> None:
    assert factor(no_advantage_yet(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1.5, -1.0), (0.5, 3.0)])
def test_a_teacher_that_knows_more_is_heard_however_it_is_calibrated(scale: float, shift: float) -> None:
    stream = Stream()
    told = stream.after(scale * stream.truth + shift)
    assert factor(told).item() == 1.0
    assert share(told).item() == pytest.approx(share(stream.after(stream.truth)).item(), abs=0.2)


def test_neither_noise_nor_a_constant_nor_its_own_words_are_heard() -> None:
    stream = Stream()
    echo = stream.student + 0.05 * stream.noise
    for teacher in (stream.noise, torch.full_like(stream.noise, -3.0), echo):
        assert factor(stream.after(teacher)).item() == 0.0


def test_a_teacher_worse_than_its_student_is_not_heard_and_one_that_complements_it_is() -> None:
    stream = Stream()
    worse = stream.truth + 3 * stream.noise
    assert factor(stream.after(worse, z_S=stream.truth)).item() == 0.0
    assert factor(stream.after(stream.unknown)).item() == pytest.approx(
        1.0, abs=0.05
    )  # loses more, knows the other half


def test_a_teacher_that_went_stale_loses_its_say_within_a_few_half_lives() -> None:
    stream = Stream()
    state = stream.after(stream.truth)
    heard = [factor(state).item()]
    for _ in range(4 * HALF_LIFE_ROWS // ROWS):
        state = stream.after(stream.noise, state)
        heard.append(factor(state).item())
    assert (heard[0], heard[-1]) == (1.0, 0.0)


def test_what_lies_under_a_false_mask_is_not_looked_at_and_a_task_without_rows_stays() -> None:
    stream = Stream()
    before = stream.after(stream.truth)
    before = Regression(before.theta.repeat(2, 1), before.information.repeat(2, 1, 1))
    z_S, z_F, y = (torch.cat([z[:100], z[:100]], dim=1) for z in (stream.student, stream.truth, stream.labels))
    mask = torch.zeros(100, 2, dtype=torch.bool)
    mask[:50, 0] = True
    want = measured(before, z_S, z_F, y, mask, torch.ones(100))
    for z in (z_F, y):
        z[~mask] = torch.nan
    got = measured(before, z_S, z_F, y, mask, torch.ones(100))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(got, before, strict=True))
    assert not torch.equal(got.theta[0], before.theta[0])


def test_rows_without_weight_say_nothing() -> None:
    stream = Stream()
    before = stream.after(stream.truth)
    one, none = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1)
    after = measured(before, stream.student[:1], stream.noise[:1], stream.labels[:1], one, none)
    assert torch.allclose(after.theta, before.theta, atol=1e-4)
    assert share(after).item() == pytest.approx(share(before).item(), abs=1e-3)


def test_a_batch_that_is_not_finite_shows_in_the_state_and_raises_nothing() -> None:
    stream = Stream()
    z_F = stream.truth[:10].clone()
    z_F[3] = torch.nan
    rows = slice(0, 10)
    after = measured(
        no_advantage_yet(1), stream.student[rows], z_F, stream.labels[rows], stream.everywhere[rows], stream.ones[rows]
    )
    assert not torch.isfinite(after.information).all()

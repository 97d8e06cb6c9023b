"""NE by tenth of the stream: the rows of each tenth alone, none of too few positives, and in words where a model is
worse than the running base rate or FTRL."""

import numpy as np
import pytest

from exfm.metrics.classification import normalised_entropy, sigmoid
from pipelines.report.results.age import by_tenth, worse_by_age
from pipelines.report.results.figures import Columns, TaskFigures, TenthFigures, WindowFigures


def columns(rows=20_000, lake_rows=40_000, centre=-1.0, seed=0):
    """A student that gets better; every second row of the lake is its own."""
    rng = np.random.default_rng(seed)
    z = rng.normal(centre, 1, rows)
    y = (rng.random(rows) < sigmoid(z)).astype(np.float64)
    student = z + rng.normal(size=rows) * np.linspace(3, 0.1, rows)
    seq = np.arange(rows) * (lake_rows // rows)
    return Columns(seq, y, {"student": student, "no_teacher": z + 1}, 0)


def test_every_tenth_has_the_figures_of_its_rows_alone():
    found, every = by_tenth(columns(), 40_000), columns()
    assert [tenth.rows for tenth in found] == [2_000] * 10
    for n, tenth in enumerate(found):
        part = slice(2_000 * n, 2_000 * (n + 1))
        assert tenth.positives == every.labels[part].sum()
        for model in ("student", "no_teacher"):
            expected = normalised_entropy(every.logits[model][part], every.labels[part])
            assert tenth.ne[model] == pytest.approx(expected, rel=1e-12)
        assert tenth.teacher is None  # this run has none
    assert found[0].ne["student"] > found[-1].ne["student"]


def test_a_tenth_is_one_of_the_lake_even_where_a_student_joined_late():
    late = columns().take(np.arange(10_000, 20_000))
    assert [tenth.rows for tenth in by_tenth(late, 40_000)] == [0] * 5 + [2_000] * 5


def test_a_tenth_with_too_few_positives_has_counts_and_no_figures():
    found = by_tenth(columns(centre=-6.0), 40_000)
    assert all(tenth.rows == 2_000 and tenth.student is None for tenth in found)


def by_age(student, constant=1.0):
    tenths = [TenthFigures(rows=900, positives=90, student=ne, constant=constant) for ne in student]
    return TaskFigures(rows=9, positives=9, last_half=WindowFigures(rows=9, positives=9), by_tenth=tenths)


@pytest.mark.parametrize(
    ("ne", "says"),
    [
        ([1.2] + [0.9] * 9, "in the first 10 % of the stream"),
        ([0.9, 0.9, 1.2] + [0.9] * 7, "from 20 to 30 % of the stream"),
        ([1.2, 0.9, 1.2] + [0.9] * 7, "in 2 of 10 tenths of the stream, the first from 0 to 10 %"),
        ([1.005] + [0.9] * 9, None),  # as good as level
        ([None] + [0.9] * 9, None),
    ],
)
def test_the_verdict_says_when_a_model_was_worse_than_the_running_base_rate(ne, says):
    words = None if says is None else f"on ctr the student is worse than the running base rate {says}"
    assert worse_by_age({"ctr": by_age(ne)}) == words


def test_a_run_without_baselines_says_nothing():
    assert worse_by_age({"ctr": by_age([1.2] * 10, constant=None)}) is None

"""What makes a curve: points of one pass, and three conditions that differ in one thing alone."""

from __future__ import annotations

import pytest

from pipelines.lab.replay.settings import Spec
from pipelines.lab.report.curves import curves
from pipelines.report.cells import MEAN, Key, Measure, cells
from pipelines.report.pictures import svg
from tests.support.pipelines.reports import arm, cells_of, interval, report

ARMS = {"none": {}, "wide": {}}
TEACHERS = {"1x": {}, "4x": {"dial": 2}, "16x": {"dial": 4}}


def asked(gains, flops=None, **spec):
    """A report of conditions with these gains of `wide`, and the teacher's FLOPs under each."""
    found = [cell for name, gain in gains.items() for cell in cells_of(name, gain)]
    for name, value in (flops or {}).items():
        found += cells(Key(name, "feed", "ctr", "(teacher)"), [Measure("training_flops", value)])
    return report(cells=tuple(found), spec=Spec(config="-", arms=ARMS, **spec))


def drawn(of, name="wide"):
    return [(p.x, p.y) for series in of.series if series.name == name for p in series.points]


def test_conditions_that_differ_in_one_number_make_a_curve_in_its_order():
    conditions = {"fresh": {}, "old": {"behind": 18}, "older": {"behind": 6}, "both": {"behind": 9, "scale": 2}}
    gains = {"fresh": 0.9, "old": 0.2, "older": 0.6, "both": 0.1}
    over_age, arms = curves(asked(gains, conditions=conditions))
    assert over_age.x_name == "blocks by which the teacher's snapshots are older"
    assert drawn(over_age) == [(0, 0.9), (6, 0.6), (18, 0.2)]
    assert arms.rows == ["wide"]
    assert drawn(arms, "gain") == [(0, 0.9)]
    assert [row[1] for row in over_age.behind.rows] == ["0", "6", "18"]


def test_two_places_are_no_curve():
    assert list(curves(asked({"fresh": 0.9, "old": 0.2}, conditions={"fresh": {}, "old": {"behind": 18}}))) == []


def test_conditions_that_differ_in_their_teacher_make_a_curve_over_its_flops():
    conditions = {"16x": {"teacher": "16x"}, "1x": {"teacher": "1x"}, "4x": {"teacher": "4x"}}
    flops = {"1x": 1e12, "4x": 4e12, "16x": 16e12}
    gains = {"1x": 0.1, "4x": 0.2, "16x": 0.3}
    over_flops, _ = curves(asked(gains, flops, conditions=conditions, teachers=TEACHERS))
    assert drawn(over_flops) == [(1000, 0.1), (4000, 0.2), (16000, 0.3)]
    assert ">4k<" in svg(over_flops, "f1")  # ticks at the teachers


def test_points_of_one_pass_make_a_curve_with_the_flops_spent_by_then():
    both = asked({"fresh": 0.9}, points=(50, 100))
    more = [m for n, gain in ((50, 0.4), (100, 0.9)) for m in interval(f"gain/upto/{n}", gain)]
    more += [m for n in (50, 100) for m in (Measure(f"transfer/teacher/upto/{n}", 0.5, 0.4, 0.6),)]
    spent = [m for m in arm() if m.metric.startswith("training_flops")]
    found = [*both.cells, *cells(Key("fresh", MEAN, "ctr", "wide"), [*more, *spent])]
    found += cells(Key("fresh", MEAN, "ctr", "(teacher)"), interval("gain/upto/50", 1.2))
    over_rows, _ = curves(report(cells=tuple(found), spec=both.spec))
    assert drawn(over_rows) == [(50, 0.4), (100, 0.9)]
    assert drawn(over_rows, "the teacher's lead") == [(50, 1.2)]
    (half, _, _) = over_rows.behind.rows
    assert half[-2:] == ["1.60", "10.8"]  # of 100 rows
    assert half[3] == "0.50 [0.40, 0.60]"


@pytest.mark.parametrize("points", [(), (100,)])
def test_one_point_is_no_curve(points):
    assert list(curves(asked({"fresh": 0.9}, points=points))) == []

"""Plans made without ranks: they are the ones that training makes, their bytes are real, and every remedy is true."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.models.scorer import TeacherScorer
from exfm.models.teacher import Teacher
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.parallel.planning.alternatives import STRATEGIES, attempt_strategies, find_remedies
from exfm.parallel.planning.placement import Plan, PlanQuestion, Shortage, find_plan
from tests.support.models.plans import CFG, ELEMENT_WISE, FEATURES, held_by, made_by, where

BILLION = FEATURES.model_copy(update={"sparse": (SparseFeature(name="user", rows=10**9), *FEATURES.sparse[1:])})
ALONE = CFG.model_copy(update={"wide": False})
ROW = 4 * (8 + 1)  # bytes of a row and its accumulator, in row-wise AdaGrad


def question(**sharding):
    ranks = sharding.pop("ranks", 2)
    return PlanQuestion(FEATURES, CFG, Sharding(**sharding), ranks, batch_rows=64)


def planned(asked):
    found = find_plan(asked)
    assert isinstance(found, Plan), found
    return found


def test_every_row_has_one_place_and_ranks_add_up():
    found = planned(question(types=("row_wise",), ranks=4))
    for table in found.tables:
        assert sum(piece.size[0] for piece in table.pieces) == table.rows
        assert table.weight_bytes == 4 * 8 * table.rows
    for table in found.linear:
        assert sum(piece.size[0] for piece in table.pieces) == table.rows
        assert table.weight_bytes == table.optimizer_bytes == 4 * 4 * table.rows
    assert sum(load.weight_bytes for load in found.ranks) == 4 * (8 + 4) * (1000 + 101 + 3)
    assert sum(load.optimizer_bytes for load in found.ranks) == 4 * (1 + 4) * (1000 + 101 + 3)
    assert found.cost_ms == max(load.cost.total for load in found.ranks)
    assert found.imbalance == pytest.approx(found.cost_ms / (sum(load.cost.total for load in found.ranks) / 4))


def test_a_world_and_tables_that_no_machine_has_are_planned_without_memory():
    asked = replace(question(memory_gb=80.0, ranks_per_host=8), features=BILLION, ranks=64, device="cuda")
    found = planned(asked)
    assert found.tables[0].weight_bytes == 32 * 10**9
    assert found.fullest.bytes < 80 * 10**9


def test_the_accumulators_of_column_pieces_count_every_row_each():
    pieces = planned(question(types=("column_wise",), per_shard_row_wise=True)).tables[0].pieces
    assert [piece.size for piece in pieces] == [(1000, 4), (1000, 4)]
    assert [piece.optimizer_bytes for piece in pieces] == [4 * 1000, 4 * 1000]
    # Beside weights and accumulator the planner counts a step's 64 ids, and the 64 × 4 floats that are looked up.
    assert [piece.exchange_bytes for piece in pieces] == [64 * 8 + 64 * 4 * 4] * 2


def test_element_wise_adagrad_keeps_as_much_as_the_weights():
    found = planned(replace(question(types=("column_wise",)), teacher=ELEMENT_WISE))
    assert all(piece.optimizer_bytes == piece.weight_bytes for table in found.tables for piece in table.pieces)


def test_a_table_on_every_rank_takes_its_gradient_too():
    found = planned(question(types=("data_parallel",)))
    for piece in found.tables[0].pieces:
        assert piece.exchange_bytes > 2 * piece.weight_bytes


def test_a_sequence_is_looked_up_at_every_place_of_it():
    def cost(length):
        seen = SequenceFeature(name="seen", rows=100, length=length)
        features = FEATURES.model_copy(update={"sequence": (seen,)})
        table = planned(replace(question(), features=features)).tables[-1]
        assert table.name == "seen"
        return sum(piece.cost.total for piece in table.pieces)

    assert cost(20) == pytest.approx(20 * cost(1))


def test_bags_of_many_ids_cost_more_to_look_up():
    one, ten = planned(question()), planned(question(ids_per_row={"user": 10.0}))
    assert ten.tables[0].pieces[0].cost.forward_compute > 3 * one.tables[0].pieces[0].cost.forward_compute
    assert ten.tables[1].pieces[0].cost == one.tables[1].pieces[0].cost


def test_the_more_rows_a_step_has_the_sooner_a_small_table_is_on_every_rank():
    few = question(types=("row_wise", "data_parallel"), ranks=4)
    strategies = [[t.strategy for t in planned(replace(few, batch_rows=rows)).tables] for rows in (64, 2048, 8192)]
    assert strategies == [
        ["row_wise", "row_wise", "data_parallel"],
        ["row_wise", "data_parallel", "data_parallel"],
        ["data_parallel", "data_parallel", "data_parallel"],
    ]


@pytest.mark.parametrize("types", [("table_wise",), ("row_wise",), ("data_parallel", "table_wise")])
def test_the_plan_is_the_one_that_a_teacher_trains_by(types):
    sharding = Sharding(types=types, tables={"slot": "row_wise"})
    teacher = Teacher(CFG, FEATURES, ["ctr"], 0, sharding=sharding, batch_rows=64)
    teacher.close()
    found = planned(replace(question(), sharding=sharding, ranks=1))
    assert where(found) == made_by(teacher.plan)
    (load,) = found.ranks
    assert load.weight_bytes == held_by(teacher, "/weight")
    assert load.optimizer_bytes == held_by(teacher, "/accumulator")


def test_the_plan_is_the_one_that_a_teacher_scores_by():
    sharding, tasks = Sharding(types=("data_parallel", "table_wise")), ("ctr", "cvr", "like", "share", "buy")
    with RankGroup() as group:
        scorer = TeacherScorer(CFG, FEATURES, tasks, group=group, sharding=sharding, batch_rows=64)
        held = sum(piece.nbytes for piece in scorer.held)
    found = planned(replace(question(), sharding=sharding, ranks=1, tasks=tasks, learns=False))
    assert where(found) == made_by(scorer.plan)
    assert found.linear[0].width == 8  # five tasks, in steps of four
    assert [(load.weight_bytes, load.optimizer_bytes) for load in found.ranks] == [(held, 0)]


@pytest.mark.parametrize("learns", [True, False])
def test_a_teacher_without_linear_part_is_planned_without(learns):
    asked = replace(question(types=("row_wise",)), learns=learns)
    deep, both = planned(replace(asked, teacher=ALONE)), planned(asked)
    assert deep.linear == ()
    assert where(deep)["tables"] == where(both)["tables"]
    rows = 1000 + 101 + 3
    assert sum(load.weight_bytes for load in both.ranks) == sum(load.weight_bytes for load in deep.ranks) + 16 * rows
    more = sum(load.optimizer_bytes for load in both.ranks) - sum(load.optimizer_bytes for load in deep.ranks)
    assert more == (16 * rows if learns else 0)


@pytest.mark.parametrize("learns", [True, False])
def test_what_fits_only_without_its_linear_part_does_not_fit(learns):
    asked = replace(question(ranks=1, memory_gb=0.00006), learns=learns)
    if not learns:
        asked = asked.sharded(memory_gb=0.000045)
    planned(replace(asked, teacher=ALONE))
    short = find_plan(asked)
    assert isinstance(short, Shortage)
    linear = 1104 * (32 if learns else 16)
    assert str(short).startswith("table `user` of the linear part (table_wise) needs ")
    assert short.total > linear + 1104 * (36 if learns else 32) > asked.world.capacity_bytes > linear
    words = "the tables do not fit on 1 ranks of .* the largest, `user` .* all need .* and a step's buffers"
    live = partial(Teacher, seed=0) if learns else TeacherScorer
    with RankGroup() as group, pytest.raises(ConfigError, match=words):
        live(CFG, FEATURES, ["ctr"], group=group, sharding=asked.sharding, batch_rows=64)
    remedies = list(find_remedies(asked))
    assert remedies
    for remedy in remedies:
        assert len(remedy.plan.linear) == 3
        assert remedy.plan.fullest.bytes <= remedy.plan.question.world.capacity_bytes


def test_what_does_not_fit_is_told_with_both_numbers():
    short = find_plan(question(memory_gb=0.00003))
    assert isinstance(short, Shortage)
    assert str(short) == "table `user` (table_wise) needs 38.6 kB on one device, the largest free device has 30 kB"
    assert short.needs > 1000 * ROW > short.free
    assert short.capacity == 60_000


def test_what_is_left_beside_other_tables_counts_as_free():
    two = FeatureSet(sparse=[SparseFeature(name=name, rows=1000) for name in "abc"])
    short = find_plan(replace(question(memory_gb=0.00005), features=two))
    assert isinstance(short, Shortage)
    assert short.needs > short.free > 0
    assert short.needs < 50_000  # it would fit on a rank of its own


@pytest.mark.parametrize(
    "sharding",
    [
        {"memory_gb": 0.00003},
        {"memory_gb": 0.00002, "types": ("table_wise", "row_wise")},
        pytest.param(
            {"memory_gb": 0.00003, "tables": {"user": "table_wise"}, "types": ("row_wise",)}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"memory_gb": 0.00001, "ranks": 4, "ranks_per_host": 2, "types": ("table_row_wise",)},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_remedy_makes_room_and_the_least_of_it(sharding):
    asked = question(**sharding)
    assert isinstance(find_plan(asked), Shortage)
    found = list(find_remedies(asked))
    assert found
    for remedy in found:
        changed = asked
        for path, value in remedy.changes.items():
            changed = applied(changed, path, value)
        assert planned(changed).fullest.bytes <= changed.world.capacity_bytes, remedy.words
        for less in one_less(changed, asked, remedy.changes):
            assert isinstance(find_plan(less), Shortage), remedy.words


def applied(asked, path, value):
    section, _, name = path.rpartition(".")
    if section == "sharding":
        return asked.sharded(**{name: value})
    if section == "model":
        return replace(asked, teacher=asked.teacher.model_copy(update={name: value}))
    assert path == "ranks"
    return replace(asked, ranks=value)


def one_less(changed, asked, settings):
    if "ranks" in settings:
        fewer = changed.ranks - (changed.sharding.ranks_per_host or 1)
        if fewer > asked.ranks:
            yield replace(changed, ranks=fewer)
    if "sharding.memory_gb" in settings:
        yield changed.sharded(memory_gb=changed.sharding.memory_gb - asked.sharding.memory_gb / 100)
    if "model.width" in settings and changed.teacher.width + 4 < asked.teacher.width:
        yield applied(changed, "model.width", changed.teacher.width + 4)


def test_columns_that_would_change_the_optimizer_are_refused_among_what_was_tried():
    tried = {attempt.name: attempt for attempt in attempt_strategies(question())}
    assert list(tried) == [*(f"all {strategy}" for strategy in STRATEGIES), "free choice"]
    assert "row-wise AdaGrad" in tried["all column_wise"].why_not
    assert tried["all column_wise"].plan is None
    tried = {a.name: a for a in attempt_strategies(replace(question(), teacher=ELEMENT_WISE))}
    assert tried["all column_wise"].plan is not None
    costs = [attempt.plan.cost_ms for attempt in tried.values()]
    assert tried["free choice"].plan.cost_ms == min(costs)


def test_ranks_that_do_not_fill_their_hosts_are_refused():
    with pytest.raises(ConfigError, match="6 ranks"):
        find_plan(question(ranks=6, ranks_per_host=4))


def test_a_teacher_that_only_scores_keeps_no_optimizer_and_pays_for_no_backward_pass():
    found = planned(replace(question(types=("row_wise",)), learns=False))
    for load in found.ranks:
        assert load.optimizer_bytes == 0
        assert load.cost.backward_compute == load.cost.backward_comms == 0 < load.cost.forward_comms
    assert found.question.dense_bytes * 4 == question().dense_bytes

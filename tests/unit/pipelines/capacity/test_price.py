"""Prices from known rates: what grows with what, and where a process and a machine are full."""

from __future__ import annotations

import pytest

from pipelines.capacity.price import CORES, MEMORY, Pricing
from pipelines.capacity.rates import TERMS, Constants, EngineRate, Rates, RunRates, engine_seconds
from pipelines.capacity.screen import tables, verdict
from pipelines.core.config.settings import load
from streaming.errors import BadInput

ENGINE = EngineRate(step_s=0.001, flop_s=1e-11, value_s=1e-8)
FREE = ["pace.mode=free", "pace.block_rows=1000", "pace.commit_interval_s=5"]
NOTHING = dict.fromkeys((term.id for term in TERMS), 0.0)
READ, SCORE, COMMIT = (f"augmentation/{name}" for name in ("read, decode, merge, settle", "score", "commit"))


def rates(constants: dict[str, float] | None = None, **cpu_s: float) -> Rates:
    """Rates that are 0 but for those given; labels all become rows."""
    none = dict.fromkeys(Constants.model_fields, 0.0)
    run = RunRates(
        measured="a run",
        cpu_s=NOTHING | cpu_s,
        feedback_per_impression=0.1,
        rows_per_label=1.0,
        shares={"student-feed": 0.5},
        raw_row_bytes=172,
        lake_row_bytes=100.0,
        prediction_row_bytes=10.0,
    )
    engines = dict.fromkeys(("student", "teacher", "scoring"), ENGINE)
    return Rates(measured="here", engines=engines, run=run, constants=Constants(**none | (constants or {})))


def demo(*overrides: str):
    return load("configs/demo.yaml", [*FREE, *overrides])


def priced(known: Rates, impressions: float = 1000, *overrides: str, students: int | None = None, **rates_of: float):
    pricing = Pricing(demo(*overrides), known, students)
    return pricing.price(pricing.workload(impressions, **rates_of), cores=4, memory=1e9)


def events(price) -> dict[tuple[str, str], float]:
    return {(line.worker, line.per): line.events for line in price.lines}


def test_a_worker_takes_events_times_seconds_and_is_full_at_one_core():
    price = priced(rates(**{READ: 100e-6}))
    assert price.workers["augmentation"] == pytest.approx(0.1)
    assert {limit.what: limit.impressions for limit in price.limits} == {
        "augmentation": pytest.approx(10_000, rel=1e-6),
        CORES: pytest.approx(40_000, rel=1e-6),
    }
    assert (price.machines, price.extrapolated) == (1, False)


def test_rows_come_from_impressions_and_those_of_conditional_tasks_from_feedback():
    of = events(priced(rates(), feedback=50))
    assert of["augmentation", "lake row"] == of["teacher", "lake row"] == pytest.approx(1050)
    assert events(priced(rates()))["teacher", "lake row"] == pytest.approx(1100)  # a tenth of them, as measured


def test_a_slow_stream_commits_by_the_clock_and_a_fast_one_by_rows():
    assert events(priced(rates(), 100))["augmentation", "block"] == pytest.approx(1 / 5)
    assert events(priced(rates(), 10_000))["augmentation", "block"] == pytest.approx(11)
    lockstep = events(priced(rates(), 100, "pace.mode=lockstep"))
    assert lockstep["augmentation", "block"] == pytest.approx(0.11) == lockstep["teacher", "version"]


def test_commits_alone_may_fill_a_process_at_any_rate():
    (full, *_) = priced(rates(**{COMMIT: 5.0}), 10).limits
    assert (full.what, full.impressions, full.used) == ("augmentation", 0.0, pytest.approx(1.0))


def test_students_multiply_what_students_cost_and_fill_no_other_process_earlier():
    known = rates(**{"student/build batches, judge": 1e-4, READ: 1e-4})
    one, three = priced(known), priced(known, students=15)
    cores = {line.name: line.cores for line in one.lines if line.worker == "students"}
    thrice = {line.name: line.cores for line in three.lines if line.worker == "students"}
    assert thrice["build batches, judge"] == pytest.approx(3 * cores["build batches, judge"]) != 0
    assert one.workers == three.workers
    assert priced(known, students=0).cores == pytest.approx(0.1)


def test_a_student_that_was_measured_reads_its_share_and_one_of_all_verticals_reads_all():
    workers = priced(rates(**{"student/build batches, judge": 1e-3})).workers
    assert workers["student-feed"] == pytest.approx(1.1 * 0.5)  # as measured
    assert workers["student-shop"] == pytest.approx(1.1 * 0.30)  # as the generated source has it
    assert workers["student-brand"] == pytest.approx(1.1 * (0.45 + 0.17))
    assert workers["student-tablet"] == pytest.approx(1.1)  # a condition of which nothing is known


def test_models_scale_by_their_engines_and_everything_else_does_not():
    known = rates(**{"teacher/learn": 2.0, "teacher/read, build batches": 1e-5, SCORE: 1.0})
    grown = ("teacher.model.layers=4", "teacher.model.width=32")
    small, large = priced(known), priced(known, 1000, *grown)
    ratio = engine_seconds(demo(*grown), known.engines)["teacher"] / engine_seconds(demo(), known.engines)["teacher"]
    of = [{line.name: line.cores for line in p.lines if line.worker == "teacher"} for p in (small, large)]
    assert of[1]["learn"] == pytest.approx(ratio * of[0]["learn"])
    assert of[1]["read, build batches"] == of[0]["read, build batches"]
    assert ratio > 1.5
    assert large.workers["augmentation"] > small.workers["augmentation"]


def test_a_further_teacher_costs_what_it_learns_and_scores():
    known = rates(**{"teacher/learn": 1.0})
    workers = priced(known, 1000, "teachers=[{name: other}]").workers
    alone = engine_seconds(demo("teachers=[{name: other}]"), known.engines)
    assert workers["teacher-other"] == pytest.approx(1100 * alone["teacher-other"])
    assert alone["teacher-other"] > alone["scoring"]


def test_memory_grows_with_what_waits_and_ends_a_machine():
    price = priced(rates({"waiting_bytes": 52, "known_bytes": 41}))
    sizes = {size.name: size.bytes for size in price.memory}
    assert sizes["impressions that wait for their windows"] == pytest.approx(1000 * (21_600 + 10) * 52)
    assert sizes["ids remembered for duplicates"] == pytest.approx(1000 * 21_600 * 41)
    (full,) = price.limits
    models = sum(
        bytes for name, bytes in sizes.items() if "waits" not in name and "wait" not in name and "ids" not in name
    )
    assert (full.what, full.impressions) == (
        MEMORY,
        pytest.approx((1e9 - models) / (21_610 * 52 + 21_600 * 41), rel=1e-4),
    )
    assert price.machines == 3
    assert price.extrapolated


def test_ranks_of_a_student_and_augmentation_workers_are_processes_and_each_rank_holds_the_student():
    def sizes(*overrides: str) -> dict[str, float]:
        return {size.name: size.bytes for size in priced(rates({"process_bytes": 1}), 1000, *overrides).memory}

    partitioned = ("settlement.by=partition", "kafka.impressions.partitions=4", "kafka.feedback.partitions=4")
    one, more = sizes(), sizes("students.0.ranks=3", "augmentation.workers=4", *partitioned)
    held = "students and twins, and their checkpoints on the way"
    assert (one["7 processes"], more["12 processes"]) == (7, 12)
    assert one[held] < more[held] < 3 * one[held]
    assert one.keys() ^ more.keys() == {"7 processes", "12 processes"}


def test_bytes_a_day_follow_rows_and_what_is_bounded_is_bounded():
    disk = {size.name: size for size in priced(rates({"impression_bytes": 50, "feedback_bytes": 20})).disk}
    assert disk["lake"].bytes == pytest.approx(86_400 * 1100 * 100)
    assert disk["input topics"].bytes == pytest.approx(86_400 * (1000 * 50 + 100 * 20))
    bounded = {size.name: size for size in priced(rates(), 1000, "resources.predictions_mb=1").disk}
    assert (bounded["predictions of students"].bytes, bounded["predictions of students"].grows) == (5 * 2**20, False)
    assert disk["predictions of students"].grows


def test_what_no_machine_here_can_check_is_said():
    known = rates(**{READ: 100e-6})
    assert "extrapolated" in verdict(priced(known, 1e6))
    assert "extrapolated" not in verdict(priced(known))
    titles = [table.title for table in tables(priced(known))]
    assert titles == ["cores", "memory", "network, a second", "disk", "where one machine ends"]


@pytest.mark.parametrize(
    "given",
    [{"impressions": 0}, {"impressions": -1}, {"impressions": float("nan")}, {"impressions": 1, "feedback": -1},
     {"impressions": 1, "requests": float("inf")}],
)  # fmt: skip
def test_rates_that_cannot_be_are_refused(given):
    with pytest.raises(BadInput, match="-per-s is"):
        Pricing(demo(), rates()).workload(**given)

"""`exfm bench`: what its figures say, and that its sketches do the work that they stand for."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from statistics import median

import pytest
import torch
from typer.testing import CliRunner

from exfm.errors import ConfigError
from exfm.machine import multiplies_bf16
from pipelines.cli.console import app
from tests.benchmarks.suite.catalogue import CATALOGUE, Entry, chosen, estimated_s, slowness
from tests.benchmarks.suite.limits import SILICON
from tests.benchmarks.suite.measuring import Benchmark, Demand, Work, figure_of, measured, planned_s, rates
from tests.benchmarks.suite.processes import WORKER
from tests.benchmarks.suite.rows import hashing, message_decoding
from tests.benchmarks.suite.shape import BATCH, FEATURES, TABLE_ROWS, TABLES, WIDTH, new_batches
from tests.benchmarks.suite.sketches import TablesSketch
from tests.benchmarks.suite.students import dlrm, dlrm_small
from tests.benchmarks.suite.teachers import FP32, wukong
from tests.support.models.collections import fused
from tests.support.places import ROOT


def spin(times: int):
    return lambda _=None: sum(range(times))


def test_a_ratio_is_the_median_of_those_of_the_runs():
    half = Benchmark("half", "rows / CPU s", Work(spin(1), 1), target=0.5, reference_is="the other")
    figure = figure_of(half, [10.0, 30.0, 20.0], None, [40.0, 40.0, 40.0])
    assert (figure.value, figure.of_reference, figure.ratio, figure.met) == (20.0, 0.5, 0.5, True)
    assert (figure.ratio_low, figure.ratio_high) == (0.25, 0.75)


def test_what_should_be_small_has_its_goal_over_its_value():
    memory = Benchmark("memory", "MB", Work(spin(1), 1), target=1.0, goal=500.0, against="less")
    assert figure_of(memory, [1000.0], None, None).ratio == 0.5
    assert figure_of(memory, [1000.0], None, None).met is False


class SlowClock:
    """A clock by which a call takes so many seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def work(self, name: str, seconds: float) -> Work:
        def call(_: object) -> None:
            self.now += seconds
            self.calls.append(name)
            sum(range(1_000))  # CPU seconds that are not 0

        return Work(call, 1)


def test_works_take_turns_and_the_first_turn_is_not_kept():
    clock = SlowClock()
    turns = rates({name: clock.work(name, 0.3) for name in "ab"}, 2, lambda: clock.now)
    assert clock.calls == ["a", "b", "b", "a", "a", "b"]
    assert [len(each) for each in turns.values()] == [2, 2]


@pytest.mark.check
@pytest.mark.parametrize("seconds", [0.001, 0.1, 0.2, 0.4, 0.6])
def test_the_time_that_is_planned_is_the_time_that_is_taken(seconds):
    clock = SlowClock()
    works = {"slow": clock.work("slow", seconds), "quick": clock.work("quick", 0.01), "even": clock.work("even", 0.25)}
    turns = rates(works, 7, lambda: clock.now)
    assert 1 / 1.5 < clock.now / planned_s(len(works), 7) < 1.5
    assert 3 <= len(turns["slow"]) <= 7


def test_a_batch_is_made_outside_of_what_is_measured():
    works = {"made": Work(spin(100_000), 1, spin(1_000_000)), "there": Work(spin(100_000), 1)}
    turns = rates(works, 3)
    assert median(turns["made"]) > 0.4 * median(turns["there"])  # measured with it: a tenth


def test_no_batch_is_learned_twice():
    new = new_batches(64)
    ids = [new().sparse.values() for _ in range(3)]
    assert not any(torch.equal(a, b) for a, b in pairwise(ids))


def test_twice_the_work_is_half_the_rate():
    twice = Benchmark("twice", "", Work(spin(1_000_000), 1), 0.5, Work(spin(500_000), 1), demand=Demand("copy", 1))
    figure = measured(twice, 5, SILICON)
    assert figure.of_reference is not None
    assert 0.3 < figure.of_reference < 0.8
    assert figure.limit is not None
    assert figure.limit > figure.value


def test_a_limit_is_the_rate_of_the_silicon_over_what_a_unit_asks_of_it():
    work = Work(spin(10_000), 8)
    same = Benchmark("same", "", work, 0.5, demand=Demand("spin", 4.0), against="limit")
    figure = measured(same, 5, {"spin": work})
    assert figure.ratio is not None
    assert 2.5 < figure.ratio < 6.5  # a unit asks for 4 of those that the silicon does as quickly as one


@pytest.mark.parametrize(
    ("make", "forward_products"),
    [
        (dlrm, [13 * 512, 512 * 256, 256 * 64, 64 * 16, 27 * 27 * 16, 367 * 512, 512 * 256, 256]),
        (dlrm_small, [13 * 32, 32 * 16, 27 * 27 * 16, 367 * 64, 64 * 32, 32]),
    ],
)
def test_flops_are_those_of_the_network_that_the_name_says(make, forward_products):
    demand = make().demand
    assert demand is not None
    assert demand.amount == pytest.approx(6 * sum(forward_products), rel=0.05)  # a product, and two of its gradients


def test_the_wukong_is_three_layers_with_a_head_of_512_and_256():
    demand = wukong(FP32).demand
    assert demand is not None
    layers = sum(n * 24 * 512 + 512 * 16 * 16 + 16 * n * (2 * 24 + 16 + (32 if n == 27 else 0)) for n in (27, 32, 32))
    head = 512 * 512 + 512 * 256 + 256
    assert demand.amount == pytest.approx(6 * (13 * 512 + 512 * 16 + layers + head), rel=0.05)


def test_the_tables_of_the_sketch_learn_what_the_tables_of_a_student_do():
    tables, sketch = fused(FEATURES, WIDTH, seed=1), TablesSketch()
    before = torch.cat(list(tables.copies("/weight").values()))
    sketch.weight.copy_(before)
    batch, gradient = new_batches(BATCH)(), torch.randn(BATCH, TABLES * WIDTH)
    looked = tables.lookup(tables.send(batch))
    ids, e = sketch.look_up(batch)
    assert torch.equal(looked.pooled.view(e.shape), e)
    tables.learn(looked, gradient.clone())
    sketch.learn(ids, gradient)
    after = torch.cat(list(tables.copies("/weight").values()))
    assert len(after) == TABLES * TABLE_ROWS
    assert not torch.equal(after, before)
    assert torch.allclose(sketch.weight, after, atol=1e-6)


def test_the_command_prints_every_field_that_scripts_read():
    program = "from pipelines.cli.entry import main; main()"
    words = [sys.executable, "-c", program, "bench", "machine", "--runs", "1", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {"name", "value", "unit", "limit", "ratio", "target", "reference", "command"} <= set(figures[0])
    bf16 = ["gemm-bf16"] if multiplies_bf16() else []
    assert [figure["name"] for figure in figures] == ["gemm-fp32", *bf16, "copy", "loopback", "disk"]
    assert all(figure["value"] > 0 for figure in figures)
    assert "measuring takes about" in done.stderr.splitlines()[0]


def test_without_a_checkout_the_command_says_where_the_benchmarks_are(monkeypatch, tmp_path):
    monkeypatch.setattr("pipelines.cli.machine.__file__", str(tmp_path / "a" / "b" / "machine.py"))
    done = CliRunner().invoke(app, ["bench"])
    assert "in a checkout" in str(done.exception)


def test_a_benchmark_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ConfigError, match="unknown benchmark `speed`; choose from machine, student-dlrm"):
        chosen("speed")


def test_a_name_means_itself_else_those_that_begin_so():
    assert list(chosen("student-dlrm")) == ["student-dlrm"]
    assert list(chosen("student-d")) == ["student-dlrm", "student-dlrm-small"]
    assert list(chosen(None)) == list(CATALOGUE)


def test_the_worker_whose_start_is_measured_is_there():
    names: dict[str, object] = {}
    exec(WORKER, names)
    assert callable(names["StudentWorker"])


def test_what_keeps_memory_comes_after_what_does_not():
    keeping = [entry.keep_memory for entry in CATALOGUE.values()]
    assert keeping == sorted(keeping)
    assert any(keeping)


def test_bf16_is_skipped_in_words_where_the_processor_has_none(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.suite.catalogue.multiplies_bf16", lambda: False)
    assert "no instructions for bf16" in str(CATALOGUE["teacher-wukong-bf16"].missing)
    assert CATALOGUE["teacher-wukong"].missing is None
    few = {name: CATALOGUE[name] for name in ("teacher-wukong", "teacher-wukong-bf16")}
    assert estimated_s(few, 7) == estimated_s({"teacher-wukong": few["teacher-wukong"]}, 7)


def test_an_estimate_grows_with_runs_and_works():
    few, many = Entry(lambda runs: [], works=1), Entry(lambda runs: [], works=3)
    assert few.seconds(3, 1) < few.seconds(7, 1) < many.seconds(7, 1) < many.seconds(7, 2)
    assert many.seconds(7, 2) - many.seconds(7, 1) == many.fixed_s  # turns end by the clock, on every machine


def test_calls_that_are_longer_than_a_turn_are_estimated_by_their_length():
    clock = SlowClock()
    works = {name: clock.work(name, 2.0) for name in "abc"}
    rates(works, 7, lambda: clock.now)
    entry = Entry(lambda runs: [], works=3, fixed_s=0.0, call_s=3.0)
    assert 1 / 1.5 < clock.now / entry.seconds(7, slowness(12.0)) < 1.5


def test_messages_of_both_codecs_and_ids_of_both_kinds_are_made_what_is_measured():
    for benchmark in (message_decoding("arrow"), message_decoding("json"), hashing("integers"), hashing("strings")):
        assert benchmark.reference is not None
        for work in (benchmark.work, benchmark.reference):
            work.call(work.prepare())
        assert benchmark.work.units == benchmark.reference.units

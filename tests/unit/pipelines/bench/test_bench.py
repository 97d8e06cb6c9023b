"""`exfm bench`: what its figures say, and that its sketches do the work that they stand for."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from exfm.embeddings.fused import FusedTables
from exfm.errors import ConfigError
from pipelines.bench.benchmark import Benchmark, Demand, figure_of, measured
from pipelines.bench.catalogue import measure
from pipelines.bench.figures import Work, rates
from pipelines.bench.rows import hashing, message_decoding
from pipelines.bench.shape import BATCH, FEATURES, TABLE_ROWS, TABLES, WIDTH, batches
from pipelines.bench.sketches import TablesSketch
from pipelines.cli.console import app


def spin(times: int):
    return lambda: sum(range(times))


def test_a_ratio_is_the_median_of_those_of_the_runs():
    half = Benchmark("half", "rows / CPU s", Work(spin(1), 1), target=0.5, reference_is="the other")
    figure = figure_of(half, [10.0, 30.0, 20.0], None, [40.0, 40.0, 40.0])
    assert (figure.value, figure.of_reference, figure.ratio, figure.met) == (20.0, 0.5, 0.5, True)
    assert (figure.ratio_low, figure.ratio_high) == (0.25, 0.75)


def test_what_should_be_small_has_its_goal_over_its_value():
    memory = Benchmark("memory", "MB", Work(spin(1), 1), target=1.0, goal=500.0, against="less")
    assert figure_of(memory, [1000.0], None, None).ratio == 0.5
    assert figure_of(memory, [1000.0], None, None).met is False


def test_works_take_turns_and_the_first_turn_is_not_kept():
    order: list[str] = []
    works = {name: Work(lambda name=name: (order.append(name), spin(10_000)()), 1) for name in "ab"}
    found = rates(works, 2)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [len(each) for each in found.values()] == [2, 2]


def test_twice_the_work_is_half_the_rate():
    twice = Benchmark("twice", "", Work(spin(1_000_000), 1), 0.5, Work(spin(500_000), 1), demand=Demand(bytes=1))
    figure = measured(twice, 5)
    assert figure.of_reference is not None
    assert 0.3 < figure.of_reference < 0.8
    assert figure.limit is not None
    assert figure.limit > figure.value


def test_the_tables_of_the_sketch_learn_what_the_tables_of_a_student_do():
    fused, sketch = FusedTables.drawn(FEATURES, WIDTH, seed=1, lr=0.1, eps=1e-8), TablesSketch()
    before = torch.cat(list(fused.weights.values()))
    sketch.weight.copy_(before)
    (batch, *_), gradient = batches(BATCH), torch.randn(BATCH, TABLES * WIDTH)
    looked = fused(batch.sparse)
    ids, e = sketch.look_up(batch)
    assert torch.equal(looked.pooled.view(e.shape), e)
    fused.learn(looked, gradient)
    sketch.learn(ids, gradient)
    after = torch.cat(list(fused.weights.values()))
    assert len(after) == TABLES * TABLE_ROWS
    assert not torch.equal(after, before)
    assert torch.allclose(sketch.weight, after, atol=1e-6)


def test_the_command_prints_every_field_that_scripts_read():
    done = CliRunner().invoke(app, ["bench", "machine", "--runs", "1", "--json"])
    figures = json.loads(done.stdout)
    assert {"name", "value", "unit", "limit", "ratio", "target", "reference", "command"} <= set(figures[0])
    assert [figure["name"] for figure in figures] == ["gemm-fp32", "gemm-bf16", "copy", "loopback", "disk"]
    assert all(figure["value"] > 0 for figure in figures)


def test_a_benchmark_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ConfigError, match="no benchmark `speed`; there are: machine, student-step"):
        next(measure("speed", 1))


def test_messages_of_both_codecs_and_ids_of_both_kinds_are_made_what_is_measured():
    for benchmark in (message_decoding("arrow"), message_decoding("json"), hashing("integers"), hashing("strings")):
        assert benchmark.reference is not None
        benchmark.work.call()
        benchmark.reference.call()
        assert benchmark.work.units == benchmark.reference.units

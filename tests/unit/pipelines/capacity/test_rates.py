"""Rates of a finished run, and the shipped table."""

from __future__ import annotations

import json

import pytest

from pipelines.capacity.price import Pricing
from pipelines.capacity.rates import TERMS, read_rates, shipped_rates
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.report.results.stored import read_summary
from streaming.errors import BadInput
from streaming.store.files import write_json
from tests.support.pipelines.small_runs import SNAPSHOTS, finished_once, small


@pytest.fixture
def run(broker, tmp_path) -> RunDir:
    finished_once(small, broker.bootstrap_servers, tmp_path / "run", **SNAPSHOTS)
    return RunDir(tmp_path / "run")


def test_a_run_priced_at_its_own_rates_takes_what_it_took(run):
    summary, rates = read_summary(run), read_rates(run)
    counts, wall_s = summary.counts, summary.run.wall_s
    pricing = Pricing(load(run.config), rates)
    price = pricing.price(pricing.workload(counts.impressions_read / wall_s, counts.feedback_read / wall_s), 1, 1e9)
    took = {name: sum(worker.cpu_s.values()) for name, worker in summary.workers.items()}
    lake = next(line.events for line in price.lines if line.per == "lake row")
    assert lake * wall_s == pytest.approx(counts.lake_rows)
    # Blocks and checkpoints of a run this short are more than its length tells; a teacher's rows are not.
    of_teacher = [line for line in price.lines if line.worker == "teacher" and line.per == "lake row"]
    learned = took["teacher"] - summary.workers["teacher"].cpu_s["checkpoint"]
    assert sum(line.cores for line in of_teacher) * wall_s == pytest.approx(learned, rel=1e-3)


def test_a_run_without_cpu_seconds_or_without_results_is_refused(run):
    value = json.loads(run.summary.read_text())
    for worker in value["workers"].values():
        worker.pop("cpu_s", None)
    write_json(run.summary, value)
    with pytest.raises(BadInput, match="measure one anew"):
        read_rates(run)
    run.summary.unlink()
    with pytest.raises(BadInput, match="no results yet"):
        read_rates(run)


def test_the_shipped_table_has_every_term_and_says_what_it_was_measured_on():
    rates = shipped_rates()
    assert rates.run.cpu_s.keys() == {term.id for term in TERMS}
    assert all(seconds > 0 for seconds in rates.run.cpu_s.values())
    assert "configs/demo.yaml" in rates.run.measured
    assert "cores" in rates.measured

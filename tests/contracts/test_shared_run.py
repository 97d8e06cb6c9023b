"""A run whose students share a process is, to the bit, the run in which each has its own."""

from __future__ import annotations

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from tests.support.pipelines.small_runs import Finished, assert_same_run, small, to_the_end

pytestmark = pytest.mark.check


@pytest.mark.ray
@pytest.mark.broker
def test_a_run_is_the_same_to_the_bit_whoever_shares_a_process(broker, tmp_path):
    stream = {"source__impressions": 2500, "pace__block_rows": 512}
    alone = to_the_end(small(broker.bootstrap_servers, **stream), tmp_path / "alone")
    config = small(broker.bootstrap_servers, **stream, resources__students_per_host=3)
    run_dir = RunDir(tmp_path / "shared")
    status, _ = run(config, run_dir, until_end=True)
    assert status.state is RunState.DONE, status.reason
    pids = {
        worker.report.pid for name, worker in status.workers.items() if name.startswith("student-") and worker.report
    }
    assert len(pids) == 1
    assert_same_run(Finished(config, run_dir.root), alone)
    assert {path.name for path in run_dir.logs.glob("student-*.log")} == {
        "student-feed.log", "student-brand.log", "student-clicks.log",
    }  # fmt: skip

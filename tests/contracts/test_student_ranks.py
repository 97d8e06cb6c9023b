"""A student as several processes: it learns what one would, and notices where they do not hold one student."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from exfm.errors import ModelError
from pipelines.core.config.settings import Config
from pipelines.live.training.predictions import read_predictions
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.live.workers.worker import Orders
from streaming.ports import free_port
from tests.support.pipelines.small_runs import Finished, everything, finished_once
from tests.support.ranks.teacher_ranks import new_run, seen_from

pytestmark = pytest.mark.broker

RANK = """
import json, sys
from pathlib import Path
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.student.further_rank import StudentRank
from pipelines.live.workers.worker import Orders
config, (name, rank, ranks, port) = parse(json.loads(sys.argv[2])), json.loads(sys.argv[3])
worker = StudentRank(config, config.student(name), RunDir(Path(sys.argv[1])), Rendezvous(rank, ranks, port=port))
worker.open()
report = worker.advance(0.0, Orders())
print(json.dumps([report.own_rows, sorted(report.phases_s)]))
worker.close()
"""
ROUND_S = 200.0


@pytest.fixture(autouse=True)
def no_group_is_open():
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory) -> Finished:
    """Its students were one process each."""
    return finished_once(
        everything, broker.bootstrap_servers, tmp_path_factory.mktemp("one") / "run", source__impressions=3000
    )


def of_ranks(config: Config, name: str, ranks: int, **changes: object) -> Config:
    students = [s.model_copy(update={"ranks": ranks}) if s.name == name else s for s in config.students]
    return config.model_copy(update={"students": tuple(students), **changes})


def learned(finished: Finished, root: Path, name: str, ranks: int, others: Config | None = None) -> Report:
    """The student's last report, after so many ranks have learned the lake to its end under `root`, in one round.
    `others`: the config of ranks beyond the first, where it is another."""
    run_dir, port, config = new_run(finished, root), free_port(), of_ranks(finished.config, name, ranks)
    asked = json.dumps((others or config).model_dump(mode="json"))
    command = [sys.executable, "-W", "ignore", "-c", RANK, str(root), asked]
    further = [
        subprocess.Popen([*command, json.dumps([name, rank, ranks, port])], stdout=subprocess.PIPE, text=True)
        for rank in range(1, ranks)
    ]
    worker = StudentWorker(config, config.student(name), run_dir, Rendezvous(0, ranks, port=port))
    try:
        worker.open()
        report = worker.advance(ROUND_S, Orders(end_seq=finished.lake.num_rows - 1))
        for process in further:
            rows, phases = json.loads(process.communicate(timeout=60)[0])
            assert rows == report.rows
            assert {"wait for orders", "wait for ranks", "train"} <= set(phases)
        worker.close()
        return report
    finally:
        worker.abandon()
        for process in further:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("brand", 2), pytest.param("clicks", 3, marks=pytest.mark.slow), pytest.param("feed", 2, marks=pytest.mark.slow)],
)
def test_ranks_learn_what_one_process_learns_but_for_rounding(finished, tmp_path, name, ranks):
    report = learned(finished, tmp_path / "ranks", name, ranks)
    assert report.done
    other = seen_from(finished, tmp_path / "ranks")
    (one, meta), (several, other_meta) = (run.checkpoint(f"student-{name}") for run in (finished, other))
    for key in ("lake_seq", "config_hash", "learned", "trained_rows", "quarantine", "rows", "other_rows"):
        assert meta[key] == other_meta[key], key
    assert one.keys() - several.keys() <= {key for key in one if key.startswith("registry")}
    for key in one.keys() & several.keys():
        if key.startswith(("student/dense", "student/table", "no_teacher/dense")):
            a, b = (np.frombuffer(state[key], np.float32) for state in (one, several))
            assert np.abs(a - b).max(initial=0) < 1e-4, key
    assert any(one[key] != several[key] for key in one.keys() & several.keys())
    predictions = [read_predictions(run.run_dir.predictions(name)) for run in (finished, other)]
    assert predictions[0]["lake_seq"].equals(predictions[1]["lake_seq"])


def test_ranks_that_hold_different_weights_are_found_out_before_they_are_saved(finished, tmp_path):
    others = of_ranks(finished.config, "feed", 2, seed=99)
    with pytest.raises(ModelError, match="the ranks of student-feed hold different weights"):
        learned(finished, tmp_path / "ranks", "feed", 2, others)
    assert not list((tmp_path / "ranks" / "checkpoints" / "student-feed").glob("v*"))

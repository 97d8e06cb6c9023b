"""Series of MLflow: whatever a run or a replay writes is a line of the catalogue, and every line is of something."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import patch

import pytest

from exfm.distillation.arm import Arm
from exfm.metrics.paired import PairedGain
from pipelines.core.config.sections import Tracking
from pipelines.lab.report import outcome
from pipelines.live.training.freshness import LogHistogram, figures_of
from pipelines.live.training.live_metrics import TaskMetrics
from pipelines.report.results.figures import ModelFigures, TaskFigures, WindowFigures
from pipelines.report.results.summary import final_metrics
from pipelines.track.catalogue import MLFLOW, RUN
from tests.support.models.students import student
from tests.support.pipelines.mlflow_stores import lines_of
from tests.support.pipelines.reports import report

ARMS = [Arm(recalibration="residuals", residuals_by={"user": 10}), Arm(adapter=True, follows="advantage")]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Names of all series, from those who write them."""
    spread = LogHistogram().as_json() | {"p50": 1.0, "p95": 2.0}
    model, gain = (
        ModelFigures(ne=0.9, auc=0.7, log_loss=0.1, calibration=1.0, gauc=0.6),
        PairedGain(2.1, 1.8, 2.4, 0.15, clusters=900, rows=99_999, positives=12_345, too_few=None),
    )
    half = WindowFigures(rows=9, positives=5, student=model, no_teacher=model, gain=gain, transfer_ratio=0.4)
    with patch.object(outcome, "Tracker") as tracker:
        config = SimpleNamespace(name="small", tracking=Tracking(uri="sqlite:///unused"))
        workspace = SimpleNamespace(config=config, folder=tmp_path_factory.mktemp("replay"))
        outcome.track(workspace, "replay", report(), [])
    (replayed,) = tracker.return_value.metrics.call_args_list
    return [
        *TaskMetrics(["ctr"]).values(),
        *(name for arm in ARMS for name in student(arm_of=arm).correction_figures()),
        *dict(figures_of(dict.fromkeys(("learned_to_logit_s", "behind_rows", "behind_s"), spread))),
        *final_metrics("ctr", TaskFigures(rows=18, positives=9, last_half=half)),
        *replayed.args[2],
    ]


def test_every_series_has_one_line_and_every_line_a_series(written):
    found = {name: [line.name for line in lines_of(name)] for name in written}
    assert {name: lines for name, lines in found.items() if len(lines) != 1} == {}
    assert {line for (line,) in found.values()} == {line.name for line in MLFLOW}


def test_a_line_that_names_a_metric_names_one_of_a_run_with_its_unit():
    metrics = {metric.name for metric in RUN}
    for line in MLFLOW:
        assert line.meaning.endswith(".")
        if line.metric:
            assert line.metric in metrics
            assert line.metric.endswith(f"_{line.unit}")

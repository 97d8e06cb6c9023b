"""What a replay leaves besides its report: figures and files in a real MLflow store."""

from __future__ import annotations

from types import SimpleNamespace

from pipelines.core.config.sections import Tracking
from pipelines.lab.report.outcome import track
from tests.support.pipelines.reports import report


def test_a_store_that_the_config_names_has_the_figures_and_files(tmp_path):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    page = tmp_path / "report.html"
    page.write_text("<!doctype html>")
    config = SimpleNamespace(name="small", tracking=Tracking(uri=uri, interval_s=0.2))
    track(SimpleNamespace(config=config, folder=tmp_path), "replay", report(), [page])
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert run.data.metrics["ctr/gain_value"] == 0.5
    assert run.data.params["command"] == "exfm replay spec.yaml"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["report.html"]


def test_without_a_store_nothing_is_tracked(tmp_path):
    config = SimpleNamespace(name="small", tracking=Tracking())
    track(SimpleNamespace(config=config, folder=tmp_path), "replay", report(), [])
    assert list(tmp_path.iterdir()) == []

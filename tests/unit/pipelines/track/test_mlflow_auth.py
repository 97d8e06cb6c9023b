"""An MLflow server that asks for a user and a password, or a token: they come from the environment, and stay there."""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipelines.core.config.settings import load
from pipelines.track.mlflow import RegisteredModels, Tracker
from streaming.errors import BadInput, StreamingError
from tests.support.http_servers import served
from tests.support.waiting import PATIENCE_S

USER, PASSWORD = "exfm", "s3cret-of-mlflow"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
ANSWERS = {
    "experiments/get-by-name": {"experiment": {"experiment_id": "1", "name": "test", "lifecycle_stage": "active"}},
    "runs/create": {"run": {"info": {"run_id": "r1", "experiment_id": "1"}, "data": {}}},
    "runs/get": {"run": {"info": {"run_id": "r1", "experiment_id": "1"}, "data": {}}},
    "registered-models/search": {"registered_models": []},
}
"""What MLflow's client needs of a server, by the end of the path."""


class Guarded(ThreadingHTTPServer):
    """The part of MLflow's REST interface that a run's metrics take, for those who have `wanted`."""

    daemon_threads = True

    def __init__(self, wanted):
        self.paths, self.refused = [], 0
        server = self

        class Request(BaseHTTPRequestHandler):
            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.partition("?")[0].partition("/mlflow/")[2]
                allowed = self.headers.get("Authorization") == wanted
                server.refused += not allowed
                if allowed:
                    server.paths.append(path)
                body = json.dumps(ANSWERS.get(path, {}) if allowed else {"message": "You are not authenticated."})
                self.send_response(200 if allowed else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def do_POST(self):
                self.do_GET()

            def do_PATCH(self):
                self.do_GET()

            def log_message(self, format, *values):
                pass

        super().__init__(("127.0.0.1", 0), Request)

    @property
    def uri(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


def guarded(wanted):
    return served(Guarded(wanted))


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    for name in ("USERNAME", "PASSWORD", "TOKEN"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)


def tracked(uri, root):
    tracker = Tracker(uri, root / "artifacts", "test", root / "runs.json", 0.1, settings_wait_s=0.1)
    tracker.params("teacher", {"lr": 0.1})
    tracker.metrics("teacher", 1, {"ne": 0.9})
    tracker.close(PATIENCE_S)
    return tracker


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": PASSWORD}, BASIC),
        ({"MLFLOW_TRACKING_TOKEN": PASSWORD}, f"Bearer {PASSWORD}"),
    ],
)
def test_what_the_environment_has_is_sent_and_written_nowhere(environment, wanted, tmp_path, monkeypatch, caplog):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with guarded(wanted) as server:
        tracker = tracked(server.uri, tmp_path)
        assert (tracker.problem, tracker.dropped, server.refused) == (None, 0, 0)
        assert {"runs/create", "runs/log-batch"} <= set(server.paths)
        assert RegisteredModels(server.uri).names() == []
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()) + caplog.text.encode()
    assert PASSWORD.encode() not in kept
    assert BASIC.partition(" ")[2].encode() not in kept


def test_a_wrong_password_costs_metrics_and_is_in_no_message(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", USER)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wr0ng-of-mlflow")
    with guarded(BASIC) as server:
        tracker = tracked(server.uri, tmp_path)
        assert server.refused
        assert server.paths == []
        assert "not authenticated" in (tracker.problem or "")
        with pytest.raises(BadInput, match="not authenticated") as refused:
            RegisteredModels(server.uri).names()
    assert "wr0ng" not in caplog.text + str(tracker.problem) + str(refused.value)


@pytest.mark.parametrize("uri", ["http://exfm:s3cret-of-mlflow@mlflow:5000", "postgresql://m:s3cret-of-mlflow@db/m"])
def test_a_password_in_the_address_is_refused_and_not_quoted(uri):
    with pytest.raises(BadInput, match="MLFLOW_TRACKING_PASSWORD") as refused:
        load("configs/demo.yaml", [f"tracking.uri={uri}"])
    assert PASSWORD not in str(refused.value)


def test_a_password_in_the_address_of_a_registry_is_in_no_message():
    with guarded("nobody's") as server, pytest.raises(BadInput, match="cannot be read") as refused:
        RegisteredModels(server.uri.replace("://", f"://{USER}:{PASSWORD}@")).names()
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    "call", [lambda of, to: of.version("ads", "champion", None), lambda of, to: of.files("ads", 1, to)]
)
def test_nor_is_it_where_nobody_answers(call, tmp_path):
    with pytest.raises(StreamingError, match="cannot be read") as failed:
        call(RegisteredModels(f"http://{USER}:{PASSWORD}@127.0.0.1:1"), tmp_path)
    assert PASSWORD not in str(failed.value)
    assert failed.value.__cause__ is None

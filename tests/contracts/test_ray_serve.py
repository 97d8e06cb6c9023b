"""The server as a Ray Serve deployment: `serve run` on a Ray of its own, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from streaming.errors import BadInput
from streaming.ports import free_port
from tests.support.pipelines.served_runs import ROWS, promote, run_with_versions
from tests.support.pipelines.serving_command import predicted
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S, eventually

pytest.importorskip("grpc", reason="Ray Serve is not installed: make setup")

from pipelines.serve.ray_serve import RaySettings, application

V1, V2 = "v00000100", "v00000200"


def ask(port: int, body: object) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/v1/models/feed:predict", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@contextmanager
def on_ray(root: Path, folder: Path) -> Iterator[int]:
    """`serve run` with a file of Ray Serve; the port once it answers."""
    port = free_port()
    app = {
        "name": "students",
        "route_prefix": "/",
        "import_path": "pipelines.serve.ray_serve:application",
        "args": {"run_dir": str(root), "names": "feed"},
    }
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump({"http_options": {"host": "127.0.0.1", "port": port}, "applications": [app]}))
    own = {"RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    said = (folder / "serve.log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.serve.scripts", "run", str(file)],
        env=os.environ | own, cwd=folder, stdout=said, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        log = folder / "serve.log"
        eventually(lambda: process.poll() is not None or ready(port), log.read_text, look_s=0.2)
        assert process.poll() is None, log.read_text()
        yield port
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    finally:
        said.close()
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
        process.wait()


def ready(port: int) -> bool:
    try:
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).status == 200)
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.ray
def test_a_deployment_answers_as_the_server_does_and_swaps_without_a_failed_request(tmp_path):
    ledger = run_with_versions(tmp_path / "run", V1, V2)
    known = {version: predicted(tmp_path / "run", version) for version in (V1, V2)}
    answers: Counter[tuple[int, str, bool]] = Counter()
    over = threading.Event()
    with on_ray(tmp_path / "run", tmp_path) as port:

        def load() -> None:
            while not over.is_set():
                code, said = ask(port, {"rows": ROWS})
                own = [row["ctr"] for row in said.get("predictions", ())] == known.get(said.get("version", ""))
                answers[code, said.get("version", ""), own] += 1

        thread = threading.Thread(target=load)
        thread.start()
        for version in (V2, V1, V2):
            promote(ledger, version)
            eventually(lambda version=version: ask(port, {"rows": ROWS})[1]["version"] == version, look_s=0.05)
        over.set()
        thread.join()
        code, said = ask(port, {"rows": [{"user_id": -3, "ad_id": 1, "bid": 0.1}]})
        assert (code, said["refused"][0]["why"]) == (422, "`user_id` is -3; allowed: at least 0")
    assert set(answers) == {(200, V1, True), (200, V2, True)}


def test_what_cannot_be_served_is_refused_before_a_replica_starts(tmp_path):
    run_with_versions(tmp_path, V1)
    with pytest.raises(BadInput, match=r"no student of .* is named `fed`; did you mean `feed`"):
        application({"run_dir": tmp_path, "names": "fed"})
    with pytest.raises(BadInput, match="follow=live serves fp32"):
        application({"run_dir": tmp_path, "follow": "live", "tables": "int8"})
    with pytest.raises(ValueError, match="run_folder"):
        application({"run_folder": str(tmp_path)})


def test_settings_reach_the_replicas(tmp_path):
    run_with_versions(tmp_path, V1)
    asked = {"run_dir": str(tmp_path), "names": "feed, shop", "max_rows": "7"}  # texts, as the command gives them
    found = RaySettings.model_validate(asked).serving()
    assert (found.names, found.limits.max_rows) == (("feed", "shop"), 7)
    assert application(asked) is not None

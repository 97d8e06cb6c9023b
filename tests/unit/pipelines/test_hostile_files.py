"""Files of somebody who may write into a run directory or a registry: they can be refused or be wrong numbers, and none
of their code runs."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO

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
from pipelines.track.registry.ledger import Ledger
from streaming.errors import StreamingError
from tests.support.hostile_pickle import unread_pickle
from tests.support.models.served_students import save_student
from tests.support.pipelines.served_runs import run_with_versions


@pytest.fixture
def hostile(tmp_path):
    """The bytes of a pickle. No test may have it read."""
    with unread_pickle(tmp_path) as payload:
        yield payload


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

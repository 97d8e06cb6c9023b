import json
import os
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exfm.errors import ModelError, OtherFormat
from exfm.snapshots import checkpoint
from exfm.snapshots.checkpoint import (
    checkpoint_names,
    latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from exfm.snapshots.manifest import read_manifest
from exfm.snapshots.named import check_fit

TENSORS = {
    "b": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
    "a": torch.tensor(7, dtype=torch.int64),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.empty(0, 4),
}
META = {"lake_seq": 41, "positions": {"0": [1, 2]}}


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_what_is_saved_comes_back_with_every_bit_type_and_shape(tmp_path):
    stored = load_checkpoint(save_checkpoint(tmp_path, "v1", TENSORS, META, kind="snapshot"))
    assert stored.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert stored.tensors[name].dtype == tensor.dtype
        assert torch.equal(stored.tensors[name], tensor)
    assert (stored.meta, stored.kind, stored.parent) == (META, "snapshot", None)


def test_nan_and_denormals_survive(tmp_path):
    odd = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-42])
    stored = load_checkpoint(save_checkpoint(tmp_path, "v1", {"odd": odd}, {})).tensors["odd"]
    assert torch.equal(stored.view(torch.int32), odd.view(torch.int32))


def test_views_are_stored_as_what_they_show(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    stored = load_checkpoint(save_checkpoint(tmp_path, "v1", {"t": base.t(), "column": base[:, 1]}, {})).tensors
    assert torch.equal(stored["t"], base.t())
    assert torch.equal(stored["column"], base[:, 1])


def test_the_same_content_makes_the_same_bytes(tmp_path):
    one = save_checkpoint(tmp_path / "x", "v1", TENSORS, META)
    two = save_checkpoint(tmp_path / "y", "v1", dict(reversed(TENSORS.items())), dict(reversed(META.items())))
    assert contents(one) == contents(two)


def test_saving_the_same_again_changes_nothing(tmp_path):
    path = save_checkpoint(tmp_path, "v1", TENSORS, META)
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    assert save_checkpoint(tmp_path, "v1", TENSORS, META) == path
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["v1"]


@pytest.mark.parametrize("change", ["tensors", "meta", "kind"])
def test_a_name_is_never_used_again_with_other_content(tmp_path, change):
    path = save_checkpoint(tmp_path, "v1", TENSORS, META)
    before = contents(path)
    other = {"tensors": TENSORS | {"a": torch.tensor(8)}, "meta": META | {"lake_seq": 42}}
    with pytest.raises(ModelError, match="`v1` exists with other content"):
        save_checkpoint(
            tmp_path,
            "v1",
            other["tensors"] if change == "tensors" else TENSORS,
            other["meta"] if change == "meta" else META,
            kind="snapshot" if change == "kind" else "checkpoint",
        )
    assert contents(path) == before


@pytest.mark.parametrize("dies_at", ["tensors.bin", "manifest.json", "rename"])
def test_a_writer_that_dies_leaves_nothing_to_load_and_the_next_one_sweeps_up(tmp_path, monkeypatch, dies_at):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: None)  # a killed process cleans nothing up
        if dies_at == "rename":
            patch.setattr(checkpoint, "move", killed)
        else:
            patch.setattr(checkpoint, "_write" if dies_at == "manifest.json" else "write_part", killed)
        with pytest.raises(Killed):
            save_checkpoint(tmp_path, "v1", TENSORS, META)
    assert len(list(tmp_path.iterdir())) == 1
    assert checkpoint_names(tmp_path) == []
    assert latest_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, "v1", TENSORS, META)
    assert [p.name for p in tmp_path.iterdir()] == ["v1"]


def test_latest_is_the_last_by_name(tmp_path):
    assert latest_checkpoint(tmp_path / "absent") is None
    for name in ("v00000002", "v00000010", "v00000001"):
        save_checkpoint(tmp_path, name, {}, {})
    assert latest_checkpoint(tmp_path).name == "v00000010"
    assert checkpoint_names(tmp_path) == ["v00000001", "v00000002", "v00000010"]


def test_pruning_keeps_the_last_and_whole_ones(tmp_path):
    for name in ("v1", "v2", "v3"):
        save_checkpoint(tmp_path, name, TENSORS, META)
    prune_checkpoints(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v2", "v3"]
    assert load_checkpoint(tmp_path / "v2").meta == META


def test_truncated_tensors_are_told_with_both_sizes(tmp_path):
    path = save_checkpoint(tmp_path, "v1", TENSORS, META)
    size = (path / "tensors.bin").stat().st_size
    (path / "tensors.bin").write_bytes((path / "tensors.bin").read_bytes()[:-1])
    with pytest.raises(ModelError, match=f"truncated: tensors.bin has {size - 1} bytes, its manifest says {size}"):
        load_checkpoint(path)


def test_altered_tensors_are_told(tmp_path):
    path = save_checkpoint(tmp_path, "v1", TENSORS, META)
    data = bytearray((path / "tensors.bin").read_bytes())
    data[-1] ^= 1
    (path / "tensors.bin").write_bytes(data)
    with pytest.raises(ModelError, match="`v1` was altered"):
        load_checkpoint(path)


def test_lost_and_damaged_files_are_told(tmp_path):
    path = save_checkpoint(tmp_path, "v1", TENSORS, META)
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest[:50])
    with pytest.raises(ModelError, match="damaged manifest"):
        load_checkpoint(path)
    (path / "manifest.json").unlink()
    with pytest.raises(ModelError, match="nothing was saved there whole"):
        load_checkpoint(path)
    (path / "manifest.json").write_text(manifest)
    (path / "tensors.bin").unlink()
    with pytest.raises(ModelError, match=r"lost its file tensors\.bin"):
        load_checkpoint(path)


@pytest.mark.parametrize("version", [2, 4])
def test_another_format_is_refused_with_both_versions_and_not_taken_for_damaged(tmp_path, version):
    path = save_checkpoint(tmp_path, "v1", TENSORS, META)
    manifest = read_manifest(path) | {"format_version": version}
    (path / "manifest.json").write_text(json.dumps(manifest))
    for asked in (lambda: load_checkpoint(path), lambda: save_checkpoint(tmp_path, "v1", TENSORS, META)):
        with pytest.raises(
            OtherFormat, match=rf"has format version {version}, this ExFM reads 3; .* that wrote it, or .* --fresh"
        ):
            asked()
    assert [p.name for p in tmp_path.iterdir()] == ["v1"]


DAMAGES = {
    "truncated": lambda path: (path / "tensors.bin").write_bytes((path / "tensors.bin").read_bytes()[:-3]),
    "a bit of a tensor": lambda path: flip(path / "tensors.bin"),
    "no tensors": lambda path: (path / "tensors.bin").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "empty manifest": lambda path: (path / "manifest.json").write_bytes(b""),
    "not a manifest": lambda path: (path / "manifest.json").write_text("[1, 2]"),
    "nothing in it": lambda path: (path / "manifest.json").write_text('{"format_version": 3}'),
    "a digit of the position": lambda path: edit(path / "manifest.json", b'"lake_seq": 41', b'"lake_seq": 47'),
    "a place in the index": lambda path: edit(path / "manifest.json", b'"offset": 8', b'"offset": 9'),
}


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)


def edit(file, old, new):
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_told_set_aside_and_can_be_written_again(tmp_path, damage):
    path = save_checkpoint(tmp_path, "v1", TENSORS, META)
    whole = contents(path)
    DAMAGES[damage](path)
    with pytest.raises(ModelError):
        load_checkpoint(path)
    assert save_checkpoint(tmp_path, "v1", TENSORS, META) == path
    assert contents(path) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == [".damaged-v1", "v1"]
    assert checkpoint_names(tmp_path) == ["v1"]


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_whichever_byte_of_a_checkpoint_changes_it_is_noticed(place, change):
    with tempfile.TemporaryDirectory() as root:
        path = save_checkpoint(root, "v1", TENSORS, META)
        files = [path / "manifest.json", path / "tensors.bin"]
        sizes = [file.stat().st_size for file in files]
        place %= sum(sizes)
        file, at = (files[0], place) if place < sizes[0] else (files[1], place - sizes[0])
        data = bytearray(file.read_bytes())
        data[at] ^= change
        file.write_bytes(data)
        try:
            stored = load_checkpoint(path)
        except ModelError:
            return
        # White space may have become other white space; nothing that is read may have changed.
        assert stored.meta == META
        assert all(torch.equal(stored.tensors[name], tensor) for name, tensor in TENSORS.items())


def test_a_tensor_type_that_cannot_be_stored_is_told(tmp_path):
    with pytest.raises(ModelError, match="tensor `z` is complex64"):
        save_checkpoint(tmp_path, "v1", {"z": torch.zeros(1, dtype=torch.complex64)}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_state_must_fit_by_name_and_shape():
    model = {"a": torch.Size([2]), "b": torch.Size([3])}
    check_fit(model, {"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(ModelError, match=r"1 of 2 tensors .* `b`, is \(4,\) in the state and \(3,\)"):
        check_fit(model, {"a": torch.zeros(2), "b": torch.zeros(4)})
    with pytest.raises(ModelError, match=r"2 of 3 tensors .* `b`, is absent in the state"):
        check_fit(model, {"a": torch.zeros(2), "c": torch.zeros(4)})


def test_the_name_of_the_folder_of_checkpoints_is_flushed_also_where_its_maker_died_before_it_could(
    tmp_path, monkeypatch
):
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    root = tmp_path / "checkpoints" / "teacher"
    root.parent.mkdir()  # and gone
    save_checkpoint(root, "v1", {"w": torch.zeros(2)}, {})
    assert flushed[:2] == [tmp_path.stat().st_ino, root.parent.stat().st_ino]

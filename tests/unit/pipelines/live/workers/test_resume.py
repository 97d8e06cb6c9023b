"""Workers go on from the newest checkpoint that verifies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from exfm.errors import OtherFormat, Unusable
from exfm.snapshots.checkpoint import checkpoint_names, save_checkpoint
from pipelines.live.workers.checkpointer import last_checkpoint, needed_after

HASH = "0123456789abcdef"


# --- damaged ones ----------------------------------------------------------------------------------------------------


def stored(root: Path, name: str, lake_seq: int, config_hash: str = HASH) -> Path:
    tensors = {"w": torch.arange(100.0) + lake_seq}
    return save_checkpoint(
        root, name, tensors, {"config_hash": config_hash, "lake_seq": lake_seq}, kind="teacher-checkpoint"
    )


def truncate(path: Path) -> None:
    file = path / "tensors.bin"
    file.write_bytes(file.read_bytes()[:100])


def other_config(path: Path) -> None:
    elsewhere = stored(path.parent / "elsewhere", path.name, 5, "another")
    shutil.copy(elsewhere / "manifest.json", path / "manifest.json")
    shutil.rmtree(elsewhere.parent)


DAMAGES = {
    "truncated tensors": truncate,
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "an empty manifest": lambda path: (path / "manifest.json").write_text(""),
    "another config": other_config,
}


def test_without_a_checkpoint_there_is_nothing_to_say(tmp_path):
    assert last_checkpoint(tmp_path / "absent", HASH) == (None, None)
    assert needed_after(tmp_path / "absent", keep=2) == -1


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_set_aside_told_and_the_one_before_is_taken(tmp_path, damage):
    for number in (1, 2, 3):
        stored(tmp_path, f"v{number}", number * 10)
    for number in (2, 3):
        DAMAGES[damage](tmp_path / f"v{number}")
    found, note = last_checkpoint(tmp_path, HASH)
    assert found is not None
    assert found.meta["lake_seq"] == 10
    assert note is not None
    assert note.startswith("went on from `v1`: `v3` ")
    assert "`v2`" in note
    assert sorted(path.name for path in tmp_path.iterdir()) == [".damaged-v2", ".damaged-v3", "v1"]
    stored(tmp_path, "v2", 20)  # learned again, and written under its old name
    again, note = last_checkpoint(tmp_path, HASH)
    assert again is not None
    assert (again.meta["lake_seq"], note) == (20, None)


@pytest.mark.parametrize("damage", DAMAGES)
def test_with_none_left_everything_found_is_told_and_left_as_it_is(tmp_path, damage):
    for number in (1, 2):
        DAMAGES[damage](stored(tmp_path, f"v{number}", number * 10))
    with pytest.raises(Unusable) as error:
        last_checkpoint(tmp_path, HASH)
    for words in ("none of the 2 checkpoints", "`v1`", "`v2`", f"delete {tmp_path}", "from its beginning"):
        assert words in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1", "v2"]


@pytest.mark.parametrize("version", [2, 4])
def test_one_of_another_format_is_refused_and_not_taken_for_damaged(tmp_path, version):
    stored(tmp_path, "v1", 10)
    path = stored(tmp_path, "v2", 20) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": version}))
    with pytest.raises(OtherFormat, match=rf"`v2` has format version {version}, this ExFM reads 3"):
        last_checkpoint(tmp_path, HASH)
    assert checkpoint_names(tmp_path) == ["v1", "v2"]


def test_rows_are_needed_from_the_oldest_checkpoint_on_for_a_newer_one_may_be_damaged(tmp_path):
    for number in (0, 1, 2):
        stored(tmp_path, f"v{number}", number * 10)
    assert needed_after(tmp_path, keep=2) == 10
    DAMAGES["an empty manifest"](tmp_path / "v1")
    assert needed_after(tmp_path, keep=2) == 20

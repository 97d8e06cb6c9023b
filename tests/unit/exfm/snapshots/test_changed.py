"""States stored as what changed since another: restored to the bit under every policy, and refused where the other is
not what it was."""

import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch

from exfm.embeddings.served import ServedTables
from exfm.embeddings.table import Table
from exfm.errors import ModelError
from exfm.snapshots.changed import Baselines, Saved, bytes_of
from exfm.snapshots.checkpoint import (
    changes_since,
    checkpoint_names,
    lineage_of,
    load_checkpoint,
    open_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    verified_checkpoint,
)
from exfm.snapshots.delta import ChangedRows
from exfm.snapshots.named import under
from exfm.snapshots.quantised_state import dequantise_changes, dequantise_tables, quantise_tables
from exfm.snapshots.windows import fill_window

ROWS, WIDTH = 400, 8
NAME = "table/ad/weight"


def learn(table, clock, learned_at, rng):
    at = rng.integers(0, ROWS // 4, 40) if rng.random() < 0.5 else rng.integers(0, ROWS, 20)
    table[at] += torch.from_numpy(rng.normal(size=(len(at), WIDTH)).astype(np.float32))
    learned_at[at] = clock


def run(root, policy, versions=12, bits=None):
    """Save a table that learns, by a policy; returns its true states by name."""
    rng, table, learned_at = np.random.default_rng(0), torch.zeros(ROWS, WIDTH), torch.zeros(ROWS)
    baselines, truth = Baselines(policy), {}
    for version in range(versions):
        learn(table, version, learned_at, rng)
        name, parent, rest = f"v{version:03}", baselines.parent, {"dense/b": torch.tensor([float(version)])}
        if parent is None:
            tensors = {NAME: table.clone(), **rest}
        else:
            at = (learned_at >= parent.clock).nonzero().flatten()
            tensors = {NAME: ChangedRows(0, at, table[at]), **rest}
        baselines.saved(Saved(name, version + 1), bytes_of(tensors), whole=parent is None)
        stored = quantise_tables(tensors, bits)
        save_checkpoint(root, name, stored, {"n": version}, parent=parent.name if parent else None)
        truth[name] = table.clone()
    return truth


@pytest.mark.parametrize("policy", ["whole", "one_shot", "consecutive", "intermittent"])
def test_every_state_comes_back_to_the_bit(tmp_path, policy):
    truth = run(tmp_path, policy)
    wholes = [name for name in truth if len(lineage_of(tmp_path / name)) == 1]
    assert (len(wholes) == len(truth)) == (policy == "whole")
    for name, table in truth.items():
        stored = load_checkpoint(tmp_path / name).tensors
        assert torch.equal(stored[NAME], table)
        assert stored["dense/b"].item() == int(name[1:])
        window = torch.empty(7, 3)
        fill_window(window, open_checkpoint(tmp_path / name).tensors[NAME], (91, 2))
        assert torch.equal(window, table[91:98, 2:5])


def test_a_consecutive_state_leads_through_all_before_it(tmp_path):
    run(tmp_path, "consecutive", versions=5)
    assert lineage_of(tmp_path / "v004") == ["v004", "v003", "v002", "v001", "v000"]


@pytest.mark.parametrize("policy", ["one_shot", "consecutive", "intermittent"])
@pytest.mark.parametrize("bits", [None, 4])
def test_a_scorer_follows_by_changed_rows_as_if_it_had_read_all(tmp_path, policy, bits):
    names = list(run(tmp_path, policy, bits=bits))
    followed = 0
    for before, name in pairwise(names):
        changes = changes_since(open_checkpoint(tmp_path / before), open_checkpoint(tmp_path / name))
        if changes is None:
            assert lineage_of(tmp_path / name) == [name]
            continue
        tables, wanted = ServedTables([Table("ad", ROWS, WIDTH, ("ad",))]), torch.empty(ROWS, WIDTH)
        tables.load(under("table", read(tmp_path / before)))
        tables.take(under("table", dequantise_changes(changes)))
        fill_window(wanted, read(tmp_path / name)[NAME])
        assert torch.equal(tables.tensors()["ad/weight"], wanted)
        followed += 1
    assert followed > len(names) // 2


def test_what_another_base_leads_to_is_read_whole(tmp_path):
    run(tmp_path, "one_shot", versions=3)
    save_checkpoint(tmp_path, "v100", {NAME: torch.ones(ROWS, WIDTH)}, {})
    one, two, other = (open_checkpoint(tmp_path / name) for name in ("v001", "v002", "v100"))
    assert changes_since(two, other) is None
    assert changes_since(other, two) is None
    assert changes_since(two, one) is None  # back: some rows changed in the newer one alone


def test_a_parent_stays_as_long_as_it_is_needed(tmp_path):
    run(tmp_path, "one_shot", versions=6)
    prune_checkpoints(tmp_path, keep=2)
    assert checkpoint_names(tmp_path) == ["v000", "v004", "v005"]
    save_checkpoint(tmp_path, "v006", {"b": torch.ones(1)}, {})
    save_checkpoint(tmp_path, "v007", {"b": torch.ones(1)}, {})
    prune_checkpoints(tmp_path, keep=2)
    assert checkpoint_names(tmp_path) == ["v006", "v007"]


@pytest.mark.parametrize("damage", ["gone", "another", "flipped", "torn"])
def test_a_parent_that_is_not_what_it_was_is_refused_and_named(tmp_path, damage):
    run(tmp_path, "one_shot", versions=2)
    base = tmp_path / "v000"
    if damage == "gone":
        shutil.rmtree(base)
    elif damage == "another":
        shutil.rmtree(base)
        save_checkpoint(tmp_path, "v000", {NAME: torch.ones(ROWS, WIDTH)}, {})
    else:
        content = bytearray((base / "tensors.bin").read_bytes())
        content[-5] ^= 1
        (base / "tensors.bin").write_bytes(content[:-1] if damage == "torn" else content)
    with pytest.raises(ModelError, match="v000"):
        verified_checkpoint(tmp_path / "v001")


def test_changes_of_a_parent_that_is_not_there_are_not_saved(tmp_path):
    rows = ChangedRows(0, torch.tensor([1]), torch.ones(1, WIDTH))
    with pytest.raises(ModelError, match="v000"):
        save_checkpoint(tmp_path, "v001", {NAME: rows}, {}, parent="v000")
    assert checkpoint_names(tmp_path) == []


def test_saving_whole_what_is_there_as_changes_changes_nothing(tmp_path):
    truth = run(tmp_path, "one_shot", versions=2)
    before = (tmp_path / "v001" / "manifest.json").read_bytes()
    same = {NAME: truth["v001"], "dense/b": torch.tensor([1.0])}
    save_checkpoint(tmp_path, "v001", same, {"n": 1})
    assert (tmp_path / "v001" / "manifest.json").read_bytes() == before
    with pytest.raises(ModelError, match="other content"):
        save_checkpoint(tmp_path, "v001", {**same, NAME: truth["v000"]}, {"n": 1})


def read(path):
    return dequantise_tables(open_checkpoint(path).tensors)

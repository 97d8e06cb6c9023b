"""One format for a whole state, for what changed in it, and for either in fewer bits."""

from __future__ import annotations

import json

import pytest
import torch

from exfm.errors import ModelError, OtherFormat
from exfm.snapshots.delta import ChangedRows, Delta, decoded, encoded, read_delta, write_delta
from tests.support.models.states import same

STEPS = {"int8": 255, "int4": 15}


def state() -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return {
        "table": torch.randn(20, 8, generator=drawn),
        "linear": torch.randn(2, 30, generator=drawn),
        "bias": torch.randn(3, generator=drawn),
        "rows": torch.tensor(7),
    }


def changed(codec: str) -> Delta:
    new, at = state()["table"] + 1, torch.tensor([0, 3, 19])
    rows = {"table": ChangedRows(0, at, encoded(new[at], codec), codec)}
    rows["linear"] = ChangedRows(1, torch.tensor([4]), torch.full((2, 1), 9.0))
    return Delta(rows, {"bias": torch.zeros(3)})


@pytest.mark.parametrize("codec", ["fp32", "int8", "int4"])
def test_rows_that_changed_come_back_from_a_file_and_all_others_stay(tmp_path, codec):
    write_delta(tmp_path / "one", delta := changed(codec), {"number": 3})
    stored = read_delta(tmp_path / "one")
    before, after = state(), state()
    stored.delta.apply(after)
    at = delta.rows["table"].at
    wanted = before["table"].clone()
    wanted[at] += 1
    range_K = (wanted.amax(1) - wanted.amin(1))[at]
    bound = range_K * (0.0 if codec == "fp32" else 0.5 / STEPS[codec] + 2**-10)
    assert ((after["table"] - wanted)[at].abs().amax(1) <= bound + 1e-6 * (codec != "fp32")).all()
    after["table"][at] = wanted[at]
    before["linear"][:, 4] = 9.0
    assert same(after, before | {"table": wanted, "bias": torch.zeros(3)})
    assert stored.meta == {"number": 3}
    assert stored.delta.nbytes == delta.nbytes


def test_a_state_whole_and_a_quantised_one_are_deltas(tmp_path):
    tables = {"table": ChangedRows(0, torch.arange(20), encoded(state()["table"], "int8"), "int8")}
    for delta in (Delta({}, state()), Delta(tables, {})):
        write_delta(tmp_path / "whole", delta, {})
        empty = {name: torch.zeros_like(tensor) for name, tensor in state().items()}
        read_delta(tmp_path / "whole").delta.apply(empty)
        torch.testing.assert_close(empty["table"], state()["table"], rtol=0, atol=0.02)
    assert torch.equal(decoded(encoded(state()["table"], "int8"), "int8"), empty["table"])


@pytest.mark.parametrize("name", ["absent", "bias", "table"])
def test_a_delta_of_another_state_changes_nothing(name):
    mine, rows = state(), {name: ChangedRows(0, torch.tensor([25]), torch.ones(1, 8))}
    with pytest.raises(ModelError, match=f"1 tensors differ, `{name}` first"):
        Delta(rows, {"rows": torch.tensor(8)}).apply(mine)
    assert same(mine, state())


def test_a_file_of_another_format_or_a_damaged_one_is_refused_in_words(tmp_path, monkeypatch):
    path = tmp_path / "one"
    monkeypatch.setattr("exfm.snapshots.delta.FORMAT", 1)
    write_delta(path, changed("fp32"), {})
    monkeypatch.undo()
    with pytest.raises(OtherFormat, match=r"one has format 1, this ExFM reads 2; .* --fresh"):
        read_delta(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="one is damaged"):
        read_delta(path)
    path.write_text(json.dumps({}))
    with pytest.raises(ModelError, match="one is no delta"):
        read_delta(path)

"""A sweep that also judges what students predict with what had settled when a row was shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from pipelines.cli import console as cli
from pipelines.lab.parts import load_part
from pipelines.lab.report.compare import read_report
from pipelines.lab.report.text import markdown
from pipelines.report.cells import MEAN

SWEEP = {
    "config": "small.yaml",
    "seeds": [1],
    "students": ["feed"],
    "as_shown": True,
    "arms": {
        "none": {"set": {"arm": {"kind": "none"}}},
        "single": {"set": {"arm": {"kind": "single_head"}}},
    },
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("as_shown")
    raw = yaml.safe_load(Path("configs/demo.yaml").read_text())
    raw["source"] |= {"impressions": 4000, "users": 300, "ads": 40, "base_rate_scale": 5}
    raw["pace"] = {"mode": "lockstep", "block_rows": 512, "lag": 2}
    raw["teacher"]["model"] |= {"width": 4, "layers": 1, "num_fmb": 4, "num_lcb": 4, "rank": 4, "mlp": [8]}
    (folder / "small.yaml").write_text(yaml.safe_dump(raw | {"name": "small"}))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    with pytest.raises(SystemExit) as left:
        cli.main(["sweep", str(folder / "sweep.yaml"), "--out", str(folder / "out"), "--jobs", "1"])
    assert not left.value.code
    parts = [load_part(path) for path in (folder / "out" / "students").glob("*.npz")]
    return read_report(folder / "out"), parts, folder


def test_the_gain_as_shown_is_in_the_report_beside_that_as_settled(swept):
    report, _, _ = swept
    one, overall = (report.table.of("fresh", student, "ctr", "single") for student in ("feed", MEAN))
    assert overall.value("gain/as_shown") == pytest.approx(one.value("gain/as_shown"))
    assert overall.value("gain/as_shown") != overall.value("gain")
    assert "| as shown % |" in markdown(report)


def test_as_shown_a_student_does_not_know_what_settled_since(swept):
    """The first rows are shown before any label has settled: the initial model predicts them."""
    _, parts, _ = swept
    assert len(parts) == 2
    for part in parts:
        first = part["shown"][:5]
        assert np.isfinite(part["shown"]).all()
        assert part["shown"].shape == part["logits"].shape
        assert np.abs(first).max() < 0.5 < np.abs(part["logits"][-500:]).max()  # of no prior: about p = .5

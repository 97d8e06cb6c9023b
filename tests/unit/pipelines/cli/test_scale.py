"""`exfm scale`: what a family costs; what it shows of one stream, each member trained once, whatever interrupts it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml

from pipelines.cli import console as cli
from pipelines.core.config.settings import load
from pipelines.lab.replay import jobs
from pipelines.lab.replay.settings import Spec
from pipelines.lab.rows import Rows
from pipelines.lab.scaling import fit as fitting
from pipelines.lab.scaling.family import Member
from pipelines.lab.scaling.fit import CONDITION, FamilyTrial, JudgedTask, Law, OneStream, Scaling, best_rates
from pipelines.lab.scaling.report import draw
from pipelines.report.cells import Cells

DEMO = "configs/demo.yaml"
ROWS = 6000


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main(["scale", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The demo's stream, smaller, with a small teacher, in a file of its own."""
    raw = yaml.safe_load(Path(DEMO).read_text())
    raw["source"] |= {"impressions": 6000, "users": 500, "ads": 50, "base_rate_scale": 5}
    raw["teacher"] |= {"batch_rows": 256, "first_batch_rows": 256}  # few steps
    raw["teacher"]["model"] = {
        "width": 8,
        "layers": 1,
        "num_fmb": 4,
        "num_lcb": 4,
        "rank": 4,
        "mlp": [16],
        "head": [16],
    }
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump(raw | {"name": "small"}))
    return str(path)


@pytest.fixture
def trained(monkeypatch):
    """Names of the teachers that were really trained."""
    names, real = [], jobs.TeacherJob.run

    def noting(job, add_done):
        names.append(job.sources[0].teacher.partition(" at ")[0])
        return real(job, add_done)

    monkeypatch.setattr(jobs.TeacherJob, "run", noting)
    return names


def test_the_family_is_listed_with_what_it_costs(capsys):
    code, out, _ = run(capsys, DEMO, "--dials", "0,2", "--json")
    found = json.loads(out)["members"]
    assert code == 0
    assert [member["name"] for member in found] == ["wukong-0", "wukong-2", "dlrm-0", "dlrm-2", "dcn-0", "dcn-2"]
    base, larger = found[:2]
    assert (base["model"]["layers"], larger["model"]["layers"]) == (2, 8)
    assert larger["training_flops_per_example"] == 3 * larger["flops_per_example"]
    assert larger["relative_flops"] == pytest.approx(larger["flops_per_example"] / base["flops_per_example"])
    assert {member["parameters"]["tables"] for member in found} == {base["parameters"]["tables"]}
    for beside in found[3::2]:
        assert beside["relative_flops"] == pytest.approx(larger["relative_flops"], rel=0.05)
    code, out, _ = run(capsys, DEMO, "--dials", "0", "--interactions", "wukong")
    assert (code, "174,464" in out, "dlrm" in out) == (0, True, False)


def test_a_family_is_trained_once_judged_and_drawn(capsys, tmp_path, config, trained):
    arguments = [config, "--fit", "--rows", str(ROWS), "--dials", "0,1,2", "--out", str(tmp_path), "--jobs", "1"]
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    scaling = Scaling.model_validate_json(out)
    assert len(trained) == 9
    assert scaling.rows == ROWS
    table = Cells(scaling.cells)
    optimum = table.of(CONDITION, "", "ctr", "(optimum)").value("ne")
    for member in scaling.members:
        of = table.of(CONDITION, "", "ctr", member.name)
        assert of.value("ne") > optimum
        assert of.value("rows_left_out/1") == 0
        assert ("gain/over/smallest" in of) == (member.dial > 0)
        assert ("gain/over/wukong" in of) == (member.interaction != "wukong")
        assert table.of(CONDITION, "", "cvr", member.name).lacking("rows").startswith("positives")
    gain = table.of(CONDITION, "", "ctr", "wukong").cell("gain per 4x")
    assert gain.low < gain.value < gain.high
    ctr, cvr = (
        next(law for law in scaling.laws if (law.interaction, law.task) == ("wukong", t)) for t in ("ctr", "cvr")
    )
    assert "3 sizes fix the three numbers" in ctr.reason
    assert cvr.reason.startswith("too few positives")
    assert Scaling.model_validate_json((tmp_path / "scale.json").read_text()) == scaling
    assert (tmp_path / "scale.png").read_bytes()[:4] == b"\x89PNG"

    code, out, _ = run(capsys, *arguments)
    assert (code, len(trained)) == (0, 9)
    assert "wukong-2" in out
    assert f"wukong: {gain.value:+.2f} % per 4× [{gain.low:+.2f}, {gain.high:+.2f}]" in out

    one_more = ["3" if argument == "0,1,2" else argument for argument in arguments]
    run(capsys, *one_more, "--interactions", "dcn")
    assert trained[9:] == ["dcn-3"]
    run(capsys, *one_more, "--interactions", "dcn", "--set", "teacher.batch_rows=128")
    assert trained[10:] == ["dcn-3"]


def test_ctrl_c_keeps_what_is_done_and_a_damaged_result_is_made_again(capsys, tmp_path, config, trained, monkeypatch):
    arguments = [config, "--fit", "--rows", "2000", "--dials", "0,1", "--out", str(tmp_path), "--jobs", "1",
                 "--interactions", "wukong,dcn"]  # fmt: skip
    noting = jobs.TeacherJob.run

    def interrupted(job, add_done):
        if len(trained) == 2:
            raise KeyboardInterrupt
        return noting(job, add_done)

    monkeypatch.setattr(jobs.TeacherJob, "run", interrupted)
    code, _, err = run(capsys, *arguments)
    assert code == 130
    assert "the same command resumes" in err
    assert not (tmp_path / "scale.json").exists()
    damaged, _ = sorted((tmp_path / "logits").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:100])

    monkeypatch.setattr(jobs.TeacherJob, "run", noting)
    code, _, err = run(capsys, *arguments)
    assert code == 0, err
    assert len(trained) == 2 + 3


def test_a_task_without_a_single_defined_ne_is_drawn_empty(tmp_path):
    """As of a task whose rows have one label: a logarithmic axis would refuse to hold no point."""
    laws = (Law(interaction="wukong", task="cvr", reason="too few positives", curve=None),)
    scaling = Scaling(name="small", config_hash="x", rows=9, members=(), cells=(), laws=laws)
    assert draw(scaling, tmp_path / "scale.png").read_bytes()[:4] == b"\x89PNG"


def test_the_rate_is_chosen_on_the_half_that_is_not_judged(tmp_path, monkeypatch):
    """One rate is right on the first half of the rows, the other on the second."""
    config = load(DEMO, [])
    member = Member(interaction="wukong", dial=0, model=config.teacher.model, flops=1, dense_parameters=1,
                    table_parameters=1)  # fmt: skip
    trials = [FamilyTrial(member=member, rate=rate, seed=1) for rate in (0.1, 0.2)]
    labels = np.tile([0, 1], 50)
    right, wrong, first = 4.0 * labels - 2, 2 - 4.0 * labels, np.arange(100) < 50
    logits = {
        trials[0].teacher: np.where(first, right, wrong),
        trials[1].teacher: np.where(first, wrong, right),
    }

    class Planted(OneStream):
        def rows(self, seed, advance=lambda done: None):
            rows = Rows(tmp_path / "rows.arrow", "x")
            table = pa.table({"label_ctr": labels})
            with pa.ipc.new_file(rows.path, table.schema) as file:
                file.write_table(table)
            return rows

    monkeypatch.setattr(fitting, "teacher_logits", lambda workspace, seed, source: logits[source.teacher][:, None])
    spec = Spec(config="-", seeds=(1,), arms={"none": {}})
    task = JudgedTask(Planted(spec, config, tmp_path, None), "ctr")
    assert best_rates(trials, [task]) == {("wukong-0", 1): trials[0]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dials", "1,x"], "--dials 1,x: write numbers 0 or more separated by commas"),
        (["--dense-lr", "0", "--fit", "--interactions", "wukong"], "--dense-lr 0: write numbers above 0"),
        (["--interactions", "dlrm,fm"], "names fm; known: wukong, dlrm, dcn"),
        (
            ["--set", "teacher.model.interaction=dcn", "--set", "teacher.model.layers=2"],
            "the base's interaction is `dcn`",
        ),
        (
            ["--fit", "--dials", "0", "--interactions", "wukong", "--set", "source=null"],
            "no source to train on; give `--from RUN_DIR`",
        ),
        (["--fit", "--dials", "0", "--from", "/nowhere"], "no lake at /nowhere"),
    ],
)
def test_what_cannot_be_done_is_told(capsys, tmp_path, arguments, message):
    code, _, err = run(capsys, DEMO, *arguments, "--out", str(tmp_path / "out"))
    assert code == 2
    assert message in err

"""Which settings the arms of a sweep try, and sweeps that are refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from exfm.distillation.arm import Arm
from pipelines.lab.replay import jobs as replay_jobs
from pipelines.lab.replay.choice import best_of, choose
from pipelines.lab.replay.load import load
from pipelines.lab.replay.settings import Setting, settings_of
from pipelines.lab.replay.workspace import Workspace
from streaming.errors import BadInput
from tests.support.pipelines.replay_workspaces import result_of
from tests.support.pipelines.small_sweeps import MORE, SWEEP, run, with_small_stream, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_small_stream(tmp_path_factory.mktemp("sweep"))


def test_a_grid_is_extended_beyond_its_edge_by_one_rule_for_all_arms(capsys, folder, tmp_path, monkeypatch):
    """Planted: the higher the rate the better, up to .032 for `single` and without end for `none`."""

    def planted(workspace, requests, data, tell):
        for request in requests:
            rate = request.student.model.dense_lr
            good = rate if request.student.model.arm.kind == "none" else -abs(rate - 0.032)
            logits = ((0.5 + 5 * good) * (2 * data.labels - 1)).astype(np.float32)
            yield result_of(logits)

    monkeypatch.setattr(replay_jobs, "train_together", planted)
    tune = {"dense_lr": [0.004, 0.008, 0.016]}
    arms = {name: arm | {"tune": tune} for name, arm in SWEEP["arms"].items()}
    sweep = written(folder, arms=arms, conditions={"fresh": {}}, teachers={}, seeds=[1])
    code, told, err = run(capsys, sweep, "--out", str(tmp_path), "--jobs", "1", "--json")
    assert code == 0, err
    report = json.loads(told)
    tuned = {c["arm"]: (c["tuned"]["dense_lr"], c["at_the_edge"]) for c in report["chosen"] if c["student"] == "feed"}
    assert tuned == {"none": (0.064, ["dense_lr"]), "single": (0.032, [])}
    assert "beyond the edges of grids, by one rule for all arms" in report["notes"][0]
    assert "`none` feed by 2; `single` feed by 2" in report["notes"][0]
    code, told, err = run(capsys, sweep, "--set", "extend=false", "--out", str(tmp_path), "--jobs", "1", "--json")
    assert code == 0, err
    assert {c["tuned"]["dense_lr"] for c in json.loads(told)["chosen"]} == {0.016}


def test_a_teacher_may_have_the_features_of_students_whatever_they_are(folder):
    sweep, config = load(written(folder, teachers={"alike": {"features": "students"}, "large": {}}))
    workspace = Workspace(sweep, config, folder / "out", None)
    alike, large = (set(workspace.teacher(name)[0].names) for name in ("alike", "large"))
    assert alike == set(config.student_features(config.student("feed")).names)
    assert large - alike == set(config.teacher.only) > set()


def test_an_arm_that_names_a_preset_replaces_the_students_own(folder):
    arm = {"preset": "recommended", "weight": 2}
    sweep, config = load(written(folder, arms={"none": {}, "recommended": {"set": {"arm": arm}}}))
    (setting,) = settings_of(sweep, config.student("feed"), "recommended")
    assert setting.student.model.arm == Arm.model_validate(arm)
    assert setting.student.model.arm != config.student("feed").model.arm


def test_what_is_tuned_may_be_the_students_own(folder):
    sweep, config = load(written(folder, arms={"none": {"tune": {"student.batch_rows": [128, 512], "width": [4, 8]}}}))
    tried = settings_of(sweep, config.student("feed"), "none")
    assert [(s.student.batch_rows, s.student.model.width) for s in tried] == [(128, 4), (128, 8), (512, 4), (512, 8)]


def test_the_edge_of_a_grid_is_told(folder):
    def sums(loss):
        return [{"loss": np.array([loss]), "weight": np.array([10.0]), "positive": np.array([5.0])}]

    _, config = load(written(folder))
    tried = [Setting("a", n, {"lr": lr}, config.student("feed")) for n, lr in enumerate((0.1, 0.2, 0.4))]
    assert choose(tried, {0: sums(3.0), 1: sums(2.0), 2: sums(1.0)}).edges == ["lr"]
    assert choose(tried, {0: sums(3.0), 1: sums(1.0), 2: sums(2.0)}).edges == []
    assert choose(tried, {0: sums(float("nan")), 1: sums(1.0), 2: sums(2.0)}).ne[0] is None
    assert best_of({"a": choose(tried[:1], {0: sums(2.0)}), "b": choose(tried[:1], {0: sums(1.0)})}) == "b"


NONE = SWEEP["arms"]["none"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": {"none": NONE, "more": MORE}}, "do not try equally many settings (none 2, more 3)"),
        ({"baselines": ["twin"]}, "baselines has `twin`, which is no arm"),
        ({"chosen_on": [0.0, 0.8]}, "chosen_on is 0.0 to 0.8; it must lie within 0 to 0.5"),
        ({"conditions": {"cold": {"start": 0.5}}}, "students start at 0"),
        ({"students": ["fed"]}, "students names `fed`; did you mean `feed`?"),
        ({"cluster": "user"}, "cluster is column `user`; did you mean `user_id`?"),
        ({"teachers": {"r": {"features": ["x"]}}}, "teachers.r.features names `x`"),
        ({"arms": {"none": {"set": {"arm": {"kind": "none", "adapter": True}}}}}, "has no place for a student adapter"),
        ({"arms": {"none": {"tune": {"dense_rate": [1]}}}}, "model.dense_rate: unknown key"),
        ({"arms": {"none": {"student": {"tasks": ["ctr"]}}}}, "arm `none` changes tasks"),
        ({"arms": {"none": {"tuned": {}}}}, "arms.none.tuned: unknown key"),
        ({"teachers": {"twin": {}}}, "teachers has `twin`, which stands for students that teach"),
        ({"conditions": {"fresh": {"teacher": "blnd"}}}, "which is not in teachers; did you mean `blind`?"),
        ({"conditions": {"fresh": {"teacher": "twin"}}}, "under which arms are tuned: it needs a teacher"),
        ({"conditions": {"fresh": {}, "t": {"teacher": "twin", "behind": 1}}}, "the twin's logits have no snapshots"),
        ({"tuning_seeds": [7, 7]}, "tuning_seeds are [7, 7]; give one or more, each once"),
        ({"seeds": [1, 1]}, "seeds are [1, 1]; give one or more, each once"),
    ],
)
def test_what_cannot_be_swept_is_told(folder, changes, message):
    with pytest.raises(BadInput) as told:
        load(written(folder, **changes))
    assert message in str(told.value)


def test_a_source_has_no_stored_snapshots(capsys, folder, tmp_path):
    sweep = written(folder, conditions={"fresh": {}, "old": {"stale_rows": 1000}})
    code, _, err = run(capsys, sweep, "--out", str(tmp_path / "out"))
    assert code == 2
    assert "condition `old` wants logits of stored snapshots, and there is no run" in err


@pytest.mark.parametrize("path", sorted(Path("configs/sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_is_valid(path):
    sweep, _ = load(path)
    assert not sweep.unequal


MISTAKES = {
    "no lake": (["--from", "nowhere"], "exfm: no lake at nowhere/lake/augmented_examples; a run makes one"),
    "no file": ([], "exfm: cannot read the recorded stream nowhere.parquet: No such file or directory; source.path"),
    "no folder": (["--out", "a file"], "exfm: cannot write into the sweep's folder a file (File exists)"),
}


@pytest.mark.parametrize("which", [pytest.param("no lake", marks=pytest.mark.slow), "no file", "no folder"])
def test_a_mistake_is_told_without_a_traceback_also_where_another_process_finds_it(
    capfd, folder, tmp_path, monkeypatch, which
):
    (tmp_path / "a file").touch()
    recorded = written(folder, config=str(Path("configs/movielens.yaml").resolve()), teachers={},
                       students=["comedy"], set=["source.path=nowhere.parquet"])  # fmt: skip
    file = recorded if which == "no file" else written(folder)
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[which]
    if which == "no lake":
        arguments = [*arguments, "--set", "teachers={}"]
    code, _, err = run(capfd, file, "--jobs", "2", *arguments)
    assert (code, err.replace(f"{folder}/", "")[: len(message)]) == (2, message)

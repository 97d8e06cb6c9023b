"""What a replay is asked, checked before anything trains, and done as asked."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

from pipelines.cli import console as cli
from pipelines.core.config.settings import dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.judging.settings import Judging, Ranking
from pipelines.lab.parts import load_part
from pipelines.lab.replay import jobs as replay_jobs
from pipelines.lab.replay.load import load, load_run
from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.replay.run import Runner
from pipelines.lab.replay.settings import settings_of
from pipelines.lab.replay.store import TrainRequest, teacher_part
from pipelines.lab.replay.stream import stream_of
from pipelines.lab.replay.workspace import Workspace
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import small
from tests.support.pipelines.small_sweeps import with_small_stream, written

WORTH = Judging(value="worth")
BIDS = Judging(value="worth", price="cost")
CHOICES = Judging(ranking=Ranking(request="request", propensity="p", chosen="taken"))
GOOD = {"worth": [1.0, 2.0], "cost": [0.5, 0.0], "request": [7, 7], "p": [0.25, 0.75], "taken": [True, False]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_small_stream(tmp_path_factory.mktemp("asked"))


def test_columns_that_can_be_judged_by_are_taken():
    for asked in (WORTH, BIDS, CHOICES):
        asked.check_rows(pa.table(GOOD))
    WORTH.check_rows(pa.table(GOOD | {"worth": [None, 2.0]}))  # known of clicks alone


@pytest.mark.parametrize(
    ("asked", "columns", "words"),
    [
        (BIDS, {"cost": [-0.5, 1.0]}, "price: 1 of 2 rows of column `cost` are below 0, as -0.5; every row needs the"),
        (BIDS, {"worth": [None, 1.0]}, "value: 1 of 2 rows of column `worth` are null"),
        (BIDS, {"cost": [float("nan"), 1.0]}, "price: 1 of 2 rows of column `cost` are no finite number"),
        (WORTH, {"worth": ["5", "6"]}, "value: column `worth` holds string, no numbers"),
        (CHOICES, {"p": [0.5, 1.5]}, "ranking.propensity: 1 of 2 rows of column `p` are above 1, as 1.5"),
        (CHOICES, {"p": [0.5, None]}, "ranking.propensity: 1 of 2 rows of column `p` are null; a propensity is the"),
        (CHOICES, {"request": [None, 7]}, "ranking.request: 1 of 2 rows of column `request` are null"),
        (CHOICES, {"taken": ["yes", "no"]}, "ranking.chosen: column `taken` holds string"),
    ],
)
def test_columns_that_cannot_be_judged_by_are_refused_with_their_number(asked, columns, words):
    with pytest.raises(BadInput, match=re.escape(words)):
        asked.check_rows(pa.table(GOOD | columns))


def test_what_a_click_is_worth_is_the_config_s_to_say_unless_the_spec_names_another(folder):
    valued = "set=[metrics.value=bid]"
    assert load(written(folder, seeds=[1]))[0].value is None
    assert load(written(folder, seeds=[1]), [valued])[0].value == "bid"
    assert load(written(folder, value="user_id", seeds=[1]), [valued])[0].value == "user_id"


def test_they_are_refused_before_anything_trains(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(replay_jobs, "train_together", None)
    monkeypatch.setattr(replay_jobs, "lockstep_logits", None)
    ranking = {"request": "impression_id", "propensity": "user_id"}
    spec, config = load(written(folder, ranking=ranking, seeds=[1]), ["rows=1500"])
    with pytest.raises(BadInput, match=r"ranking\.propensity"):
        Runner(Workspace(spec, config, tmp_path, None), 1).run()


def test_settings_are_chosen_by_the_labels_that_were_logged_whatever_students_learn(folder, tmp_path):
    """Without any positive to learn, the sums that settings are chosen by have those of the stream."""
    spec, config = load(written(folder, conditions={"deaf": {"lost": 1.0}}, teachers={}, seeds=[1]), ["rows=1500"])
    workspace, student = Workspace(spec, config, tmp_path, None), config.student("feed")
    (workspace.folder / "logits").mkdir()
    logits = np.full((1500, len(config.tasks)), -2.0, np.float32)
    replay_jobs.save_part(teacher_part(workspace, 1, spec.logit_sources(1)[0]), logits=logits, left_out=0)
    setting = settings_of(spec, student, "none")[0]
    part = tmp_path / "part.npz"
    asked = TrainRequest(1, setting.student, spec.conditions["deaf"], part)
    replay_jobs.StudentJob(workspace, True, (asked,)).run(lambda count: None)
    assert load_part(part)["positive"][0] > 0
    learned = stream_of(workspace, 1, spec.conditions["deaf"]).slice()
    assert pa.compute.sum(learned["label_ctr"]).as_py() == 0


def test_logged_choices_of_the_generated_stream_tell_what_arms_choices_are_worth(tmp_path, capsys):
    few = ["--set", "set=[source.impressions=20000]", "--seeds", "1", "--jobs", "1", "--out", str(tmp_path)]
    code, told, err = run(capsys, "configs/sweeps/choices.yaml", *few, "--json")
    assert code == 0, err
    report = ReplayReport.model_validate_json(told)
    for arm in report.spec.arms:
        of = report.table.of("fresh", "feed", "ctr", arm)
        ((seed, worth),) = of.below("choices").items()
        assert worth.n == 2000  # those of the second half
        assert not of.below(f"choices/{seed}/refused")
        assert of.value(f"choices/{seed}/effective") > 100
        dr = of.cell(f"choices/{seed}/dr")
        assert dr.low < dr.value < dr.high
    text = (tmp_path / "replay.md").read_text()
    assert "## What choices are worth, by request" in text
    assert f"{dr.value:.4f} [" in text
    assert "What choices are worth, by request" in (tmp_path / "report.html").read_text()


def test_without_propensities_choices_are_not_judged_and_the_reason_is_told(folder, capsys, tmp_path):
    named = written(folder, ranking={"request": "user_id", "propensity": "propensity"})
    code, _, err = run(capsys, named, "--out", str(tmp_path))
    assert code == 2
    assert "ranking.propensity is column `propensity`; choose from " in err


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(["replay", *arguments])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_a_specs_seeds_are_as_many_as_asked_from_its_first_on(folder, tmp_path, capsys):
    spec = written(folder, arms={"none": {}, "wide": {"set": {"width": 16}}}, conditions={"fresh": {}}, teachers={},
                   seeds=[5, 9])  # fmt: skip
    given = ["--seeds", "3", "--set", "rows=800", "--set", "tuning_seeds=null", "--jobs", "1"]
    code, told, err = run(capsys, spec, *given, "--out", str(tmp_path), "--json")
    assert code == 0, err
    report = ReplayReport.model_validate_json(told)
    assert report.spec.seeds == (5, 6, 7)
    assert f"--seeds 3 --set rows=800 --set tuning_seeds=null --out {tmp_path}" in report.about.command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--verify", "runs/x", "--seeds", "2"], "--seeds is of no use with --verify"),
        (["--verify", "runs/x", "--arm", "a: batch_rows=2"], "--arm is of no use with --verify"),
        (["--compare", "a", "b", "--run-dir", "runs/x"], "--run-dir is of no use with --compare"),
        (["--compare", "a", "b", "--verify", "runs/x"], "--verify is of no use with --compare"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(arguments, words, capsys):
    code, _, err = run(capsys, *arguments)
    assert (code, words in err) == (2, True), err


@pytest.mark.parametrize(
    ("arms", "conditions", "teachers", "words"),
    [
        (["wide: batch_rows=64", "wide: batch_rows=32"], [], [], "duplicate arm `wide`"),
        (["as run: batch_rows=64"], [], [], "duplicate arm `as run`"),
        ([], ["half: missing=0.5", "half: lost=0.5"], [], "duplicate condition `half`"),
        ([], ["as logged: missing=1"], [], "duplicate condition `as logged`"),
        ([], ["larger: missing=1"], ["larger: dial=1"], "duplicate condition `larger`"),
        ([], [], ["larger: dial=1", "larger: dial=2"], "duplicate teacher `larger`"),
    ],
)
def test_two_of_one_name_are_refused(tmp_path, arms, conditions, teachers, words):
    (tmp_path / "config.yaml").write_text(dump(parse(small())))
    with pytest.raises(BadInput, match=words):
        load_run(RunDir(tmp_path), arms, conditions, teachers)


def test_a_replay_does_not_write_into_the_folder_of_a_run(tmp_path, capsys):
    (tmp_path / "run.lock").touch()
    with pytest.raises(SystemExit) as left:
        cli.main(["replay", "--run-dir", "absent", "--arm", "as it is", "--out", str(tmp_path)])
    assert left.value.code == 2
    assert "is the folder of a run; give one that the replay has to itself" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]

"""`exfm sweep`: a part is made once, whatever interrupts; tuned where it is not judged; figures worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from exfm.distillation.arm import Arm
from exfm.metrics.classification import normalised_entropy
from exfm.parallel.planning.cost import flops_per_example, training_flops_per_example
from pipelines.lab.data import data_of
from pipelines.lab.judging.comparison import losses
from pipelines.lab.parts import load_part
from pipelines.lab.replay import jobs as replay_jobs
from pipelines.lab.replay.choice import choose
from pipelines.lab.replay.judge import Judge
from pipelines.lab.replay.load import load
from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.replay.settings import settings_of
from pipelines.lab.replay.store import TrainRequest, requested
from pipelines.lab.replay.stream import stream_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.report.compare import read_report
from pipelines.lab.report.text import markdown
from pipelines.report.cells import MEAN
from tests.support.pipelines.replay_workspaces import result_of
from tests.support.pipelines.small_sweeps import MORE, SWEEP, run, with_small_stream, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_small_stream(tmp_path_factory.mktemp("sweep"))


@pytest.fixture
def made(monkeypatch):
    """What was really trained: teachers by seed, students by seed and whether in tuning."""
    found, teach, live = [], replay_jobs.lockstep_logits, replay_jobs.train_together

    def noting_teacher(config, *rest, **more):
        found.append(("teacher", config.seed))
        return teach(config, *rest, **more)

    def noting_students(workspace, requests, *rest):
        found.extend(("student", request.seed) for request in requests)
        return live(workspace, requests, *rest)

    monkeypatch.setattr(replay_jobs, "lockstep_logits", noting_teacher)
    monkeypatch.setattr(replay_jobs, "train_together", noting_students)
    return found


def test_an_interrupted_sweep_goes_on_with_what_is_missing_and_says_the_same(capsys, folder, made, monkeypatch):
    out, live = folder / "out", replay_jobs.train_together
    monkeypatch.setattr(replay_jobs, "SIDE_BY_SIDE", 1)
    arguments = [written(folder), "--out", str(out), "--jobs", "1", "--json"]

    def interrupted(*given, **more):
        if len(made) == 6:
            raise KeyboardInterrupt
        return live(*given, **more)

    monkeypatch.setattr(replay_jobs, "train_together", interrupted)
    code, _, err = run(capsys, *arguments)
    assert code == 130, err
    assert "the same command resumes" in err
    assert made == [("teacher", 1)] * 2 + [("teacher", 2)] * 2 + [("student", 1)] * 2
    assert not (out / "sweep.json").exists()
    damaged = sorted((out / "trials").iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:100])

    monkeypatch.setattr(replay_jobs, "train_together", live)
    made.clear()
    code, told, err = run(capsys, *arguments)
    assert code == 0, err
    # Of 8 trials 2 were done, 1 of them is damaged; of 2 arms in 3 conditions the baseline knows no teacher's logits,
    # so that it lives once, and once from the middle of the stream; and so does the regression.
    assert len(made) == 7 + 2 * (2 + 2 + 3)
    assert {kind for kind, _ in made} == {"student"}
    value = json.loads(told)
    assert json.loads((out / "sweep.json").read_text()) == value
    assert all(
        (out / name).stat().st_size > 1000 for name in ("sweep.md", "gains.png", "over_time.png", "ne_by_age.png")
    )

    made.clear()
    code, shown, _ = run(capsys, *arguments[:-1])
    assert (code, json.loads((out / "sweep.json").read_text()), made) == (0, value, [])
    assert "wrong · ctr: mean over students (students see 1.5 · logit -1)" in shown


def test_training_flops_are_those_of_its_rows_and_a_share_of_the_teachers(folder):
    value = read_report(folder / "out")
    sweep, config = load(written(folder))
    table = Workspace(sweep, config, folder / "out", None).rows(sweep.seeds[0]).table
    none, single = (
        config.student("feed").model.model_copy(update={"arm": Arm(kind=kind)}) for kind in ("none", "single_head")
    )
    features, rows = config.student_features(config.student("feed")), table["vertical"].to_pylist().count("feed")
    own = value.table.of("fresh", "feed", "ctr", "single").value("training_flops")
    assert own == rows * training_flops_per_example(single, features, 2)
    twin = value.table.of("fresh", "feed", "ctr", "none")
    assert twin.value("training_flops_with_teacher") == twin.value("training_flops")
    assert twin.value("training_flops") == rows * training_flops_per_example(none, features, 2)
    born_late = value.table.of("cold", "feed", "ctr", "none").value("training_flops")
    assert born_late == pytest.approx(twin.value("training_flops") / 2, rel=1e-3)
    teacher = table.num_rows * 4 * flops_per_example(config.teacher.model, config.teacher_features, 2)
    assert value.table.of("fresh", "feed", "ctr", "(teacher)").value("training_flops") == teacher
    for student in ("feed", MEAN):
        whole = value.table.of("wrong", student, "ctr", "single").value("training_flops_with_teacher")
        assert whole == pytest.approx(own + teacher / len(config.students))


def test_one_pass_is_judged_as_if_it_had_ended_at_a_point(capsys, folder, made):
    """… on parts that are there, by the second half of the rows up to it."""
    sweep, config = load(written(folder))
    workspace, student = Workspace(sweep, config, folder / "out", None), config.student("feed")
    arguments = [written(folder), "--out", str(folder / "out"), "--jobs", "1", "--json", "--set"]
    code, told, err = run(capsys, *arguments, "points=[3000,4000]")
    assert (code, made) == (0, []), err
    value = ReplayReport.model_validate_json(told)
    chosen = {choice.arm: choice for choice in value.chosen}
    gains = []
    for seed in sweep.seeds:
        table = workspace.rows(seed).table
        places = np.flatnonzero(np.array(table["vertical"].to_pylist()) == "feed")
        labels = table["label_ctr"].to_numpy(zero_copy_only=False)[places].astype(float)
        judged, ne = (places >= 1500) & (places < 3000) & ~np.isnan(labels), {}
        for arm in sweep.arms:
            setting = settings_of(sweep, student, arm)[chosen[arm].trial]
            part = load_part(requested(workspace, seed, setting.student, sweep.conditions["fresh"]).path)
            ne[arm] = normalised_entropy(part["logits"][judged, 0], labels[judged])
        gains.append(100 * (1 - ne["single"] / ne["none"]))
    single = value.table.of("fresh", "feed", "ctr", "single")
    assert single.value("gain/upto/3000") == pytest.approx(np.mean(gains))
    assert single.cell("gain/upto/3000").n < single.cell("gain/upto/4000").n
    for arm in ("single", "(teacher)"):
        mean, own = (value.table.of("fresh", name, "ctr", arm).value("gain/upto/3000") for name in (MEAN, "feed"))
        assert mean == own
    assert (folder / "out" / "curves.png").stat().st_size > 1000
    assert "ctr: gain over rows of the stream" in markdown(value)
    code, _, err = run(capsys, *arguments, "points=[3000,5000]")
    assert code == 2
    assert "points has 5,000, and the stream ends after 4," in err


def test_figures_are_those_worked_out_by_hand(folder):
    value = read_report(folder / "out")
    chosen = {choice.arm: choice for choice in value.chosen}
    sweep, config = load(written(folder))
    workspace = Workspace(sweep, config, folder / "out", None)
    student = config.student("feed")
    gains, nes = [], []
    for seed in sweep.seeds:
        table = workspace.rows(seed).table
        own = np.array([v == "feed" for v in table["vertical"].to_pylist()])
        labels = table["label_ctr"].to_numpy(zero_copy_only=False)[own].astype(float)
        judged = (np.flatnonzero(own) >= 0.5 * table.num_rows) & ~np.isnan(labels)
        ne = {}
        for arm in sweep.arms:
            setting = settings_of(sweep, student, arm)[chosen[arm].trial]
            path = requested(workspace, seed, setting.student, sweep.conditions["fresh"]).path
            ne[arm] = normalised_entropy(load_part(path)["logits"][judged, 0], labels[judged])
        gains.append(100 * (ne["none"] - ne["single"]) / ne["none"])
        nes.append(ne["single"])
    fresh, wrong, cold = (value.table.of(name, "feed", "ctr", "single") for name in ("fresh", "wrong", "cold"))
    gain = fresh.cell("gain")
    assert fresh.value("ne") == pytest.approx(np.mean(nes))
    none, regression = (value.table.of("fresh", "feed", "ctr", arm) for arm in ("none", "(ftrl)"))
    assert regression.value("gain") == pytest.approx(100 * (1 - regression.value("ne") / none.value("ne")), abs=0.5)
    assert gain.value == pytest.approx(np.mean(gains))
    error = abs(gains[0] - gains[1]) / 2  # sd / √2
    assert fresh.value("gain/se") == pytest.approx(error)
    assert gain.high - gain.value == pytest.approx(12.7062 * error, rel=1e-4)
    lead = value.table.of("fresh", "feed", "ctr", "(teacher)").cell("gain")
    transfer = fresh.value("transfer/teacher")
    assert (transfer is None) == (lead.low <= 0)
    if transfer is not None:
        assert transfer == pytest.approx(np.mean(gains) / lead.value)
    if (lost := wrong.value("lost/fresh")) is not None:
        assert lost == pytest.approx(1 - wrong.value("gain") / gain.value)
    for seed in ("1", "2"):
        assert cold.value(f"rows/{seed}") == pytest.approx(fresh.value(f"rows/{seed}"), abs=300)
    assert 0 < cold.cell("gain/early").n <= 0.05 * cold.value("rows/1")
    assert {arm: len(made.trials) for arm, made in value.spec.arms.items()} == {"none": 2, "single": 2}


def test_rows_of_one_user_count_as_one_where_the_stream_is_one(folder):
    """A single seed: its error is that of its rows, clustered."""
    sweep, config = load(written(folder), ["seeds=[1]"])
    workspace = Workspace(sweep, config, folder / "out", None)
    chosen = {choice.arm: choice for choice in read_report(folder / "out").chosen}
    parts = {}
    for arm in sweep.arms:
        setting = settings_of(sweep, config.student("feed"), arm)[chosen[arm].trial]
        for name, condition in sweep.conditions.items():
            parts[name, arm, 1] = requested(workspace, 1, setting.student, condition).path
    judge = Judge(workspace, config.student("feed"), "ctr", "none", parts)
    gain = judge.under("fresh").estimates["single"]["gain"].estimate
    told = gain.summary()
    assert (told["se"] > 0, len(gain.seeds)) == (True, 1)
    (rows,), (window,) = judge.rows, judge.samples("fresh")[0].windows
    base, own = (losses(judge.arm_logits("fresh", arm), judge.rows)[0][window] for arm in sweep.arms)
    whole = 100 * (1 - own.sum() / base.sum())
    # What leaving a user out changes, times the share that is left: a plain jackknife has the change of the share in it
    # too, here some 5 % more.
    pulls = []
    users = rows.clusters.codes[0][window]
    for user in np.unique(users):
        kept = users != user
        without = 100 * (1 - own[kept].sum() / base[kept].sum())
        pulls.append((whole - without) * base[kept].sum() / base.sum())
    n = len(pulls)
    assert told["se"] == pytest.approx(np.sqrt(n / (n - 1) * np.sum(np.square(pulls))), rel=1e-9)
    assert told["value"] == pytest.approx(whole)


def test_the_choice_does_not_see_the_half_that_is_judged(folder, tmp_path, monkeypatch):
    """A trial that is good only later is not taken, however good it is there."""
    sweep, config = load(written(folder), ["seeds=[1]", "teachers={}", "conditions={fresh: {}}"])
    workspace, student = Workspace(sweep, config, folder / "out", None), config.student("feed")
    good_first, good_later = settings_of(sweep, student, "single")

    def planted(workspace, requests, data, tell):
        known, half = 4 * data.labels - 2, workspace.rows(1).table.num_rows // 2
        for request in requests:
            better = (data.places < half) == (request.student.model.arm.weight == 0.5)
            logits = np.where(better[:, None], known, -known).astype(np.float32)
            yield result_of(logits)

    monkeypatch.setattr(replay_jobs, "train_together", planted)
    sums: dict[int, list] = {}
    for setting in (good_first, good_later):
        path = tmp_path / f"{setting.trial}.npz"
        asked = TrainRequest(1, setting.student, sweep.conditions["fresh"], path)
        replay_jobs.StudentJob(workspace, True, (asked,)).run(lambda count: None)
        sums[setting.trial] = [load_part(path)]
    chosen = choose([good_first, good_later], sums)
    assert chosen.setting == good_first
    assert chosen.ne[0] < 1 < 2 < chosen.ne[1]


def test_an_arm_may_learn_labels_or_logits_of_all_rows_and_is_judged_on_its_own(capsys, folder):
    out = str(folder / "out")  # where rows and teacher are there already
    arms = {
        "none": {"set": {"arm": {"kind": "none"}}, "student": {"distillation_rows": "all"}},
        "none all rows": {"set": {"arm": {"kind": "none"}}, "student": {"label_rows": "all"}},
        "head": {"set": {"arm": {"kind": "auxiliary_head"}}},
        "head all rows": {"set": {"arm": {"kind": "auxiliary_head"}}, "student": {"distillation_rows": "all"}},
    }
    changes = {"arms": arms, "baselines": ["none", "none all rows"], "conditions": {"fresh": {}}, "teachers": {}}
    code, told, err = run(capsys, written(folder, seeds=[1], **changes), "--out", out, "--jobs", "1", "--json")
    assert code == 0, err
    table = ReplayReport.model_validate_json(told).table
    found = {arm: table.of("fresh", "feed", "ctr", arm) for arm in arms}
    assert len({of.value("ne") for of in found.values()}) == 4
    assert len({of.cell("seconds_per_row").n for of in found.values()}) == 1  # a student's own
    alone = written(folder, **changes | {"arms": {"none": SWEEP["arms"]["none"] | {"tune": {}}}, "baselines": ["none"]})
    code, told, err = run(capsys, alone, "--set", "seeds=[1]", "--out", out, "--jobs", "1", "--json")
    assert code == 0, err
    none = ReplayReport.model_validate_json(told).table.of("fresh", "feed", "ctr", "none")
    assert none.cell("ne") == found["none"].cell("ne")  # it has no teacher whose logits it could learn from


def test_two_sweeps_in_one_process_and_folder_have_their_own_rows(folder, tmp_path, monkeypatch):
    seen = []
    live = replay_jobs.train_together

    def noted(workspace, requests, data, *rest):
        seen.append(data)
        return live(workspace, requests, data, *rest)

    monkeypatch.setattr(replay_jobs, "train_together", noted)
    for part in ("[0, 0.5]", "[0, 0.25]"):
        sweep, config = load(written(folder), ["seeds=[1]", f"chosen_on={part}"])
        asked = TrainRequest(1, config.student("feed"), sweep.conditions["fresh"], tmp_path / "part.npz")
        workspace = Workspace(sweep, config, folder / "out", None)
        replay_jobs.StudentJob(workspace, True, (asked,)).run(lambda count: None)
    assert len(seen[1].places) < 0.7 * len(seen[0].places)


def test_a_student_that_learns_a_share_of_the_negatives_is_judged_on_all_rows(folder):
    sweep, config = load(written(folder))
    workspace, student = Workspace(sweep, config, folder / "out", None), config.student("feed")
    table = stream_of(workspace, 1, sweep.conditions["fresh"]).slice()
    sampled = student.model_copy(update={"negative_rate": {"ctr": 0.3, "cvr": 0.5}})
    whole, some = data_of(table, workspace.of(1), student), data_of(table, workspace.of(1), sampled)
    assert (whole.places == some.places).all()
    assert (whole.labels == some.labels).all()
    every, share = (sum(len(each.rows) for each in data.stream if each.learned) for data in (whole, some))
    assert 0.2 < share / every < 0.6
    assert sorted(np.concatenate([each.rows for each in some.stream])) == list(range(len(some.places)))
    batches = list(some.stream)
    for before, beside, after in zip(batches, batches[1:], batches[2:-1], strict=False):
        if not beside.learned:  # predicted before the batch that ends behind them, after the one before
            assert before.rows[-1] < beside.rows[0] <= beside.rows[-1] < after.rows[-1]
    late = data_of(table, workspace.of(1), sampled, start=0.5)
    for data in (some, late):
        asked = TrainRequest(1, sampled, sweep.conditions["fresh"], folder / "part.npz")
        (life,) = replay_jobs.train_together(workspace, [asked], data, lambda count: None)
        assert len(life["logits"]) == len(some.places) - data.first
        assert np.isfinite(life["logits"]).all()
        assert np.isfinite(life["as_learned"]).all()
    assert some.first == 0 < late.first
    before, after = table["block"].to_numpy()[whole.places[late.first - 1 : late.first + 1]]
    assert before < after
    young = [len(each.batch) for each in late.stream if each.learned]
    assert young[:3] == [32, 32, 32]  # it is young, however old the stream is


def test_more_effort_for_one_arm_is_told_where_it_is_wanted(capsys, folder):
    arms = {"none": SWEEP["arms"]["none"], "single": MORE}
    sweep = written(folder, arms=arms, unequal_effort=True, conditions={"fresh": {}}, seeds=[1], teachers={})
    code, shown, err = run(capsys, sweep, "--out", str(folder / "out"), "--jobs", "1")
    assert code == 0, err
    assert "UNEQUAL EFFORT: the arms tried different numbers of settings (none 2, single 3)" in shown
    assert "one seed: its randomness is in every figure" in shown


def test_a_student_without_a_row_has_no_figures_and_keeps_nobody_from_theirs(capsys, folder, tmp_path):
    quiet = ["students.feed.verticals=[nobody]", "students.feed.negative_rate={ctr: 0.5}"]
    sweep = written(
        folder, students=["feed", "shop"], rows=1500, set=quiet, conditions={"fresh": {}}, teachers={}, seeds=[1]
    )
    code, told, err = run(capsys, sweep, "--out", str(tmp_path), "--jobs", "1", "--json")
    assert code == 0, err
    report = ReplayReport.model_validate_json(told)
    quiet_one, other = (report.table.of("fresh", student, "ctr", "single") for student in ("feed", "shop"))
    assert quiet_one.value("rows/1") == 0
    assert quiet_one.lacking("rows") == "positives (0)"
    assert "gain" not in quiet_one
    assert other.value("gain") != 0
    rows, positives = (int(other.value(f"{what}/1")) for what in ("rows", "positives"))
    assert other.lacking("gain") == f"positives ({positives})"
    line = f"| shop | single | {rows:,} | {positives} |{' – |' * 8} too few positives ({positives}) to tell |"
    assert line in markdown(report)


def test_students_that_learn_a_batch_together_learn_what_each_learns_alone(folder):
    """Arms of one seed, and one arm of two seeds: to the bit, whatever they work out once for all of them."""
    sweep, config = load(written(folder))
    workspace, student = Workspace(sweep, config, folder / "out", None), config.student("feed")
    fresh = sweep.conditions["fresh"]
    data = data_of(stream_of(workspace, 1, fresh).slice(), workspace.of(1), student)
    lighter = student.model_copy(update={"model": student.model.model_copy(update={"dense_lr": 0.001})})
    requests = [
        TrainRequest(1, each, fresh, folder / "part.npz", drawn_anew=anew)
        for each, anew in ((student, False), (lighter, False), (student, True))
    ]
    together = list(replay_jobs.train_together(workspace, requests, data, lambda count: None))
    for request, found in zip(requests, together, strict=True):
        (alone,) = replay_jobs.train_together(workspace, [request], data, lambda count: None)
        assert np.array_equal(alone["logits"], found["logits"])
        assert np.array_equal(alone["as_learned"], found["as_learned"])
        assert alone["rows"] == found["rows"]
    assert len({found["logits"].tobytes() for found in together}) == 3

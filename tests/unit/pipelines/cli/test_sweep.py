"""`exfm sweep`: a part is made once, whatever interrupts; tuned where it is not judged; figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

from exfm.distillation import Arm
from exfm.metrics import Clusters, normalised_entropy, paired_gain, variance_of
from pipelines.cli import console as cli
from pipelines.offline import load_part
from pipelines.offline.sweep import Place, load
from pipelines.offline.sweep import jobs as sweep_jobs
from pipelines.offline.sweep.choice import best_of, choose
from pipelines.offline.sweep.data import data_of
from pipelines.offline.sweep.figures import losses, mean_over_students
from pipelines.offline.sweep.judge import Judge
from pipelines.offline.sweep.settings import Setting, Snapshots, settings_of
from pipelines.offline.sweep.teachers import lockstep_logits
from pipelines.offline.sweep.text import markdown
from streaming.errors import BadInput

SWEEP = {
    "config": "small.yaml",
    "seeds": [1, 2],
    "students": ["feed"],
    "arms": {
        "none": {"set": {"arm": {"kind": "none"}}, "tune": {"dense_lr": [0.002, 0.008]}},
        "single": {"set": {"arm": {"kind": "single_head"}}, "tune": {"arm.weight": [0.5, 1]}},
    },
    "conditions": {"fresh": {}, "wrong": {"scale": 1.5, "shift": -1}, "cold": {"start": 0.5}},
    "teachers": {"blind": {"features": ["user_id", "ad_id"]}},
}


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = 0
    try:
        cli.main(["sweep", *arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def written(folder: Path, **changes) -> str:
    path = folder / f"{'-'.join(changes) or 'sweep'}.yaml"
    path.write_text(yaml.safe_dump(SWEEP | changes, sort_keys=False))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The demo's stream, smaller, with a small teacher."""
    raw = yaml.safe_load(Path("configs/demo.yaml").read_text())
    raw["source"] |= {"impressions": 4000, "users": 300, "ads": 40, "base_rate_scale": 5}
    raw["pace"] = {"mode": "lockstep", "block_rows": 512, "lag": 2}
    raw["teacher"] |= {"batch_rows": 256, "first_batch_rows": 256}  # few steps; a student's batches grow
    raw["teacher"]["model"] |= {"width": 4, "layers": 1, "num_fmb": 4, "num_lcb": 4, "rank": 4, "mlp": [8]}
    raw["student_defaults"]["model"] = {"width": 8, "arm": {"kind": "auxiliary_head"}}  # whatever the demo's own is
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "small.yaml").write_text(yaml.safe_dump(raw | {"name": "small"}))
    return folder


@pytest.fixture
def made(monkeypatch):
    """What was really trained: teachers by seed, students by seed and whether in tuning."""
    found, teach, live = [], sweep_jobs.lockstep_logits, sweep_jobs.one_life

    def noting_teacher(config, *rest, **more):
        found.append(("teacher", config.seed))
        return teach(config, *rest, **more)

    def noting_student(place, seed, *rest, **more):
        found.append(("student", seed))
        return live(place, seed, *rest, **more)

    monkeypatch.setattr(sweep_jobs, "lockstep_logits", noting_teacher)
    monkeypatch.setattr(sweep_jobs, "one_life", noting_student)
    return found


def test_an_interrupted_sweep_goes_on_with_what_is_missing_and_says_the_same(capsys, folder, made, monkeypatch):
    out, live = folder / "out", sweep_jobs.one_life
    arguments = [written(folder), "--out", str(out), "--jobs", "1", "--json"]

    def interrupted(*given, **more):
        if len(made) == 6:
            raise KeyboardInterrupt
        return live(*given, **more)

    monkeypatch.setattr(sweep_jobs, "one_life", interrupted)
    code, _, err = run(capsys, *arguments)
    assert code == 130, err
    assert "the same command resumes" in err
    assert made == [("teacher", 1)] * 2 + [("teacher", 2)] * 2 + [("student", 1)] * 2
    assert not (out / "sweep.json").exists()
    damaged = sorted((out / "trials").iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:100])

    monkeypatch.setattr(sweep_jobs, "one_life", live)
    made.clear()
    code, told, err = run(capsys, *arguments)
    assert code == 0, err
    # Of 8 trials 2 were done, 1 of them is damaged; of 2 arms in 3 conditions the baseline knows no teacher's logits,
    # so that it lives once, and once from the middle of the stream.
    assert len(made) == 7 + 2 * (2 + 3)
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


def test_figures_are_those_worked_out_by_hand(folder):
    value = json.loads((folder / "out" / "sweep.json").read_text())
    sweep, config = load(written(folder))
    place = Place(sweep, config, folder / "out", None)
    student = config.student("feed")
    gains, nes = [], []
    for seed in sweep.seeds:
        table = place.rows(seed).table
        own = np.array([v == "feed" for v in table["vertical"].to_pylist()])
        labels = table["label_ctr"].to_numpy(zero_copy_only=False)[own].astype(float)
        judged = (np.flatnonzero(own) >= 0.5 * table.num_rows) & ~np.isnan(labels)
        ne = {}
        for arm in sweep.arms:
            chosen = value["chosen"]["feed"][arm]
            setting = settings_of(sweep, config, student, arm)[chosen["trial"]]
            path = place.student_part(seed, setting.student, sweep.conditions["fresh"], tuning=False)
            ne[arm] = normalised_entropy(load_part(path)["logits"][judged, 0], labels[judged])
        gains.append(100 * (ne["none"] - ne["single"]) / ne["none"])
        nes.append(ne["single"])
    told = value["conditions"]["fresh"]["students"]["feed"]["ctr"]["arms"]["single"]
    assert told["ne"]["mean"] == pytest.approx(np.mean(nes))
    assert told["gain"]["value"] == pytest.approx(np.mean(gains))
    error = abs(gains[0] - gains[1]) / 2  # sd / √2
    assert told["gain"]["se"] == pytest.approx(error)
    assert told["gain"]["high"] - told["gain"]["value"] == pytest.approx(12.7062 * error, rel=1e-4)
    lead = value["conditions"]["fresh"]["students"]["feed"]["ctr"]["others"]["teacher"]["gain"]["value"]
    transfer = told["transfer"]["teacher"]
    assert (transfer is None) == (lead <= 0)
    if transfer is not None:
        assert transfer["value"] == pytest.approx(np.mean(gains) / lead)
    wrong = value["conditions"]["wrong"]["students"]["feed"]["ctr"]["arms"]["single"]
    if wrong["lost_to"]["fresh"] is not None:
        assert wrong["lost_to"]["fresh"]["value"] == pytest.approx(1 - wrong["gain"]["value"] / told["gain"]["value"])
    cold = value["conditions"]["cold"]["students"]["feed"]["ctr"]
    assert cold["rows"] == pytest.approx(value["conditions"]["fresh"]["students"]["feed"]["ctr"]["rows"], abs=300)
    assert 0 < cold["early_rows"][0] <= 0.05 * cold["rows"][0]
    assert value["sweep"]["trials"] == {"none": 2, "single": 2}


def test_rows_of_one_user_count_as_one_where_the_stream_is_one(folder):
    """A single seed: its error is that of its rows, clustered."""
    sweep, config = load(written(folder), ["seeds=[1]"])
    place = Place(sweep, config, folder / "out", None)
    value = json.loads((folder / "out" / "sweep.json").read_text())
    parts = {}
    for arm in sweep.arms:
        setting = settings_of(sweep, config, config.student("feed"), arm)[value["chosen"]["feed"][arm]["trial"]]
        for name, condition in sweep.conditions.items():
            parts[name, arm, 1] = place.student_part(1, setting.student, condition, tuning=False)
    judge = Judge(place, config.student("feed"), "ctr", "none", parts)
    gain = judge.under("fresh")["arms"]["single"]["gain"]
    told = gain.summary()
    assert (told["se"] > 0, len(gain.seeds)) == (True, 1)
    (rows,), (window,) = judge.rows, judge.windows("fresh")[0]
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
    place, student = Place(sweep, config, folder / "out", None), config.student("feed")
    good_first, good_later = settings_of(sweep, config, student, "single")

    def planted(place, seed, setting, data, tell, **more):
        known, half = 4 * data.labels - 2, place.rows(seed).table.num_rows // 2
        better = (data.places < half) == (setting.model.arm.weight == 0.5)
        logits = np.where(better[:, None], known, -known).astype(np.float32)
        return {"logits": logits, "first": 0, "seconds": 1.0, "left_out": 0, "rows": len(logits)}

    monkeypatch.setattr(sweep_jobs, "one_life", planted)
    sums: dict[int, list] = {}
    for setting in (good_first, good_later):
        path = tmp_path / f"{setting.trial}.npz"
        asked = sweep_jobs.Asked(setting.student, sweep.conditions["fresh"], path)
        sweep_jobs.StudentJob(place, 1, True, (asked,)).run(lambda count: None)
        sums[setting.trial] = [load_part(path)]
    chosen = choose([good_first, good_later], sums)
    assert chosen.setting == good_first
    assert chosen.ne[0] < 1 < 2 < chosen.ne[1]


FAIR = {
    "seeds": [1, 2],
    "tuning_seeds": [7],
    "baselines": ["none", "none wide"],
    "arms": {
        "none": {"set": {"arm": {"kind": "none"}}},
        "none wide": {"set": {"arm": {"kind": "none"}, "width": 16}},
        "single": {"set": {"arm": {"kind": "single_head"}}, "tune": {"dense_lr": [0.008]}},
    },
    "conditions": {
        "fresh": {},
        "stale": {"behind": 2},
        "as mature": {"born": 2},
        "blind": {"teacher": "blind"},
        "blind and stale": {"teacher": "blind", "behind": 2},
        "knows nothing more": {"teacher": "twin"},
    },
}


@pytest.fixture(scope="module")
def fair(folder):
    """A sweep of two baselines and of teachers of every kind, tuned on a seed that is not judged; its report."""
    path = written(folder, **FAIR)
    with pytest.raises(SystemExit) as left:
        cli.main(["sweep", path, "--out", str(folder / "fair"), "--jobs", "1"])
    assert not left.value.code
    return json.loads((folder / "fair" / "sweep.json").read_text())


def test_seeds_that_are_judged_were_not_tuned_on_and_the_report_says_so(fair, folder):
    about = fair["sweep"]
    assert (about["tuning_seeds"], about["seeds"], about["unseen_seeds"]) == ([7], [1, 2], [1, 2])
    assert {path.name.split("-")[1] for path in (folder / "fair" / "trials").iterdir()} == {"seed7"}
    assert {path.name.split("-")[1] for path in (folder / "fair" / "students").iterdir()} == {"seed1", "seed2"}
    assert "with seeds 7; judged on the second half with seeds 1, 2 (none of them seen in tuning)" in markdown(fair)


def test_arms_are_compared_with_each_baseline_and_with_the_best_twin(fair):
    best = fair["sweep"]["best_twins"]["feed"]
    ne = {arm: fair["chosen"]["feed"][arm]["ne_of_trials"][0] for arm in FAIR["baselines"]}
    assert best == min(ne, key=ne.get)
    for of_condition in fair["conditions"].values():
        arms = of_condition["students"]["feed"]["ctr"]["arms"]
        assert arms["single"]["gain"] == arms["single"]["gain_over"][best]
        assert set(arms["single"]["gain_over"]) == set(FAIR["baselines"])
        assert set(arms["none"]["gain_over"]) == {"none wide"}
        assert "gain" not in arms["none"]


def test_the_cost_of_age_is_told_apart_from_that_of_immaturity(fair):
    arms = {name: of["students"]["feed"]["ctr"]["arms"]["single"] for name, of in fair["conditions"].items()}
    assert fair["sweep"]["controls"]["stale"] == {"fresh": "fresh", "as mature": "as mature"}
    assert fair["sweep"]["controls"]["as mature"] == {"fresh": "fresh"}
    assert fair["sweep"]["controls"]["blind and stale"] == {"fresh": "blind"}
    for condition, controls in fair["sweep"]["controls"].items():
        for kind, control in controls.items():
            lost, gain = arms[condition]["lost_to"][kind], arms[control]["gain"]["value"]
            assert (lost is None) == (gain <= 0)
            if lost is not None:
                assert lost["value"] == pytest.approx(1 - arms[condition]["gain"]["value"] / gain)
    text = markdown(fair)
    assert "| gain lost to the fault | gain lost to age | worst student" in text
    assert "the teacher begins 2 blocks later" in text


def test_students_learn_from_the_teacher_that_their_condition_names(fair, folder):
    sweep, config = load(written(folder, **FAIR))
    place = Place(sweep, config, folder / "fair", None)
    logits = {
        name: place.lake(1, condition)["teacher_logit_ctr"].to_numpy()
        for name, condition in sweep.conditions.items()
        if name != "knows nothing more"
    }
    assert len({z.tobytes() for z in logits.values()}) == len(logits)
    assert np.array_equal(logits["blind"], place.teacher_logits(1, Snapshots("blind"))[:, 0], equal_nan=True)
    student = settings_of(sweep, config, config.student("feed"), "none")[0].student
    twin = place.student_part(1, student, sweep.conditions["fresh"], tuning=False, drawn_anew=True)
    own = place.lake(1, sweep.conditions["knows nothing more"], student, twin)
    known = own.filter(pc.is_valid(own["teacher_logit_ctr"]))
    assert set(known["vertical"].to_pylist()) == {"feed"}
    assert set(known["teacher_logit_ctr"].to_pylist()) <= set(load_part(twin)["logits"][:, 0].tolist())
    nothing = fair["conditions"]["knows nothing more"]["students"]["feed"]["ctr"]["others"]["teacher"]
    none = fair["conditions"]["fresh"]["students"]["feed"]["ctr"]["arms"]["none"]
    assert nothing["ne"] != none["ne"]
    assert nothing["ne"]["mean"] == pytest.approx(none["ne"]["mean"], abs=0.03)  # the same student, of another draw


def test_rows_that_share_a_user_or_an_ad_are_not_independent_in_an_arms_interval(folder, fair):
    """One seed, clustered by two columns: the interval is that of `paired_gain` on the judged rows. And the mean over
    students is as wide as that over the rows of both."""
    sweep, config = load(written(folder, **FAIR), ["seeds=[1]", "cluster=[user_id, ad_id]"])
    place = Place(sweep, config, folder / "fair", None)
    parts = {}
    for arm in sweep.arms:
        setting = settings_of(sweep, config, config.student("feed"), arm)[fair["chosen"]["feed"][arm]["trial"]]
        parts["fresh", arm, 1] = place.student_part(1, setting.student, sweep.conditions["fresh"], tuning=False)
    judge = Judge(place, config.student("feed"), "ctr", "none", parts)
    judged = judge.under("fresh")
    gain = judged["arms"]["single"]["gain"]
    (rows,), (window,) = judge.rows, judge.windows("fresh")[0]
    seen = place.rows(1).table.take(pa.array(rows.places[window]))
    own, base = (judge.arm_logits("fresh", arm)[0][window] for arm in ("single", "none"))
    clusters = Clusters.of(seen["user_id"].to_numpy(), seen["ad_id"].to_numpy())
    expected = paired_gain(own, base, rows.labels[window], clusters)
    assert gain.summary()["se"] == pytest.approx(expected.standard_error)
    assert (gain.value, gain.summary()["low"]) == pytest.approx((expected.difference, expected.low))
    assert gain.summary()["se"] >= variance_of(gain.clusters[:1]).value ** 0.5 * (1 - 1e-9)
    twice = mean_over_students([gain, gain], [judged["clusters"]] * 2)
    assert twice.summary() == pytest.approx(gain.summary())


def test_a_teacher_that_begins_later_is_one_whose_stream_begins_there(folder):
    """In blocks of one size: those of a stream that begins there would be small at first."""
    sweep, config = load(written(folder, **FAIR))
    place = Place(sweep, config, folder / "fair", None)
    table, config = place.rows(1).table, place.of(1)
    size = config.pace.block_rows
    config = config.model_copy(update={"pace": config.pace.model_copy(update={"first_block_rows": size})})
    given = config, config.teacher_features, config.teacher.model
    later = lockstep_logits(*given, table, behinds=(0,), born=2, advance=lambda done: None)[0].logits
    alone = lockstep_logits(*given, table.slice(2 * size), behinds=(0,), advance=lambda done: None)[0].logits
    assert np.array_equal(later[2 * size :], alone, equal_nan=True)


def test_each_tenth_of_the_stream_is_shown_for_every_arm_and_teacher(fair):
    of = fair["conditions"]["fresh"]["students"]["feed"]["ctr"]
    for figures in [*of["arms"].values(), of["others"]["teacher"], of["others"]["optimum"]]:
        assert len(figures["ne_by_tenth"]) == 10
        assert all(ne > 0.3 for ne in figures["ne_by_tenth"])
    first, *_, last = zip(*(of["others"][name]["ne_by_tenth"] for name in ("teacher", "optimum")), strict=True)
    assert first[0] > first[1]
    assert last[0] > last[1]


def test_a_grid_is_extended_beyond_its_edge_by_one_rule_for_all_arms(capsys, folder, tmp_path, monkeypatch):
    """Planted: the higher the rate the better, up to .032 for `single` and without end for `none`."""

    def planted(place, seed, setting, data, tell, **more):
        rate = setting.model.dense_lr
        good = rate if setting.model.arm.kind == "none" else -abs(rate - 0.032)
        logits = (0.5 + 5 * good) * (2 * data.labels - 1)
        return {"logits": logits.astype(np.float32), "first": 0, "seconds": 1.0, "left_out": 0, "rows": len(logits)}

    monkeypatch.setattr(sweep_jobs, "one_life", planted)
    tune = {"dense_lr": [0.004, 0.008, 0.016]}
    arms = {name: arm | {"tune": tune} for name, arm in SWEEP["arms"].items()}
    sweep = written(folder, arms=arms, conditions={"fresh": {}}, teachers={}, seeds=[1])
    code, told, err = run(capsys, sweep, "--out", str(tmp_path), "--jobs", "1", "--json")
    assert code == 0, err
    report = json.loads(told)
    chosen = report["chosen"]["feed"]
    found = {arm: (c["tuned"]["dense_lr"], c["beyond_the_grid"], c["at_the_edge"]) for arm, c in chosen.items()}
    assert found == {"none": (0.064, 2, ["dense_lr"]), "single": (0.032, 2, [])}
    assert "beyond the edges of grids, by one rule for all arms" in report["notes"][0]
    assert "`none` feed by 2; `single` feed by 2" in report["notes"][0]
    code, told, err = run(capsys, sweep, "--set", "extend=false", "--out", str(tmp_path), "--jobs", "1", "--json")
    assert code == 0, err
    assert {c["tuned"]["dense_lr"] for c in json.loads(told)["chosen"]["feed"].values()} == {0.016}


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
    found = json.loads(told)["conditions"]["fresh"]["students"]["feed"]["ctr"]["arms"]
    assert len({arm["ne"]["mean"] for arm in found.values()}) == 4
    assert len({arm["cost"]["rows"] for arm in found.values()}) == 1  # a student's own
    alone = written(folder, **changes | {"arms": {"none": SWEEP["arms"]["none"] | {"tune": {}}}, "baselines": ["none"]})
    code, told, err = run(capsys, alone, "--set", "seeds=[1]", "--out", out, "--jobs", "1", "--json")
    assert code == 0, err
    none = json.loads(told)["conditions"]["fresh"]["students"]["feed"]["ctr"]["arms"]["none"]
    assert none["ne"] == found["none"]["ne"]  # it has no teacher whose logits it could learn from


def test_a_teacher_may_have_the_features_of_students_whatever_they_are(folder):
    sweep, config = load(written(folder, teachers={"alike": {"features": "students"}, "large": {}}))
    place = Place(sweep, config, folder / "out", None)
    alike, large = (set(place.teacher(name)[0].names) for name in ("alike", "large"))
    assert alike == set(config.student_features(config.student("feed")).names)
    assert large - alike == set(config.teacher.only) > set()


def test_an_arm_that_names_a_preset_replaces_the_students_own(folder):
    arm = {"preset": "recommended", "weight": 2}
    sweep, config = load(written(folder, arms={"none": {}, "recommended": {"set": {"arm": arm}}}))
    (setting,) = settings_of(sweep, config, config.student("feed"), "recommended")
    assert setting.student.model.arm == Arm.model_validate(arm)
    assert setting.student.model.arm != config.student("feed").model.arm


def test_what_is_tuned_may_be_the_students_own(folder):
    sweep, config = load(written(folder, arms={"none": {"tune": {"student.batch_rows": [128, 512], "width": [4, 8]}}}))
    tried = settings_of(sweep, config, config.student("feed"), "none")
    assert [(s.student.batch_rows, s.student.model.width) for s in tried] == [(128, 4), (128, 8), (512, 4), (512, 8)]


def test_two_sweeps_in_one_process_and_folder_have_their_own_rows(folder, tmp_path, monkeypatch):
    seen = []
    life = sweep_jobs.one_life

    def noted(place, seed, setting, data, *rest, **more):
        seen.append(data)
        return life(place, seed, setting, data, *rest, **more)

    monkeypatch.setattr(sweep_jobs, "one_life", noted)
    for part in ("[0, 0.5]", "[0, 0.25]"):
        sweep, config = load(written(folder), ["seeds=[1]", f"chosen_on={part}"])
        asked = sweep_jobs.Asked(config.student("feed"), sweep.conditions["fresh"], tmp_path / "part.npz")
        place = Place(sweep, config, folder / "out", None)
        sweep_jobs.StudentJob(place, 1, True, (asked,)).run(lambda count: None)
    assert len(seen[1].places) < 0.7 * len(seen[0].places)


def test_the_edge_of_a_grid_is_told(folder):
    def sums(loss):
        return [{"loss": np.array([loss]), "weight": np.array([10.0]), "positive": np.array([5.0])}]

    _, config = load(written(folder))
    tried = [Setting("a", n, {"lr": lr}, config.student("feed")) for n, lr in enumerate((0.1, 0.2, 0.4))]
    assert choose(tried, {0: sums(3.0), 1: sums(2.0), 2: sums(1.0)}).edges == ["lr"]
    assert choose(tried, {0: sums(3.0), 1: sums(1.0), 2: sums(2.0)}).edges == []
    assert choose(tried, {0: sums(float("nan")), 1: sums(1.0), 2: sums(2.0)}).ne[0] is None
    assert best_of({"a": choose(tried[:1], {0: sums(2.0)}), "b": choose(tried[:1], {0: sums(1.0)})}) == "b"


def test_a_student_that_learns_a_share_of_the_negatives_is_judged_on_all_rows(folder):
    sweep, config = load(written(folder))
    place, student = Place(sweep, config, folder / "out", None), config.student("feed")
    table = place.lake(1, sweep.conditions["fresh"])
    sampled = student.model_copy(update={"negative_rate": {"ctr": 0.3, "cvr": 0.5}})
    whole, some = data_of(table, place.of(1), student), data_of(table, place.of(1), sampled)
    assert (whole.places == some.places).all()
    assert (whole.labels == some.labels).all()
    assert 0.2 < len(some.learned) / len(whole.learned) < 0.6
    rows = np.concatenate([some.learned, *(beside[0] for beside in some.scored_only if beside is not None)])
    assert sorted(rows) == list(range(len(some.places)))
    for i, beside in enumerate(some.scored_only):  # scored before the batch that ends behind it, after the one before
        if beside is not None and 0 < i < len(some.batches) - 1:
            ends = some.learned[some.bounds[[i, i + 1]] - 1]
            assert ((beside[0] > ends[0]) & (beside[0] < ends[1])).all()
    late = data_of(table, place.of(1), sampled, start=0.5)
    for data in (some, late):
        life = sweep_jobs.one_life(place, 1, sampled, data, lambda count: None)
        assert len(life["logits"]) == len(some.places) - data.first
        assert np.isfinite(life["logits"]).all()
    assert some.first == 0 < late.first
    before, after = table["block"].to_numpy()[whole.places[late.first - 1 : late.first + 1]]
    assert before < after
    assert [len(batch) for batch in late.batches[:3]] == [32, 32, 32]  # it is young, however old the stream is


NONE = SWEEP["arms"]["none"]
MORE = {"set": {"arm": {"kind": "single_head"}}, "tune": {"arm.weight": [0.5, 1, 2]}}


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


def test_more_effort_for_one_arm_is_told_where_it_is_wanted(capsys, folder):
    arms = {"none": SWEEP["arms"]["none"], "single": MORE}
    sweep = written(folder, arms=arms, unequal_effort=True, conditions={"fresh": {}}, seeds=[1], teachers={})
    code, shown, err = run(capsys, sweep, "--out", str(folder / "out"), "--jobs", "1")
    assert code == 0, err
    assert "UNEQUAL EFFORT: the arms tried different numbers of settings (none 2, single 3)" in shown
    assert "one seed: its randomness is in every figure" in shown


def test_a_lake_has_no_older_logits(capsys, folder, tmp_path):
    sweep = written(folder, conditions={"fresh": {}, "old": {"behind": 1}})
    code, _, err = run(capsys, sweep, "--from", str(tmp_path), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "condition `old` wants logits of other snapshots (behind: 1)" in err


@pytest.mark.parametrize("path", sorted(Path("configs/sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_is_valid(path):
    sweep, _ = load(path)
    assert not sweep.unequal


def test_a_student_without_a_row_has_no_figures_and_keeps_nobody_from_theirs(capsys, folder, tmp_path):
    quiet = ["students.feed.verticals=[nobody]", "students.feed.negative_rate={ctr: 0.5}"]
    sweep = written(
        folder, students=["feed", "shop"], rows=1500, set=quiet, conditions={"fresh": {}}, teachers={}, seeds=[1]
    )
    code, told, err = run(capsys, sweep, "--out", str(tmp_path), "--jobs", "1", "--json")
    assert code == 0, err
    report = json.loads(told)
    students = report["conditions"]["fresh"]["students"]
    assert students["feed"]["ctr"]["rows"] == [0]
    assert students["feed"]["ctr"]["too_few"] == "positives (0)"
    positives = students["shop"]["ctr"]["positives"][0]
    assert students["shop"]["ctr"]["arms"]["single"]["gain"]["too_few"] == f"positives ({positives})"
    assert f"| shop | {positives} | single | – | – | – | – | too few positives ({positives}) to tell |" in markdown(
        report
    )
    assert students["feed"]["ctr"]["arms"]["single"]["gain"] is None
    assert students["shop"]["ctr"]["arms"]["single"]["gain"]["value"] != 0


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

"""`exfm sweep`: a part is made once, whatever interrupts; tuned where it is not judged; figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from exfm.metrics import normalised_entropy
from pipelines.cli import console as cli
from pipelines.offline import load_part
from pipelines.offline.sweep import Place, load
from pipelines.offline.sweep import jobs as sweep_jobs
from pipelines.offline.sweep.choice import choose
from pipelines.offline.sweep.data import data_of
from pipelines.offline.sweep.figures import losses
from pipelines.offline.sweep.judge import Judge
from pipelines.offline.sweep.settings import Setting, settings_of
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
    "references": {"blind": {"features": ["user_id", "ad_id"]}},
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
    raw["source"] |= {"impressions": 4000, "users": 300, "ads": 40}
    raw["pace"] = {"mode": "lockstep", "block_rows": 512, "lag": 2}
    raw["teacher"]["batch_rows"] = 256
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

    def noting_student(place, seed, *rest):
        found.append(("student", seed))
        return live(place, seed, *rest)

    monkeypatch.setattr(sweep_jobs, "lockstep_logits", noting_teacher)
    monkeypatch.setattr(sweep_jobs, "one_life", noting_student)
    return found


def test_an_interrupted_sweep_goes_on_with_what_is_missing_and_says_the_same(capsys, folder, made, monkeypatch):
    out, live = folder / "out", sweep_jobs.one_life
    arguments = [written(folder), "--out", str(out), "--jobs", "1", "--json"]

    def interrupted(*given):
        if len(made) == 6:
            raise KeyboardInterrupt
        return live(*given)

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
    assert all((out / name).stat().st_size > 1000 for name in ("sweep.md", "gains.png", "over_time.png"))

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
    if wrong["lost"] is not None:
        assert wrong["lost"]["value"] == pytest.approx(1 - wrong["gain"]["value"] / told["gain"]["value"])
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
    judge = Judge(place, config.student("feed"), "ctr", parts)
    gain = judge.under("fresh")["arms"]["single"]["gain"]
    told = gain.summary()
    assert (told["se"] > 0, len(gain.seeds)) == (True, 1)
    (rows,), (window,) = judge.rows, judge.windows("fresh")[0]
    base, own = (losses(judge.arm_logits("fresh", arm), judge.rows)[0][window] for arm in sweep.arms)
    whole = 100 * (1 - own.sum() / base.sum())
    # What leaving a user out changes, times the share that is left: a plain jackknife has the change of the share in it
    # too, here some 5 % more.
    pulls = []
    for user in np.unique(rows.clusters[window]):
        kept = rows.clusters[window] != user
        without = 100 * (1 - own[kept].sum() / base[kept].sum())
        pulls.append((whole - without) * base[kept].sum() / base.sum())
    n = len(pulls)
    assert told["se"] == pytest.approx(np.sqrt(n / (n - 1) * np.sum(np.square(pulls))), rel=1e-9)
    assert told["value"] == pytest.approx(whole)


def test_the_choice_does_not_see_the_half_that_is_judged(folder, tmp_path, monkeypatch):
    """A trial that is good only later is not taken, however good it is there."""
    sweep, config = load(written(folder), ["seeds=[1]", "references={}", "conditions={fresh: {}}"])
    place, student = Place(sweep, config, folder / "out", None), config.student("feed")
    good_first, good_later = settings_of(sweep, config, student, "single")

    def planted(place, seed, setting, data, born, tell):
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


def test_two_sweeps_in_one_process_and_folder_have_their_own_rows(folder, tmp_path, monkeypatch):
    seen = []
    life = sweep_jobs.one_life

    def noted(place, seed, setting, data, *rest):
        seen.append(data)
        return life(place, seed, setting, data, *rest)

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
    for born in (some.born(0.0, table["block"].to_numpy()), some.born(0.5, table["block"].to_numpy())):
        life = sweep_jobs.one_life(place, 1, sampled, some, born, lambda count: None)
        assert len(life["logits"]) == len(some.places) - born[0]
        assert np.isfinite(life["logits"]).all()
    assert whole.born(0.5, table["block"].to_numpy())[0] == born[0] > 0
    before, after = table["block"].to_numpy()[whole.places[born[0] - 1 : born[0] + 1]]
    assert before < after


NONE = SWEEP["arms"]["none"]
MORE = {"set": {"arm": {"kind": "single_head"}}, "tune": {"arm.weight": [0.5, 1, 2]}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": {"none": NONE, "more": MORE}}, "do not try equally many settings (none 2, more 3)"),
        ({"baseline": "twin"}, "baseline is `twin`, which is no arm"),
        ({"chosen_on": [0.0, 0.8]}, "chosen_on is 0.0 to 0.8; it must lie within 0 to 0.5"),
        ({"conditions": {"cold": {"start": 0.5}}}, "students start at 0"),
        ({"students": ["fed"]}, "students names `fed`; did you mean `feed`?"),
        ({"cluster": "user"}, "cluster is column `user`; did you mean `user_id`?"),
        ({"references": {"r": {"features": ["x"]}}}, "references.r.features names `x`"),
        ({"arms": {"none": {"set": {"arm": {"kind": "none", "adapter": True}}}}}, "has no place for a student adapter"),
        ({"arms": {"none": {"tune": {"dense_rate": [1]}}}}, "model.dense_rate: unknown key"),
        ({"arms": {"none": {"student": {"tasks": ["ctr"]}}}}, "arm `none` changes tasks"),
        ({"arms": {"none": {"tuned": {}}}}, "arms.none.tuned: unknown key"),
        ({"seeds": [1, 1]}, "one of them is repeated"),
    ],
)
def test_what_cannot_be_swept_is_told(folder, changes, message):
    with pytest.raises(BadInput) as told:
        load(written(folder, **changes))
    assert message in str(told.value)


def test_more_effort_for_one_arm_is_told_where_it_is_wanted(capsys, folder):
    arms = {"none": SWEEP["arms"]["none"], "single": MORE}
    sweep = written(folder, arms=arms, unequal_effort=True, conditions={"fresh": {}}, seeds=[1], references={})
    code, shown, err = run(capsys, sweep, "--out", str(folder / "out"), "--jobs", "1")
    assert code == 0, err
    assert "UNEQUAL EFFORT: the arms tried different numbers of settings (none 2, single 3)" in shown
    assert "one seed: its randomness is in every figure" in shown


def test_a_lake_has_no_older_logits(capsys, folder, tmp_path):
    sweep = written(folder, conditions={"fresh": {}, "old": {"behind": 1}})
    code, _, err = run(capsys, sweep, "--from", str(tmp_path), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "condition `old` wants logits of older snapshots (behind: 1)" in err


@pytest.mark.parametrize("path", sorted(Path("configs/sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_is_valid(path):
    sweep, _ = load(path)
    assert not sweep.unequal


def test_a_student_without_a_row_has_no_figures_and_keeps_nobody_from_theirs(capsys, folder, tmp_path):
    quiet = ["students.feed.verticals=[nobody]", "students.feed.negative_rate={ctr: 0.5}"]
    sweep = written(
        folder, students=["feed", "shop"], rows=1500, set=quiet, conditions={"fresh": {}}, references={}, seeds=[1]
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
    recorded = written(folder, config=str(Path("configs/movielens.yaml").resolve()), references={},
                       students=["comedy"], set=["source.path=nowhere.parquet"])  # fmt: skip
    file = recorded if which == "no file" else written(folder)
    monkeypatch.chdir(tmp_path)
    arguments, message = MISTAKES[which]
    if which == "no lake":
        arguments = [*arguments, "--set", "references={}"]
    code, _, err = run(capfd, file, "--jobs", "2", *arguments)
    assert (code, err.replace(f"{folder}/", "")[: len(message)]) == (2, message)

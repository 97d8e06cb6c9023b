"""`exfm replay --run-dir`: arms and conditions over the lake of a run."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from exfm.parallel.planning.cost import flops_per_example
from exfm.parallel.planning.family import scaled_teacher
from exfm.snapshots.checkpoint import checkpoint_names
from exfm.snapshots.manifest import read_manifest
from pipelines.cli import console as cli
from pipelines.lab.data import data_of, places_of
from pipelines.lab.logits.starts import learned_upto
from pipelines.lab.parts import load_part
from pipelines.lab.replay import jobs as replay_jobs
from pipelines.lab.replay.load import load_run
from pipelines.lab.replay.report import ReplayReport
from pipelines.lab.replay.settings import Spec
from pipelines.lab.replay.store import TrainRequest
from pipelines.lab.replay.stream import labels_under, stream_of, teacher_logits
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.report.compare import read_report
from pipelines.lab.spec.arms import ArmSpec
from pipelines.lab.spec.conditions import Condition
from pipelines.live.training.predictions import read_predictions
from streaming.errors import BadInput
from streaming.lake.readers import Readers
from streaming.sources.synthetic.truth import read_truth
from tests.support.pipelines.replay_workspaces import learned_alone
from tests.support.pipelines.small_runs import SNAPSHOTS, finished_once, small

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory):
    return finished_once(small, broker.bootstrap_servers, tmp_path_factory.mktemp("replayed") / "run", **SNAPSHOTS)


ARMS = [
    "wide: model.trunk.mlp=[32, 16], batch_rows=128",
    "small table: features.user_id.rows=100, features.user_x_ad={kind: sparse, columns: [user_id, ad_id], rows: 500}",
    "bids: where=bid > 0.5",
    "late: first_seq=1500",
]
CONDITIONS = ["half: missing=0.5", "none: missing=1", "deaf: lost=0.5, unknown=0.2", "old: stale_snapshots=1"]


def run(capsys, *arguments: str):
    """The exit code, the report, and what stands on stderr."""
    code = 0
    try:
        cli.main(["replay", *arguments, "--json"])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, ReplayReport.model_validate_json(out) if out else None, err


def lines(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


@pytest.fixture(scope="module")
def replayed(finished, tmp_path_factory):
    """The folder of one replay, and its command."""
    folder = tmp_path_factory.mktemp("out") / "replay"
    first = oldest(finished.run_dir) + 1
    arguments = ["--run-dir", str(finished.run_dir.root), "--students", "feed", "--seeds", "2", "--out", str(folder)]
    arguments += [*lines("--arm", ARMS[:2]), *lines("--condition", CONDITIONS[:3]), "--from", str(first)]
    with pytest.raises(SystemExit) as end:
        cli.main(["replay", *arguments, "--jobs", "1"])
    assert not end.value.code
    return folder, arguments


def oldest(run_dir) -> int:
    """The last row of the oldest stored snapshot."""
    name = checkpoint_names(run_dir.snapshots)[0]
    return int(read_manifest(run_dir.snapshots / name)["meta"]["lake_seq"])


def test_the_runs_own_settings_give_what_the_run_predicted(finished, tmp_path):
    spec, config = load_run(finished.run_dir, [], students=["feed"])
    workspace = Workspace(spec, config, tmp_path, finished.run_dir)
    student = config.student("feed")
    data = data_of(stream_of(workspace, config.seed, spec.conditions["as logged"]), config, student)
    life = learned_alone(workspace, config.seed, student, data)
    logged = read_predictions(finished.run_dir.predictions("feed"))
    assert np.array_equal(life["as_learned"][:, 0], logged["student_ctr"].to_numpy())


def test_batches_that_do_not_fit_into_memory_are_built_once_for_all_arms_to_the_same_bits(
    finished, tmp_path, monkeypatch
):
    spec, config = load_run(finished.run_dir, ["wide: model.trunk.mlp=[32]"], students=["brand"], seeds=2)
    workspace, student = Workspace(spec, config, tmp_path, finished.run_dir), config.student("brand")
    student = student.model_copy(update={"negative_rate": {"ctr": 0.5}})
    wide = student.model_copy(update={"model": student.model.model_copy(update={"width": 8})})
    table, made = stream_of(workspace, 3, Condition()), []
    stretches = replay_jobs.data_of

    def counted(*args, **more):
        made.append(1)
        return stretches(*args, **more, held_rows=500)

    alone = [learned_alone(workspace, 3, s, data_of(table, workspace.of(3), s)) for s in (student, wide)]
    monkeypatch.setattr(replay_jobs, "data_of", counted)
    asked = [TrainRequest(3, s, Condition(), tmp_path / f"{n}.npz", arm="wide") for n, s in enumerate((student, wide))]
    replay_jobs.shared_data.cache_clear()
    replay_jobs.StudentJob(workspace, False, tuple(asked)).run(lambda count: None)
    assert len(made) == 1
    for one, life in zip(asked, alone, strict=True):
        part = load_part(one.path)
        for name in ("logits", "as_learned"):
            assert np.array_equal(part[name], life[name])
            assert np.isfinite(part[name]).all()


def test_a_replay_of_a_range_compares_arms_and_conditions(finished, replayed):
    folder, _ = replayed
    report = read_report(folder)
    assert report.table.conditions == ["as logged", "half", "none", "deaf"]
    arms = report.table.arms("as logged", "feed", "ctr")
    assert [arm for arm in arms if not arm.startswith("(")] == ["as run", "wide", "small table"]
    span = json.loads((folder / "span.json").read_text())["span"]
    assert span == [oldest(finished.run_dir) + 1, finished.lake.num_rows - 1]
    assert report.about.rows == {"3": span[1] + 1 - span[0], "4": span[1] + 1 - span[0]}
    assert not [r for r in Readers(finished.run_dir.readers).all() if r.name.startswith("replay")]
    rows, positives = (int(arms["wide"].value(f"{what}/3")) for what in ("rows", "positives"))
    for condition in report.table.conditions:
        segments = report.table.of(condition, "feed", "ctr", "wide").below("gain/segment")
        assert sum(cell.n for name, cell in segments.items() if name.startswith("hours")) == rows
    assert f"| feed | wide | {rows:,} | {positives:,} |" in (folder / "replay.md").read_text()


def test_it_is_resumed_to_the_cell_and_is_the_same_in_several_processes(capsys, replayed, monkeypatch):
    folder, arguments = replayed
    before = read_report(folder)
    parts = sorted((folder / "students").iterdir())
    assert len(parts) == 2 * 3 * 4
    gone = parts[::3]
    stored = {path: load_part(path)["logits"] for path in parts}
    for path in gone:
        path.unlink()
    code, report, err = run(capsys, *arguments, "--jobs", "2")
    assert code == 0, err
    assert sorted((folder / "students").iterdir()) == parts
    assert all(np.array_equal(load_part(path)["logits"], stored[path], equal_nan=True) for path in parts)
    assert figures(report) == figures(before)


def figures(report):
    """Everything but what was measured."""
    return [cell for cell in report.cells if cell.metric not in ("seconds_per_row", "cost_ratio")]


def test_arms_with_a_filter_or_a_birth_of_their_own_are_compared_on_rows_that_both_judge(finished, tmp_path, capsys):
    arguments = ["--run-dir", str(finished.run_dir.root), "--students", "feed", "--out", str(tmp_path / "out")]
    code, report, err = run(capsys, *arguments, *lines("--arm", ARMS[2:]), "--jobs", "1")
    assert code == 0, err
    told = report.table.arms("as logged", "feed", "ctr")
    assert "gain" in told["bids"]
    assert "gain" in told["late"]
    spec, config = load_run(finished.run_dir, ARMS[2:], students=["feed"])
    workspace = Workspace(spec, config, tmp_path / "out", finished.run_dir)
    rows = places_of(workspace.rows(3).table, config, config.student("feed"))
    for part in map(load_part, (tmp_path / "out" / "students").iterdir()):
        assert len(part["absent"]) == len(rows) == len(part["logits"])
        assert np.array_equal(part["absent"], np.isnan(part["logits"][:, 0]))
    own = f"{told['late'].value('rows/3'):,.0f} | {told['late'].value('positives/3'):,.0f}"
    assert f"| feed | late | {own} |" in (tmp_path / "out" / "replay.md").read_text()
    bids = workspace.rows(3).table["bid"].to_numpy()[rows]
    assert sum(np.array_equal(load_part(p)["absent"], bids <= 0.5) for p in (tmp_path / "out/students").iterdir())


def test_an_arm_starts_from_a_checkpoint_and_is_judged_on_what_that_has_not_learned(finished, tmp_path, capsys):
    root = finished.run_dir.checkpoints("student-feed")
    name = checkpoint_names(root)[0]
    learned = read_manifest(root / name)["meta"]["lake_seq"]
    arm = f"warm: starts_from={finished.run_dir.root}:feed@{name}"
    arguments = ["--run-dir", str(finished.run_dir.root), "--students", "feed", "--out", str(tmp_path / "out")]
    _, config = load_run(finished.run_dir, [arm], students=["feed"])
    student = config.student("feed").model_copy(update={"starts_from": arm.partition("=")[2]})
    assert learned_upto(student, finished.run_dir, tmp_path / "out") == learned
    code, _, err = run(capsys, *arguments, "--arm", f"warm: starts_from={tmp_path}:feed", "--jobs", "1")
    assert (code, "has no checkpoint" in err) == (2, True), err


def test_what_is_wrong_with_logits_and_labels_is_so_by_impression(finished, tmp_path):
    spec, config = load_run(finished.run_dir, [], CONDITIONS, students=["feed"])
    workspace = Workspace(spec, config, tmp_path, finished.run_dir)
    table, seed = finished.lake, config.seed
    half = stream_of(workspace, seed, spec.conditions["half"]).slice()
    kept = half["teacher_logit_ctr"].null_count - table["teacher_logit_ctr"].null_count
    assert 0.4 < kept / (table.num_rows - table["teacher_logit_ctr"].null_count) < 0.6
    assert stream_of(workspace, seed, spec.conditions["none"]).slice()["teacher_logit_ctr"].null_count == table.num_rows
    deaf = stream_of(workspace, seed, spec.conditions["deaf"]).slice()
    before, after = (pa.compute.sum(t["label_ctr"]).as_py() for t in (table, deaf))
    assert 0.25 < after / before < 0.6
    assert deaf["label_ctr"].null_count > table["label_ctr"].null_count
    assert half["label_ctr"].equals(workspace.rows(seed).table["label_ctr"])
    lost = {r["impression_id"] for r in table.to_pylist() if r["label_ctr"]} - {
        r["impression_id"] for r in deaf.to_pylist() if r["label_ctr"]
    }
    assert all(r["label_cvr"] is None for r in deaf.to_pylist() if r["impression_id"] in lost)


def test_a_shorter_window_takes_the_feedback_that_came_later_and_what_was_given_it(finished, tmp_path):
    spec, config = load_run(finished.run_dir, [], ["short: window_s=200"], students=["feed"])
    workspace = Workspace(spec, config, tmp_path, finished.run_dir)
    truth = read_truth(finished.run_dir.truth).to_table(columns=["impression_id", "click_delay_ms", "cvr_delay_ms"])
    delays = {r["impression_id"]: (r["click_delay_ms"], r["cvr_delay_ms"]) for r in truth.to_pylist()}
    short = stream_of(workspace, config.seed, spec.conditions["short"]).slice().to_pylist()
    kept = 0
    for before, after in zip(finished.lake.to_pylist(), short, strict=True):
        click_ms, cvr_ms = delays[before["impression_id"]]
        if before["label_ctr"] is not None:
            assert after["label_ctr"] == int(before["label_ctr"] and click_ms <= 200_000)
            kept += after["label_ctr"]
        elif before["label_cvr"] is not None:
            expected = None if click_ms > 200_000 else int(before["label_cvr"] and click_ms + cvr_ms <= 200_000)
            assert after["label_cvr"] == expected
    assert 0.1 < kept / pa.compute.sum(finished.lake["label_ctr"]).as_py() < 0.9


@pytest.mark.parametrize(
    ("window_s", "source", "words"),
    [(1e6, True, "no task has a longer one"), (200, False, "the lake does not hold when feedback came")],
)
def test_a_window_that_cannot_be_asked_is_refused(finished, tmp_path, window_s, source, words):
    spec, config = load_run(finished.run_dir, [], [f"w: window_s={window_s:g}"], students=["feed"])
    with pytest.raises(BadInput, match=words):
        Workspace(spec, config if source else config.model_copy(update={"source": None}), tmp_path, finished.run_dir)


def test_a_source_that_these_rows_did_not_come_from_is_refused(finished, tmp_path):
    spec, config = load_run(finished.run_dir, [], ["w: window_s=200"], students=["feed"])
    other = config.model_copy(update={"source": config.source.model_copy(update={"seed": 99})})
    with pytest.raises(BadInput, match="have no feedback in the config's source"):
        labels_under(Workspace(spec, other, tmp_path, finished.run_dir), config.seed, spec.conditions["w"])


def test_rows_are_scored_again_by_stored_snapshots_as_the_run_scored_them(finished, tmp_path):
    """A run in lockstep: the snapshot that was newest two blocks before is the one whose logits are in the lake."""
    versions = finished.lake["teacher_version"].to_numpy()
    newest = int(checkpoint_names(finished.run_dir.snapshots)[-2][1:])
    spec, config = load_run(finished.run_dir, [], [f"that: snapshot={newest}"], students=["feed"])
    workspace = Workspace(spec, config, tmp_path, finished.run_dir)
    condition = spec.conditions["that"]
    replay_jobs.RescoreJob(workspace, config.seed, condition.logit_source).run(lambda count: None)
    found = teacher_logits(workspace, config.seed, condition.logit_source)[:, 0]
    logged = finished.lake["teacher_logit_ctr"].to_numpy(zero_copy_only=False)
    same = versions == newest
    if same.any():
        assert np.allclose(found[same], logged[same], atol=1e-5, equal_nan=True)
    learned = read_manifest(finished.run_dir.snapshots / f"v{newest:08d}")["meta"]["lake_seq"]
    assert np.isnan(found[: learned + 1]).all()

    stale = Condition(stale_rows=finished.lake.num_rows)
    with pytest.raises(BadInput, match=r"rows lake_seq 0 to .* have no snapshot that is old enough"):
        replay_jobs.RescoreJob(workspace, config.seed, stale.logit_source).run(lambda count: None)


def test_a_teacher_that_is_trained_from_the_lake_is_the_runs_own_in_lockstep(finished, tmp_path):
    """Under score-before-learn: its logits are those that the run put into the lake, to the last bit."""
    config = finished.config
    arms = {"as run": ArmSpec()}
    teachers = {"again": {}, "large": {"model": {"width": 16}}}
    spec = Spec(config="-", seeds=(config.seed,), arms=arms, baselines=("as run",), teachers=teachers)
    workspace = Workspace(spec, config, tmp_path, finished.run_dir)
    for snapshots in spec.logit_sources(config.seed):
        if workspace.is_trained(snapshots):
            replay_jobs.TeacherJob(workspace, config.seed, (snapshots,)).run(lambda count: None)
    found = {s.teacher: teacher_logits(workspace, config.seed, s) for s in spec.logit_sources(config.seed)}
    assert np.array_equal(found["again"], found[None], equal_nan=True)
    assert not np.array_equal(found["large"], found[None], equal_nan=True)


def test_what_cannot_be_replayed_says_why(finished, tmp_path, capsys):
    root = str(finished.run_dir.root)
    wrong = {
        ("--run-dir", root): "give a spec",
        ("--run-dir", root, "--arm", "wide: model.trunk.mpl=[1]"): "wide",
        ("--run-dir", root, "--arm", "x: features.usr_id.rows=5"): "did you mean `user_id`",
        ("--run-dir", root, "--arm", "x: batch_rows=64", "--from", "yesterday"): "is no place in a lake",
        ("--run-dir", root, "--arm", "x: batch_rows=64", "--from", "99999999"): "no row lies between",
        ("--run-dir", str(tmp_path), "--arm", "x: batch_rows=64"): "no run in",
        ("configs/sweeps/quick.yaml", "--arm", "x: batch_rows=64"): "--arm is of no use with a spec",
    }
    for arguments, words in wrong.items():
        code, _, err = run(capsys, *arguments, "--out", str(tmp_path / "out"), "--jobs", "1")
        assert (code, words in err) == (2, True), (arguments, err)


def test_larger_teachers_are_trained_from_the_lake_and_told_by_their_flops(finished, tmp_path, capsys):
    arguments = ["--run-dir", str(finished.run_dir.root), "--students", "feed", "--out", str(tmp_path / "out")]
    arguments += ["--teacher", "large: dial=2", "--arm", "wide: model.trunk.mlp=[32]", "--jobs", "1"]
    code, report, err = run(capsys, *arguments)
    assert code == 0, err
    told = [report.table.of(condition, "feed", "ctr", "wide") for condition in ("as logged", "large")]
    model, features = finished.config.teacher.model, finished.config.teacher_features
    sizes = [flops_per_example(scaled_teacher(model, dial), features, len(finished.config.tasks)) for dial in (0, 2)]
    teachers = [report.table.of(condition, "feed", "ctr", "(teacher)") for condition in ("as logged", "large")]
    assert [of.value("flops") for of in teachers] == sizes
    assert all("gain" in of for of in told)
    assert len(list((tmp_path / "out" / "logits").iterdir())) == 1  # the run's own are in the lake

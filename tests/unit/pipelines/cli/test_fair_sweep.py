"""A sweep of several baselines and of teachers of every kind, tuned on a seed that is not judged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from exfm.metrics.clusters import Clusters, variance_of
from exfm.metrics.paired import paired_gain
from pipelines.cli import console as cli
from pipelines.lab.judging.comparison import mean_over_students
from pipelines.lab.logits.teachers import lockstep_logits
from pipelines.lab.parts import load_part
from pipelines.lab.replay.judge import Judge
from pipelines.lab.replay.load import load
from pipelines.lab.replay.settings import settings_of
from pipelines.lab.replay.store import requested
from pipelines.lab.replay.stream import stream_of, teacher_logits
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.report.compare import read_report
from pipelines.lab.report.text import markdown
from pipelines.lab.spec.conditions import LogitSource
from tests.support.pipelines.small_sweeps import with_small_stream, written

pytestmark = pytest.mark.check


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return with_small_stream(tmp_path_factory.mktemp("sweep"))


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
    return read_report(folder / "fair")


def test_seeds_that_are_judged_were_not_tuned_on_and_the_report_says_so(fair, folder):
    assert (fair.spec.tuned_with, fair.spec.seeds) == ((7,), (1, 2))
    assert {path.name.split("-")[1] for path in (folder / "fair" / "trials").iterdir()} == {"seed7"}
    assert {path.name.split("-")[1] for path in (folder / "fair" / "students").iterdir()} == {"seed1", "seed2"}
    assert "with seeds 7; judged on the second half with seeds 1, 2 (none of them seen in tuning)" in markdown(fair)


def test_arms_are_compared_with_each_baseline_and_with_the_best_twin(fair):
    best = fair.about.best_twins["feed"]
    ne = {choice.arm: choice.ne_of_trials[0] for choice in fair.chosen if choice.arm in FAIR["baselines"]}
    assert best == min(ne, key=ne.get)
    for condition in FAIR["conditions"]:
        single, none = (fair.table.of(condition, "feed", "ctr", arm) for arm in ("single", "none"))
        assert single.value("gain") == single.value(f"gain/over/{best}")
        assert set(single.below("gain/over")) == set(FAIR["baselines"])
        assert set(none.below("gain/over")) == {"none wide"}
        assert "gain" not in none


def test_the_cost_of_age_is_told_apart_from_that_of_immaturity(fair):
    arms = {name: fair.table.of(name, "feed", "ctr", "single") for name in FAIR["conditions"]}
    controls = {name: fair.spec.controls_of(name) for name in FAIR["conditions"]}
    assert controls["stale"] == {"fresh": "fresh", "as mature": "as mature"}
    assert controls["as mature"] == {"fresh": "fresh"}
    assert controls["blind and stale"] == {"fresh": "blind"}
    for condition, kinds in controls.items():
        for kind, control in kinds.items():
            lost, gain = arms[condition].value(f"lost/{kind}"), arms[control].cell("gain")
            assert (lost is None) == (gain.low <= 0)
            if lost is not None:
                assert lost == pytest.approx(1 - arms[condition].value("gain") / gain.value)
    text = markdown(fair)
    assert "| gain lost to the fault | gain lost to age | worst student" in text
    assert "the teacher begins 2 blocks later" in text


def test_students_learn_from_the_teacher_that_their_condition_names(fair, folder):
    sweep, config = load(written(folder, **FAIR))
    workspace = Workspace(sweep, config, folder / "fair", None)
    logits = {
        name: stream_of(workspace, 1, condition).slice()["teacher_logit_ctr"].to_numpy()
        for name, condition in sweep.conditions.items()
        if name != "knows nothing more"
    }
    assert len({z.tobytes() for z in logits.values()}) == len(logits)
    assert np.array_equal(logits["blind"], teacher_logits(workspace, 1, LogitSource("blind"))[:, 0], equal_nan=True)
    student = settings_of(sweep, config.student("feed"), "none")[0].student
    twin = requested(workspace, 1, student, sweep.conditions["fresh"], drawn_anew=True).path
    own = stream_of(workspace, 1, sweep.conditions["knows nothing more"], student, twin).slice()
    known = own.filter(pc.is_valid(own["teacher_logit_ctr"]))
    assert set(known["vertical"].to_pylist()) == {"feed"}
    assert set(known["teacher_logit_ctr"].to_pylist()) <= set(load_part(twin)["as_learned"][:, 0].tolist())
    nothing = fair.table.of("knows nothing more", "feed", "ctr", "(teacher)").value("ne")
    none = fair.table.of("fresh", "feed", "ctr", "none").value("ne/as_learned")
    assert nothing != none
    assert nothing == pytest.approx(none, abs=0.03)  # the same student, of another draw


def test_rows_that_share_a_user_or_an_ad_are_not_independent_in_an_arms_interval(folder, fair):
    """One seed, clustered by two columns: the interval is that of `paired_gain` on the judged rows. And the mean over
    students is as wide as that over the rows of both."""
    sweep, config = load(written(folder, **FAIR), ["seeds=[1]", "cluster=[user_id, ad_id]"])
    workspace = Workspace(sweep, config, folder / "fair", None)
    trials, parts = {choice.arm: choice.trial for choice in fair.chosen}, {}
    for arm in sweep.arms:
        setting = settings_of(sweep, config.student("feed"), arm)[trials[arm]]
        parts["fresh", arm, 1] = requested(workspace, 1, setting.student, sweep.conditions["fresh"]).path
    judge = Judge(workspace, config.student("feed"), "ctr", "none", parts)
    judged = judge.under("fresh")
    gain = judged.estimates["single"]["gain"].estimate
    (rows,), (window,) = judge.rows, judge.samples("fresh")[0].windows
    seen = workspace.rows(1).table.take(pa.array(rows.places[window]))
    own, base = (judge.arm_logits("fresh", arm)[0][window] for arm in ("single", "none"))
    clusters = Clusters.of(seen["user_id"].to_numpy(), seen["ad_id"].to_numpy())
    expected = paired_gain(own, base, rows.labels[window], clusters)
    assert gain.summary()["se"] == pytest.approx(expected.standard_error)
    assert (gain.value, gain.summary()["low"]) == pytest.approx((expected.difference, expected.low))
    assert gain.summary()["se"] >= variance_of(gain.clusters[:1]).value ** 0.5 * (1 - 1e-9)
    twice = mean_over_students([gain, gain], [judged.clusters] * 2)
    assert twice.summary() == pytest.approx(gain.summary())


def test_a_teacher_that_begins_later_is_one_whose_stream_begins_there(folder):
    """In blocks of one size: those of a stream that begins there would be small at first."""
    sweep, config = load(written(folder, **FAIR))
    workspace = Workspace(sweep, config, folder / "fair", None)
    table, config = workspace.rows(1).table, workspace.of(1)
    size = config.pace.block_rows
    config = config.model_copy(update={"pace": config.pace.model_copy(update={"first_block_rows": size})})
    given = config, config.teacher_features, config.teacher.model
    later = lockstep_logits(*given, table, behinds=(0,), born=2, advance=lambda done: None)[0].logits
    alone = lockstep_logits(*given, table.slice(2 * size), behinds=(0,), advance=lambda done: None)[0].logits
    assert np.array_equal(later[2 * size :], alone, equal_nan=True)


def test_each_tenth_of_the_stream_is_shown_for_every_arm_and_teacher(fair):
    tenths = {}
    for arm in (*FAIR["arms"], "(teacher)", "(optimum)"):
        tenths[arm] = [cell.value for cell in fair.table.of("fresh", "feed", "ctr", arm).below("ne/tenth").values()]
        assert len(tenths[arm]) == 10
        assert all(ne > 0.3 for ne in tenths[arm])
    first, *_, last = zip(*(tenths[name] for name in ("(teacher)", "(optimum)")), strict=True)
    assert first[0] > first[1]
    assert last[0] > last[1]

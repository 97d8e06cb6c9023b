"""Which rows arms with rows or first weights of their own are judged on: from planted logits, without training."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pytest

from pipelines.lab.data import places_of
from pipelines.lab.judging.settings import Ranking
from pipelines.lab.parts import load_part, save_part
from pipelines.lab.replay.choice import choose
from pipelines.lab.replay.judge import Judge
from pipelines.lab.replay.load import load
from pipelines.lab.replay.report import means
from pipelines.lab.replay.run import Runner
from pipelines.lab.replay.settings import settings_of
from pipelines.lab.replay.store import teacher_part
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.report import policy
from pipelines.lab.rows import Rows
from pipelines.report.cells import MEAN, Cells
from tests.support.pipelines.replay_workspaces import result_of
from tests.support.pipelines.small_sweeps import with_small_stream, written

ARMS = {
    "none": {"student": {"where": "bid > 0.8"}},
    "all": {},
    "few": {"student": {"where": "bid > 2"}},
    "warm": {},
}


class Numbered(Rows):
    @cached_property
    def table(self):
        return super().table.append_column("lake_seq", pa.array(np.arange(self.num_rows)))


class FromALake(Workspace):
    """Its rows have places in a lake."""

    def rows(self, seed, advance=lambda done: None):
        rows = super().rows(seed, advance)
        return Numbered(rows.path, rows.name)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = with_small_stream(tmp_path_factory.mktemp("sweep"))
    path = written(folder, arms=ARMS, seeds=[1], conditions={"fresh": {}}, teachers={})
    spec, config = load(path, ["rows=3000"])
    workspace = FromALake(spec, config, folder / "out", None)
    (snapshots,) = spec.logit_sources(1)
    save_part(teacher_part(workspace, 1, snapshots), logits=np.full((3000, len(config.tasks)), -2.0, np.float32))
    return workspace


@pytest.fixture(scope="module")
def parts(workspace, tmp_path_factory):
    """Lives of all arms: the baseline learns rows of high bids, `few` ten of the rows that the baseline judges."""
    table, student = workspace.rows(1).table, workspace.config.student("feed")
    own = places_of(table, workspace.of(1), student)
    labels = np.stack([table[f"label_{task}"].fill_null(0).to_numpy()[own] for task in workspace.config.tasks], axis=1)
    low = table["bid"].to_numpy()[own] <= 0.8
    judged = np.flatnonzero(~low & (own >= 1500) & table["label_ctr"].is_valid().to_numpy()[own])
    absent = {"none": low, "few": ~np.isin(np.arange(len(own)), judged[:10])}
    found, better = {}, {"none": 0.0, "all": 0.5, "few": 2.0, "warm": 0.5}
    for arm in ARMS:
        logits = (-2 + better[arm] * (2 * labels - 1)).astype(np.float32)
        if arm in absent:
            logits[absent[arm]] = np.nan
        path = found["fresh", arm, 1] = tmp_path_factory.mktemp("parts") / f"{arm}.npz"
        save_part(path, **result_of(logits, absent.get(arm)))
    return found


def test_a_baseline_with_a_filter_is_what_all_are_compared_with_on_its_own_rows(workspace, parts):
    """The runner judges rows of the config's student, on which all parts lie."""
    student = workspace.config.student("feed")
    choices = {("feed", arm): choose(settings_of(workspace.spec, student, arm), {}) for arm in ARMS}
    lives = {("feed", *key): path for key, path in parts.items()}
    judged = next(one for one in Runner(workspace, 1).judge(choices, lives) if one.task == "ctr")
    table = Cells(judged.cells)
    baseline, every, teacher = (table.of("fresh", "feed", "ctr", arm) for arm in ("none", "all", "(teacher)"))
    table = workspace.rows(1).table
    own = places_of(table, workspace.of(1), student)
    rows = (table["bid"].to_numpy()[own] > 0.8) & (own >= 1500) & table["label_ctr"].is_valid().to_numpy()[own]
    assert baseline.value("rows/1") == rows.sum()
    assert every.value("gain") > 0
    assert teacher.value("gain") == pytest.approx(0, abs=1e-6)


def test_ten_rows_are_too_few_however_many_the_others_are_judged_on(workspace, parts):
    judge = Judge(workspace, workspace.config.student("feed"), "ctr", "none", parts)
    judged = judge.under("fresh")
    table = Cells([*judged.cells, *means([judged])])
    few, every = (table.of("fresh", "feed", "ctr", arm) for arm in ("few", "all"))
    assert (few.value("rows/1"), table.of("fresh", "feed", "ctr", "none").lacking("rows")) == (10, None)
    assert every.value("rows/1") == table.of("fresh", "feed", "ctr", "none").value("rows/1")
    assert few.lacking("rows").startswith("positives")
    for student in ("feed", MEAN):
        few, every = (table.of("fresh", student, "ctr", arm) for arm in ("few", "all"))
        assert few.value("gain") > 0
        assert (few.cell("gain").low, few.below("transfer")) == (None, {})
        assert few.lacking("gain").startswith("positives")
        assert every.lacking("gain") is None
        assert every.cell("gain").low is not None


def test_rows_that_the_first_weights_knew_too_much_of_are_not_judged(workspace, parts, tmp_path):
    """Those were shown before all that the weights had learned had settled: no prediction was made of them."""
    student, table = workspace.config.student("feed"), workspace.rows(1).table
    own = places_of(table, workspace.of(1), student)
    part = load_part(parts["fresh", "warm", 1])
    known, warm_part, first = own <= 1999, tmp_path / "warm.npz", int(np.searchsorted(own, 1500))
    save_part(warm_part, **result_of(np.where(known[:, None], np.nan, part["logits"])[first:], known[first:], first))
    warm = {("fresh", "warm", 1): warm_part}
    judge = Judge(workspace, student, "ctr", "none", parts | warm)
    table = Cells(judge.under("fresh").cells)
    (rows,), (window,) = judge.rows, judge.samples("fresh")[0].windows
    of_both = (rows.places[window] > 1999).sum()
    assert table.of("fresh", "feed", "ctr", "warm").value("rows/1") == of_both
    assert of_both < table.of("fresh", "feed", "ctr", "none").value("rows/1")
    both = Judge(workspace, student, "ctr", "none", parts | warm | {("fresh", "none", 1): warm_part})
    assert both.rows[0].places[both.samples("fresh")[0].windows[0]].min() > 1999


def test_a_teacher_leads_over_the_twin_as_learned_and_an_arm_gains_by_what_it_said_when_rows_were_shown(
    workspace, parts, tmp_path
):
    student = workspace.config.student("feed")
    hindsight = load_part(parts["fresh", "all", 1])["logits"]
    shown, learned = tmp_path / "shown.npz", tmp_path / "learned.npz"
    stored = load_part(parts["fresh", "none", 1])
    save_part(shown, **stored | {"as_learned": hindsight})
    save_part(learned, **load_part(parts["fresh", "warm", 1]) | {"as_learned": hindsight})
    changed = parts | {("fresh", "none", 1): shown, ("fresh", "warm", 1): learned}
    before, after = (Cells(Judge(workspace, student, "ctr", "none", p).under("fresh").cells) for p in (parts, changed))
    was, now = (table.of("fresh", "feed", "ctr", "warm") for table in (before, after))
    assert was.cell("gain") == now.cell("gain")
    assert was.cell("ne") == now.cell("ne")
    assert was.value("gain/as_learned") == pytest.approx(was.value("gain"))
    assert now.value("gain/as_learned") == 0
    leads = [table.of("fresh", "feed", "ctr", "(teacher)").value("gain") for table in (before, after)]
    assert leads[0] == pytest.approx(0, abs=1e-6)
    assert leads[1] < -1


def test_an_arm_that_is_only_miscalibrated_loses_by_ne_and_next_to_nothing_without_calibration(
    workspace, parts, tmp_path
):
    student, changed, generator = workspace.config.student("feed"), dict(parts), np.random.default_rng(0)
    noise = generator.normal(size=load_part(parts["fresh", "all", 1])["logits"].shape).astype(np.float32)
    good = load_part(parts["fresh", "all", 1])["logits"] + noise
    for arm, logits in {"none": noise - 2, "all": good, "warm": 1.5 * good - 1}.items():
        path = changed["fresh", arm, 1] = tmp_path / f"{arm}.npz"
        save_part(path, **result_of(logits))
    table = Cells(Judge(workspace, student, "ctr", "none", changed).under("fresh").cells)
    calibrated, off = (table.of("fresh", "feed", "ctr", arm) for arm in ("all", "warm"))
    assert calibrated.value("gain") > off.value("gain") + 5
    assert off.value("gain/calibration_free") == pytest.approx(calibrated.value("gain/calibration_free"), abs=0.5)
    assert off.cell("gain/calibration_free").low > 0


def test_requests_of_one_user_are_not_independent_in_the_worth_of_choices(workspace):
    ranking = Ranking(request="impression_id", propensity="bid")
    asked = FromALake(workspace.spec.model_copy(update={"ranking": ranking}), workspace.config, workspace.folder, None)
    given = [policy.LoggedChoices(asked, asked.config.student("feed"), 1).clusters]
    table = asked.rows(1).table
    users = table["user_id"].to_numpy()[places_of(table, asked.of(1), asked.config.student("feed"))]
    assert len(given[0]) == len(users)
    assert len(np.unique(given[0])) == len(np.unique(users)) == len(np.unique(np.stack([given[0], users]), axis=1).T)

"""Which rows arms with rows or first weights of their own are judged on: from planted logits, without training."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa
import pytest
import torch

from exfm.snapshots.checkpoint import save_checkpoint
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.judging.settings import Ranking
from pipelines.lab.logits.starts import known_upto
from pipelines.lab.parts import save_part
from pipelines.lab.replay.choice import choose
from pipelines.lab.replay.data import places_of
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
        more = {}
        if arm in absent:
            logits[absent[arm]] = np.nan
            more["absent"] = absent[arm]
        path = found["fresh", arm, 1] = tmp_path_factory.mktemp("parts") / f"{arm}.npz"
        save_part(path, logits=logits, first=0, seconds=1.0, left_out=0, rows=len(own), **more)
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


def test_rows_that_the_first_weights_have_learned_are_not_judged(workspace, parts, tmp_path):
    run = RunDir(tmp_path / "run")
    save_checkpoint(run.roster.start("feed").parent, "start", {"w": torch.zeros(1)}, {"lake_seq": 1999})
    student = workspace.config.student("feed").model_copy(update={"starts_from": "brand"})
    known = known_upto(student, run)
    assert known == 1999
    judge = Judge(workspace, workspace.config.student("feed"), "ctr", "none", parts, {"warm": known})
    table = Cells(judge.under("fresh").cells)
    warm, none = (table.of("fresh", "feed", "ctr", arm) for arm in ("warm", "none"))
    (rows,), (window,) = judge.rows, judge.samples("fresh")[0].windows
    assert warm.value("rows/1") == (rows.places[window] > 1999).sum()
    assert warm.value("rows/1") < none.value("rows/1")
    both = Judge(workspace, workspace.config.student("feed"), "ctr", "none", parts, {"none": known, "warm": known})
    assert both.rows[0].places[both.samples("fresh")[0].windows[0]].min() > 1999


def test_requests_of_one_user_are_not_independent_in_the_worth_of_choices(workspace):
    ranking = Ranking(request="impression_id", propensity="bid")
    asked = FromALake(workspace.spec.model_copy(update={"ranking": ranking}), workspace.config, workspace.folder, None)
    given = [policy.LoggedChoices(asked, asked.config.student("feed"), 1).clusters]
    table = asked.rows(1).table
    users = table["user_id"].to_numpy()[places_of(table, asked.of(1), asked.config.student("feed"))]
    assert len(given[0]) == len(users)
    assert len(np.unique(given[0])) == len(np.unique(users)) == len(np.unique(np.stack([given[0], users]), axis=1).T)

"""A replay's protocol is delayed: a row is predicted when it is shown, by what had settled by then."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from exfm.metrics.classification import normalised_entropy
from exfm.models.engine import LOGISTIC, StudentEngine
from pipelines.lab.data import data_of
from pipelines.lab.parts import save_part
from pipelines.lab.replay.load import load
from pipelines.lab.replay.store import teacher_part
from pipelines.lab.replay.stream import stream_of
from pipelines.lab.replay.workspace import Workspace
from pipelines.lab.spec.arms import with_features
from pipelines.lab.spec.conditions import Condition
from tests.support.pipelines.replay_workspaces import learned_alone
from tests.support.pipelines.small_sweeps import with_small_stream, written

ROWS = 3000
COUNTERS = "features.history=[{name: user_met, by: user_id, of: label_ctr, rows: all}]"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Students that keep counters, on a stream of some windows, with made-up logits of a teacher."""
    folder = with_small_stream(tmp_path_factory.mktemp("sweep"))
    spec, config = load(written(folder, conditions={"fresh": {}}, teachers={}, seeds=[1], set=[COUNTERS], rows=ROWS))
    workspace = Workspace(spec, config, folder / "out", None)
    (source,) = spec.logit_sources(1)
    drawn = np.random.default_rng(1).normal(-2, 1, (ROWS, len(config.tasks))).astype(np.float32)
    save_part(teacher_part(workspace, 1, source), logits=drawn)
    return workspace


def settled_ms(workspace, student, table):
    """Event times (N,) at which the labels of rows settle."""
    windows_ms = workspace.config.delays_ms(student)
    delays = [windows_ms.get(group, 0) for group in table["settlement"].to_pylist()]
    return table["event_time_ms"].to_numpy() + np.array(delays)


def with_flipped(table, task, which):
    """The rows with the labels of those that `which` (N,) names turned into their opposites."""
    label = table[f"label_{task}"]
    flipped = pa.array(1 - label.fill_null(0).to_numpy(), label.type)
    changed = pa.compute.if_else(pa.array(which & label.is_valid().to_numpy()), flipped, label)
    return table.set_column(table.schema.names.index(f"label_{task}"), f"label_{task}", changed)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("change", [{}, {"label_rows": "all"}, {"negative_rate": {"ctr": 0.5}}])
def test_no_prediction_knows_a_label_that_settles_later(workspace, change, regression):
    """All labels that settle after T are flipped: predictions of rows that were shown up to T stay, to the bit."""
    student = workspace.config.student("feed").model_copy(update=change)
    table = stream_of(workspace, 1, Condition()).slice().combine_chunks()
    settled = settled_ms(workspace, student, table)
    T = int(np.quantile(settled, 0.6))
    flipped = with_flipped(table, "ctr", settled > T)
    before, after = (
        learned_alone(workspace, 1, student, data_of(rows, workspace.of(1), student), regression=regression)
        for rows in (table, flipped)
    )
    data = data_of(table, workspace.of(1), student)
    shown = table["event_time_ms"].to_numpy()[data.places]
    waiting = (shown <= T) & (settled[data.places] > T)
    assert waiting.sum() > 20
    assert np.array_equal(before["logits"][shown <= T], after["logits"][shown <= T])
    assert not np.array_equal(before["logits"][shown > T], after["logits"][shown > T])
    assert not np.array_equal(before["as_learned"][waiting], after["as_learned"][waiting])  # which know some of them


def test_the_regression_is_the_linear_part_that_a_live_student_is_compared_with(workspace):
    student, config = workspace.config.student("feed"), workspace.of(1)
    data = data_of(stream_of(workspace, 1, Condition()), config, student)
    found = learned_alone(workspace, 1, student, data, regression=True)
    tasks, features = config.student_tasks(student), config.student_features(student)
    live = StudentEngine(student.model, features, tasks, 1, baselines=True)
    steps = [live.step(each.batch).results[LOGISTIC].logits for each in data.stream]
    assert np.array_equal(found["as_learned"], np.concatenate(steps))
    assert not np.array_equal(found["as_learned"], found["logits"])


def test_rows_that_reach_a_student_later_are_learned_later_and_judged_alike(workspace):
    student, stream = workspace.config.student("feed"), stream_of(workspace, 1, Condition())
    soon, late = (data_of(stream, workspace.of(1), student, late_s=late_s) for late_s in (0, 7200))
    for one, other in zip(soon.stream, late.stream, strict=True):
        assert other.settled_ms == one.settled_ms + 7_200_000
        assert np.array_equal(other.rows, one.rows)
    assert np.array_equal(soon.delay.shown_ms, late.delay.shown_ms)
    early, later = (learned_alone(workspace, 1, student, data) for data in (soon, late))
    assert np.array_equal(early["as_learned"], later["as_learned"])  # the same rows in the same order
    labels, weights = soon.targets()
    known = weights[:, 0] > 0
    ne = [normalised_entropy(one["logits"][known, 0], labels[known, 0]) for one in (early, later)]
    assert ne[1] > ne[0]


def test_as_shown_a_student_does_not_know_what_settled_since(workspace):
    """The first rows are shown before any label has settled: the initial model predicts them."""
    student = workspace.config.student("feed")
    data = data_of(stream_of(workspace, 1, Condition()), workspace.of(1), student)
    found = learned_alone(workspace, 1, student, data)
    assert not found["absent"].any()
    first, last = found["logits"][:5], found["logits"][-500:]
    assert np.abs(first).max() < 0.5 < np.abs(last).max()  # of no prior: about p = .5
    labels, weights = data.targets()
    known = weights[:, 0] > 0
    shown, learned = (normalised_entropy(found[name][known, 0], labels[known, 0]) for name in ("logits", "as_learned"))
    assert shown > learned


@pytest.mark.parametrize("regression", [False, True])
def test_a_row_that_no_model_can_read_has_no_prediction(workspace, regression):
    student, config = (
        workspace.config.student("feed"),
        with_features(workspace.of(1), {"bid": {"transform": "identity"}}, ""),
    )
    table = stream_of(workspace, 1, Condition()).slice().combine_chunks()
    bids = table["bid"].to_numpy().copy()
    bids[data_of(table, config, student).places[700]] = 3e38
    changed = table.set_column(table.schema.names.index("bid"), "bid", pa.array(bids))
    found = learned_alone(workspace, 1, student, data_of(changed, config, student), regression=regression)
    for name in ("logits", "as_learned"):
        assert np.flatnonzero(np.isnan(found[name]).any(1)).tolist() == [700]

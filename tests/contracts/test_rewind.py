"""A rewind: teacher and students that never learned some rows take over a run, at one position."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pyarrow.compute as pc
import pytest

from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint
from pipelines.core.config.takeovers import takeovers
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.logits.teachers import lockstep_logits
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.training.predictions import read_predictions
from pipelines.teacher.replace import takeover
from pipelines.teacher.replace.rewind import Exclusion, Rewind, excluded, exclusion_of
from streaming.errors import BadInput
from streaming.lake.withdrawn import Withdrawn, record_of
from tests.support.pipelines.small_runs import Finished, assert_replays, slow_commits, small, stop_after, to_the_end

pytestmark = pytest.mark.broker

STOPPED_AT = 2500
EXCLUDE = Exclusion(700, 1300, "vertical == 'feed'")
WHY = "its clicks were wrong"


@pytest.fixture
def stopped(broker, tmp_path):
    """A run that was stopped half-way."""
    config, run_dir = small(broker.bootstrap_servers, pace__block_rows=512), RunDir(tmp_path / "run")
    with slow_commits(0.4):
        status, _ = run(config, run_dir, local=True, until_end=True, watch=stop_after(STOPPED_AT))
    assert status.state is RunState.STOPPED, status.reason
    return config, run_dir


def rewound(config, run_dir, advance=lambda done, of: None, *, exclude=EXCLUDE):
    """A rewind that is trained and decided, and what it leaves out."""
    found, rewinding = excluded(config, run_dir, exclude), Rewind(run_dir, config)
    rewinding.begin(exclude, found, WHY, None, live=False)
    quiet = lambda done, of: None  # noqa: E731
    decided = rewinding.train(live=lambda: False, untried=True, advance=quiet, advance_students=advance)
    assert decided.promoted
    return found


def resumed(config, run_dir):
    with patch("pipelines.live.loop.conclusion.draw"):
        status, _ = run(config, run_dir, local=True, until_end=True)
    assert status.state is RunState.DONE, status.reason
    return Finished(config, run_dir.root)


def gone_of(lake):
    """Which rows of the lake are left out."""
    seq = lake["lake_seq"].to_numpy()
    feed = pc.equal(lake["vertical"], "feed").to_numpy(zero_copy_only=False)
    return (seq >= EXCLUDE.first) & (seq <= EXCLUDE.last) & feed


def logits_without(config, finished, rows):
    """Logits of a teacher that learns the lake without labels of these rows, each before it is learned."""
    lake = Withdrawn(finished.run_dir.side_tables).unlabelled(finished.lake, config.rows)
    given = config, config.teacher_features, config.teacher.model, lake.combine_chunks()
    return lockstep_logits(*given, behinds=(0,), advance=lambda done: None)[0].logits[:, 0]


def assert_never_saw_them(config, finished, found):
    lake, gone = finished.lake, gone_of(finished.lake)
    assert (found.rows, found.first, found.last) == (gone.sum(), *np.flatnonzero(gone)[[0, -1]])
    rows, logits, rescored = record_of(finished.run_dir.side_tables)
    (entry,) = takeovers(finished.run_dir)
    swap = entry["lake_seq"]
    assert (rows.kind, rows.first, rows.last, rows.where) == ("rows", found.first, found.last, EXCLUDE.where)
    assert (logits.kind, logits.first, logits.before) == ("logits", found.block + 1, swap)
    assert STOPPED_AT < swap < lake.num_rows - 1500
    tainted = (lake["teacher_version"].fill_null(-1).to_numpy() > found.block) & (np.arange(lake.num_rows) < swap)
    assert (rescored.kind, rescored.last) == ("rescored", rescored.at - 1)
    anew = (np.arange(lake.num_rows) >= rescored.first) & (np.arange(lake.num_rows) <= rescored.last)
    taught = logits_without(config, finished, rows)
    logged = lake["teacher_logit_ctr"].to_numpy(zero_copy_only=False)
    assert np.isfinite(logged[tainted]).sum() > 100
    for student in config.students:
        read = read_predictions(finished.run_dir.predictions(student.name))
        seq = read["lake_seq"].to_numpy()
        assert len(seq) > 500
        assert not gone[seq].any()
        told = read["teacher_ctr"].to_numpy(zero_copy_only=False)
        wanted = np.where(anew, taught, np.where(tainted, np.nan, logged))
        assert np.array_equal(told, wanted[seq], equal_nan=True)
    assert np.array_equal(logged[swap:], taught[swap:], equal_nan=True)
    assert np.isfinite(taught[anew]).sum() > 100
    learned = load_checkpoint(latest_checkpoint(finished.run_dir.checkpoints("teacher"))).meta["learned"]
    with_label = pc.is_valid(lake["label_ctr"]).to_numpy(zero_copy_only=False)
    assert learned["ctr"]["rows"] == (with_label & ~gone).sum()
    assert_replays(finished.run_dir.root)
    assert not finished.run_dir.replacement.exists()


def test_who_takes_over_never_saw_the_rows_nor_the_logits_of_those_that_had(stopped):
    config, run_dir = stopped
    found = rewound(config, run_dir)
    assert_never_saw_them(config, resumed(config, run_dir), found)


def test_a_kill_at_any_place_is_gone_on_from(stopped, monkeypatch):
    """Between the record and the beginning, within the students, and within the takeover."""
    config, run_dir = stopped
    found, rewinding = excluded(config, run_dir, EXCLUDE), Rewind(run_dir, config)
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.teacher.replace.rewind.make_folder", lambda path: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rewinding.begin(EXCLUDE, found, WHY, None, live=False)
    rewinding.begin(EXCLUDE, found, WHY, None, live=False)
    assert len(record_of(run_dir.side_tables)) == 2
    with pytest.raises(BadInput, match="holds another replacement or rewind"):
        rewinding.begin(exclusion_of(["5:6"]), found, WHY, None, live=False)

    def killed(done, of):
        if done > of / 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewound(config, run_dir, killed)
    rewound(config, run_dir)
    move, moved = takeover.move_folder, []

    def moving(source, target):
        moved.append(target)
        if len(moved) == 5:
            raise OSError("killed")
        move(source, target)

    with ExitStack() as patches:
        patches.enter_context(patch.object(takeover, "move_folder", moving))
        patches.enter_context(pytest.raises(OSError, match="killed"))
        run(config, run_dir, local=True, until_end=True)
    assert_never_saw_them(config, resumed(config, run_dir), found)


def test_a_run_that_has_finished_is_rewound_and_finishes_again(broker, tmp_path):
    config = small(broker.bootstrap_servers, pace__block_rows=512)
    finished = to_the_end(config, tmp_path / "run")
    before = finished.summary
    rewound(config, finished.run_dir)
    again = resumed(config, finished.run_dir)
    gone = gone_of(again.lake)
    for student in config.students:
        seq = read_predictions(again.run_dir.predictions(student.name))["lake_seq"].to_numpy()
        assert not gone[seq].any()
        figures = again.summary["students"][student.name]["ctr"]
        assert 0 < figures["rows"] <= before["students"][student.name]["ctr"]["rows"]
    assert_replays(again.run_dir.root)


def test_all_begin_from_checkpoints_before_the_rows_where_there_are_some(stopped):
    config, run_dir = stopped
    lake = Finished(config, run_dir.root).lake
    exclude = Exclusion(lake.num_rows - 200, lake.num_rows - 100, None)
    costs = {cost.name: cost for cost in Rewind(run_dir, config).costs(exclude.first, {"teacher": 100.0})}
    assert 0 < costs["teacher"].after < exclude.first
    assert costs["teacher"].seconds == costs["teacher"].rows / 100
    assert sum(cost.after > 0 for cost in costs.values()) > 1
    rewound(config, run_dir, exclude=exclude)
    finished = resumed(config, run_dir)
    rows, _ = record_of(run_dir.side_tables)  # no row was scored by who had learned them
    taught = logits_without(config, finished, rows)
    for student in config.students:
        read = read_predictions(run_dir.predictions(student.name))
        at, told = read["lake_seq"].to_numpy(), read["teacher_ctr"].to_numpy(zero_copy_only=False)
        assert not ((at >= exclude.first) & (at <= exclude.last)).any()
        assert np.array_equal(told, taught[at], equal_nan=True)
    assert_replays(run_dir.root)
    with pytest.raises(BadInput, match="these rows are left out already: teacher and students took over"):
        Rewind(run_dir, config).begin(exclude, excluded(config, run_dir, exclude), WHY, None, live=False)


def test_one_that_is_dropped_withdraws_no_logits_from_there_on(stopped):
    config, run_dir = stopped
    rewinding = Rewind(run_dir, config)
    rewinding.begin(EXCLUDE, excluded(config, run_dir, EXCLUDE), WHY, None, live=False)
    rewinding.replacement.drop()
    rows, logits = record_of(run_dir.side_tables)
    assert (rows.kind, logits.kind, logits.before) == ("rows", "logits", logits.at)
    finished = resumed(config, run_dir)
    for student in config.students:
        read = read_predictions(run_dir.predictions(student.name))
        told, logged = (of["teacher_ctr" if of is read else "teacher_logit_ctr"] for of in (read, finished.lake))
        wanted = logged.to_numpy(zero_copy_only=False)[read["lake_seq"].to_numpy()]
        assert np.array_equal(told.to_numpy(zero_copy_only=False), wanted, equal_nan=True)
    assert_replays(run_dir.root)


def test_rows_that_are_not_there_are_refused(stopped):
    config, run_dir = stopped
    with pytest.raises(BadInput, match=r"no row of .* is meant; it has lake_seq 0 to "):
        excluded(config, run_dir, Exclusion(None, None, "vertical == 'nowhere'"))
    with pytest.raises(BadInput, match="rows have no column `clicks`"):
        excluded(config, run_dir, Exclusion(None, None, "clicks == 1"))
    assert record_of(run_dir.side_tables) == []

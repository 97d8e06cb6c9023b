"""Revoked versions of a teacher: null from one recorded row on, for all who begin later everywhere, and replayed."""

from __future__ import annotations

import json
from contextlib import suppress
from unittest.mock import patch

import numpy as np
import pytest

from pipelines.cli.console import main
from pipelines.core.run_dir.paths import RunDir
from pipelines.lab.rows import rows_of
from pipelines.live.loop.lifecycle import run
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from pipelines.live.rules.states import RunState
from pipelines.live.training.predictions import read_predictions
from pipelines.teacher.replace.revocation import revoke
from streaming.errors import BadInput
from streaming.lake.withdrawn import Withdrawal, ask, record_of
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_replays,
    slow_commits,
    small,
    stop_after,
)

pytestmark = pytest.mark.broker

SHORT = {"pace__block_rows": 512}
WHY = "a feature was wrong"


def told(run_dir, student):
    """Logits of the teacher that a student read, by `lake_seq`; NaN where it read none."""
    read = read_predictions(run_dir.predictions(student))
    return dict(zip(read["lake_seq"].to_pylist(), read["teacher_ctr"].to_numpy(zero_copy_only=False), strict=True))


def logged(finished):
    return finished.lake["teacher_logit_ctr"].to_numpy(zero_copy_only=False)


def test_a_live_run_withdraws_what_versions_said_from_the_next_row_on(broker, tmp_path):
    config, run_dir, asked = small(broker.bootstrap_servers, **SHORT), RunDir(tmp_path / "run"), []

    def watch(status):
        if status.lake.rows > 1500 and not asked:
            asked.append(status.lake.rows)
            ask(run_dir.side_tables, [Withdrawal(kind="logits", first=2, why=WHY)])

    with slow_commits(0.4):
        status, _ = run(config, run_dir, local=True, until_end=True, watch=watch)
    assert status.state is RunState.DONE, status.reason
    finished = Finished(config, run_dir.root)
    (withdrawal,) = record_of(run_dir.side_tables)
    assert 1500 < withdrawal.at < finished.lake.num_rows - 1500
    assert np.isfinite(logged(finished)[withdrawal.at :]).sum() > 1000  # the lake is as it was written
    for student in config.students:
        read = told(run_dir, student.name)
        for seq, logit in read.items():
            assert np.array_equal(logit, np.nan if seq >= withdrawal.at else logged(finished)[seq], equal_nan=True)
        assert sum(seq >= withdrawal.at for seq in read) > 100
        assert sum(np.isfinite(logit) for logit in read.values()) > 10
    assert_learned_the_lake(finished)
    assert_replays(run_dir.root)


@pytest.fixture(scope="module")
def stopped(broker, tmp_path_factory):
    """A run that was stopped half-way."""
    config, run_dir = small(broker.bootstrap_servers, **SHORT), RunDir(tmp_path_factory.mktemp("stopped") / "run")
    with slow_commits(0.4):
        status, _ = run(config, run_dir, local=True, until_end=True, watch=stop_after(2500))
    assert status.state is RunState.STOPPED, status.reason
    return config, run_dir


def test_a_student_that_begins_later_never_sees_them_and_one_that_had_begun_keeps_what_it_learned(stopped, capsys):
    config, run_dir = stopped
    with pytest.raises(BadInput, match=r"no row of .* was scored by version 900 of the teacher: versions \d+ to \d+"):
        revoke(run_dir, config, "900", WHY, live=False)
    with suppress(SystemExit):
        main(["teacher", "revoke", str(run_dir.root), "--versions", "1:3", "--reason", WHY, "--json"])
    said = json.loads(capsys.readouterr().out)
    (withdrawal,) = record_of(run_dir.side_tables)
    assert said == withdrawal.model_dump(mode="json") | {"rows": said["rows"]}
    lake = Finished(config, run_dir.root).lake
    assert withdrawal.at == lake.num_rows
    of = np.isin(lake["teacher_version"].fill_null(-1).to_numpy(), [1, 2, 3])
    assert said["rows"] == of.sum() > 100

    first = config.students[0].name
    Pipeline(run_dir.root).spawn(SpawnRequest("late", verticals=(first,), like=first))
    with patch("pipelines.live.loop.conclusion.draw"):
        status, _ = run(config, run_dir, local=True, until_end=True)
    assert status.state is RunState.DONE, status.reason
    finished = Finished(config, run_dir.root)
    of = np.isin(finished.lake["teacher_version"].fill_null(-1).to_numpy(), [1, 2, 3])
    for name in ("late", *(student.name for student in config.students)):
        for seq, logit in told(run_dir, name).items():
            null = of[seq] and name == "late"
            assert np.array_equal(logit, np.nan if null else logged(finished)[seq], equal_nan=True), seq
    assert_replays(run_dir.root)

    folder, columns = run_dir.root / "replayed", ["lake_seq", "teacher_logit_ctr"]
    folder.mkdir()
    rows = rows_of(config, folder, limit=None, run_dir=run_dir, advance=lambda done: None, columns=columns)
    replayed = rows.table["teacher_logit_ctr"].to_numpy(zero_copy_only=False)
    assert np.array_equal(replayed, np.where(of, np.nan, logged(finished)), equal_nan=True)
    with suppress(SystemExit):
        main(["teacher", "list", str(run_dir.root)])
    assert f"logits of the teacher's version 1 to 3: revoked at lake_seq {withdrawal.at:,}" in capsys.readouterr().out

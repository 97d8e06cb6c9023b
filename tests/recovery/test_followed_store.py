"""Runs that follow the lake of a run on object storage: the two are on machines that share no disk."""

from __future__ import annotations

import pytest
import yaml

from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run, start_over
from pipelines.live.rules.states import RunState
from streaming.store.objects import store_at
from tests.support.pipelines.following_runs import OWN
from tests.support.pipelines.lost_machines import Machines
from tests.support.pipelines.small_runs import assert_replays, assert_same_student, small, stop_after, to_the_end

pytestmark = [pytest.mark.broker, pytest.mark.check, pytest.mark.timeout(900)]

SHORT = {"source__impressions": 2000, "pace__block_rows": 256}


def test_students_of_a_run_that_follows_a_lake_at_a_store_are_those_of_the_run_that_leads(
    s3_server, broker, tmp_path, monkeypatch
):
    """It begins while the other one runs, stops once, and ends when that one has ended."""
    config = small(broker.bootstrap_servers, **SHORT)
    machines = Machines(config, "s3://bucket/runs/leads", tmp_path, monkeypatch)
    leading = machines.start()
    team = RunDir(tmp_path / "team")
    try:
        leading.until(lambda status: status["lake"]["rows"] >= 300)
        machines.another()
        theirs = yaml.safe_load(leading.run_dir.config.read_text())
        settings = {name: theirs[name] for name in (*OWN, "students")}
        file = tmp_path / "team.yaml"
        file.write_text(yaml.safe_dump({"name": "team", "source": {"lake": machines.url}, **settings}))
        follows = load(file)
        status, _ = run(follows, team, local=True, until_end=True, watch=stop_after(200))
        assert status.state is RunState.STOPPED, status.reason
        readers = {found.key.rpartition("/")[2] for found in store_at(machines.url).list("lake/readers/team-")}
        assert {"student-feed.json", "run"} <= readers
        assert leading.wait() == 0, leading.log.read_text()[-3000:]
        finished = to_the_end(follows, team.root)
    finally:
        for command in machines.commands:
            command.clean_up()
    leader = machines.look(config)
    for student in config.students:
        assert_same_student(leader, finished, student.name)
    assert finished.summary["counts"] == leader.summary["counts"]
    assert not (team.root / "lake").exists()
    assert_replays(team.root, "feed")
    start_over(team)
    assert not [found.key for found in store_at(machines.url).list("lake/readers/team-")]

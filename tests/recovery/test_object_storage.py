"""Runs whose directory is on object storage: machines that are lost with their disks, and requests that fail."""

from __future__ import annotations

import pytest

from exfm.models.served import load_served
from pipelines.core.run_dir.object_storage import working_copy
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from pipelines.serve.sources import model_sources
from tests.support.pipelines.lost_machines import Machines
from tests.support.pipelines.small_runs import (
    assert_learned_the_lake,
    assert_replays,
    assert_same_run,
    small,
    to_the_end,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

SHORT = {"source__impressions": 3000, "pace__block_rows": 256}


@pytest.fixture(scope="module")
def undisturbed(broker, tmp_path_factory):
    """The same stream in a folder of this machine."""
    return to_the_end(small(broker.bootstrap_servers, **SHORT), tmp_path_factory.mktemp("disk") / "run")


@pytest.mark.parametrize(
    "share",
    [pytest.param(0.0, id="well"), pytest.param(0.01, id="1 % of the requests fail", marks=pytest.mark.check)],
)
def test_a_run_goes_on_where_its_machine_was_lost_with_its_disk(
    s3_server, broker, tmp_path, undisturbed, monkeypatch, share
):
    config = small(broker.bootstrap_servers, **SHORT)
    machines = Machines(config, f"s3://bucket/runs/lost-{share}", tmp_path, monkeypatch)
    try:
        s3_server.fail(share, seed=7)
        for rows in (500, 1800):
            command = machines.start()
            command.until(lambda status, rows=rows: status["lake"]["rows"] >= rows)
            machines.lose(command)
        last = machines.start()
        assert last.wait() == 0, last.log.read_text()[-3000:]
    finally:
        counts = s3_server.counts()
        s3_server.fail(0.0)
        for command in machines.commands:
            command.clean_up()
    assert share == 0 or sum(counts["happened"].values()) > 10
    found = machines.look(config)
    assert_same_run(undisturbed, found)
    assert_learned_the_lake(found)


@pytest.mark.slow
def test_a_run_goes_on_at_a_store_of_other_people_too(moto_server, broker, tmp_path, undisturbed, monkeypatch):
    config = small(broker.bootstrap_servers, **SHORT)
    machines = Machines(config, "s3://bucket/runs/elsewhere", tmp_path, monkeypatch)
    try:
        command = machines.start()
        command.until(lambda status: status["lake"]["rows"] >= 1000)
        machines.lose(command)
        last = machines.start()
        assert last.wait() == 0, last.log.read_text()[-3000:]
    finally:
        for command in machines.commands:
            command.clean_up()
    found = machines.look(config)
    assert_same_run(undisturbed, found)
    assert_learned_the_lake(found)


def test_others_ask_serve_and_verify_a_run_from_another_machine(s3_server, broker, tmp_path, monkeypatch):
    config = small(broker.bootstrap_servers, **SHORT)
    machines = Machines(config, "s3://bucket/runs/asked", tmp_path, monkeypatch)
    command = machines.start()
    try:
        command.until(lambda status: status["lake"]["rows"] >= 300)
        machines.another()
        spawned = Pipeline(working_copy(machines.url)).spawn(SpawnRequest("late", verticals=("travel",), like="feed"))
        assert spawned.state == "joined", spawned
        assert command.wait() == 0, command.log.read_text()[-3000:]
    finally:
        command.clean_up()
    found = machines.look(config)
    assert found.summary["students"]["late"]["ctr"]["rows"] > 0
    assert_replays(found.run_dir.root, "feed", "late")
    assert not command.run_dir.lake.samefile(found.run_dir.lake)
    (source,) = model_sources(["late"], found.run_dir.root)
    wanted = source.wanted()
    assert wanted is not None
    assert load_served(wanted.path).tasks == ("ctr", "cvr")

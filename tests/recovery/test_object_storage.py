"""Runs whose directory is on object storage: machines that are lost with their disks, and requests that fail."""

from __future__ import annotations

import os
import re
import signal

import pytest

from exfm.models.served import load_served
from pipelines.cli.console import main
from pipelines.core.config.settings import load
from pipelines.core.run_dir.forgotten import forgotten
from pipelines.core.run_dir.object_storage import taking_over, working_copy
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.serve.sources import model_sources
from streaming.errors import BadInput
from tests.support.pipelines.lost_machines import Machines
from tests.support.pipelines.mirror import Mirror
from tests.support.pipelines.small_runs import (
    assert_learned_the_lake,
    assert_replays,
    assert_same_run,
    slow_commits,
    small,
    to_the_end,
)
from tests.support.pipelines.small_runs import (
    undisturbed as run_through,
)
from tests.support.pipelines.topics import by_hand, fill, make_inputs

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


def test_a_stopped_run_is_changed_from_another_machine(s3_server, broker, own_broker, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)
    there = own_broker.start().bootstrap_servers
    config = small(broker.bootstrap_servers, source=None, pace__block_rows=256)
    make_inputs(config)
    shown, feedback = by_hand(config, 3000)
    half_ms = shown[1500]["event_time_ms"]
    fill(config, shown[:1500], [row for row in feedback if row["event_time_ms"] < half_ms])
    machines = Machines(config, "s3://bucket/runs/changed", tmp_path, monkeypatch)

    def told(*words: str, code: int = 0) -> str:
        machines.another()
        with pytest.raises(SystemExit) as ended:
            main([*words, "--run-dir", machines.url])
        said = capsys.readouterr()
        assert ended.value.code == code, said
        return said.out + said.err

    machines.another()
    root = working_copy(machines.url)

    def from_elsewhere(status: RunStatus) -> None:
        if status.state is RunState.RUNNING and status.lake.rows > 600:
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
                with pytest.raises(BadInput, match=r"is being run by pid .*; stop it there"), taking_over(machines.url):
                    pass
            os.kill(os.getpid(), signal.SIGTERM)

    with slow_commits():
        status, _ = run(config, RunDir(root), local=True, watch=from_elsewhere)
    assert status.state is RunState.STOPPED, status.reason
    fill(config, shown[1500:], [row for row in feedback if row["event_time_ms"] >= half_ms])
    whole = run_through(config, tmp_path / "undisturbed")

    told("silence", "stalled", "--minutes", "60")
    told("forget", "--table", "user_id", "--id", str(shown[0]["user_id"]), "--wait", "0")
    assert "settled" in told("why", "impression", str(shown[0]["impression_id"]))
    topics = [config.kafka.impressions.topic, config.kafka.feedback.topic]
    mirror = Mirror(str(config.kafka.bootstrap_servers), there, dict.fromkeys(topics, 2), markers=3)
    for topic in topics:
        mirror.copy(topic)
    told("broker", "move", "--to", there)
    told("broker", "move", "--to", there)
    assert "nothing is to be mended" in told("mend", "watermark", code=2)
    assert "does not work on a run on object storage yet" in told("lake", "vacuum", code=2)

    machines.another()
    moved = working_copy(machines.url)
    assert not RunDir(moved).move.exists()
    status, _ = run(load(RunDir(moved).config), RunDir(moved), local=True, until_end=True)
    assert status.state is RunState.DONE, status.reason
    found = machines.look(load(RunDir(moved).config))
    assert found.lake.drop_columns(["source_offset"]).num_rows == whole.lake.num_rows
    assert forgotten(found.run_dir).at["teacher"][1] > 0
    refused = told("promote", "feed", "--reason", "test", code=2)
    version = re.findall(r"v\d{8}-twin", refused)[0]
    told("promote", "feed", "--reason", "test", "--version", version)
    again = told("promote", "feed", "--reason", "test", "--version", version)
    assert f"{version} was champion already" in again

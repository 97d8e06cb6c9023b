"""A run directory that is started again: what is said of what lies there."""

from __future__ import annotations

import json

import pytest

from pipelines.core.config.settings import dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop import lifecycle
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import LakeSize, RunStatus
from streaming.errors import StreamingError
from streaming.lake.writer import LakeTable
from streaming.store.files import write_json
from tests.support.pipelines.raw_configs import small
from tests.support.streams.lake_rows import rows

ROWS = 240


@pytest.fixture
def run_dir(tmp_path):
    """A run that was killed while it started, with a lake from before."""
    where = RunDir(tmp_path / "run")
    where.root.mkdir()
    where.lock.touch()
    config = parse(small())
    where.config.write_text(dump(config))
    LakeTable(where.lake, config.rows).open_writer().commit(rows(0, ROWS, schema=config.rows), state=0, metadata={})
    write_json(where.status, RunStatus("small", RunState.STARTING).as_json())
    return where


def test_a_run_that_fails_while_starting_has_the_rows_of_its_lake(run_dir, monkeypatch):
    def no_broker(*args, **kwargs):
        raise StreamingError("no broker")

    said = []
    monkeypatch.setattr(lifecycle, "provisioned", no_broker)
    with pytest.raises(StreamingError, match="no broker"):
        lifecycle.run(parse(small()), run_dir, local=True, say=said.append)
    assert said == [f"found a run in {run_dir.root} (starting, {ROWS} rows in the lake): resuming it"]


def test_the_status_of_a_run_that_is_resumed_begins_with_the_rows_of_its_lake(run_dir):
    status = RunStatus.resuming("small", lifecycle.earlier_attempts(run_dir.root), lifecycle.lake_rows(run_dir))
    value = json.loads(json.dumps(status.as_json()))
    assert (value["lake"]["rows"], value["lake"]["last_lake_seq"]) == (ROWS, ROWS - 1)
    assert lifecycle.lake_rows(RunDir(run_dir.root / "none")) == 0


def test_what_is_being_started_is_said_of_a_run_with_rows_too():
    status = RunStatus("small", lake=LakeSize(ROWS, last_lake_seq=ROWS - 1), stage="starting Ray")
    assert status.waits_for == "starting Ray"
    status.state = RunState.RUNNING
    assert status.waits_for is None

"""An id that as-of features forget: it begins anew at a recorded event time, and nobody else's values change."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from pipelines.cli.console import app
from pipelines.core.run_dir.forgotten import forgotten
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from streaming.lake.reader import LakeReader
from streaming.settlement.follower import AsOfFollower
from tests.support.pipelines.small_runs import (
    Finished,
    assert_replays,
    assert_same_run,
    everything,
    stop_after,
    to_the_end,
)

pytestmark = pytest.mark.broker
TICK_MS = 30_000


def of_few(servers: str, by: str, **more) -> Any:
    """Few users, so that each is met often, and room for all keys."""
    parts = {f"kafka__{topic}__partitions": 4 for topic in ("impressions", "feedback")}
    source = {"source__users": 40, "source__impressions": 3000, "source__chunk_rows": 50, "source__rate": "400"}
    return everything(servers, settlement__by=by, asof__max_keys=10_000, pace__block_rows=256, **parts | source | more)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("by", ["stream", "partition"])
def test_a_user_who_is_forgotten_begins_anew_and_nobody_else_changes(broker, tmp_path, by):
    config = of_few(broker.bootstrap_servers, by)
    run_dir = RunDir(tmp_path / "run")
    status, _ = run(config, run_dir, local=True, until_end=True, watch=stop_after(400))
    assert status.state is RunState.STOPPED, status.reason
    users = LakeReader(run_dir.lake, config.rows).read(columns=["user_id"]).table["user_id"]
    user = pc.mode(users)[0]["mode"].as_py()
    said = CliRunner().invoke(app, ["forget", str(run_dir.root), "--table", "user_id", "--id", str(user)])
    assert said.exit_code == 0, said.output
    assert "augmentation: before it takes in another row, once the run runs again" in said.output
    found = to_the_end(config, run_dir.root)

    record = forgotten(run_dir)
    at_ms, removed = record.at["augmentation"][1], record.removed[1]
    assert removed.keys > 5
    whole = to_the_end(of_few(broker.bootstrap_servers, by), tmp_path / "whole")
    lakes = [of_impressions(each) for each in (found, whole)]
    columns = [c.name for c in config.rows.asof.columns if not c.name.startswith("above")]  # of ads, by users' rates
    own = pc.and_(pc.equal(lakes[0]["user_id"], user), pc.greater_equal(lakes[0]["merge_time_ms"], at_ms))
    others = [lake.filter(pc.invert(own)).select(["impression_id", *columns]) for lake in lakes]
    assert others[0].equals(others[1])
    assert_begins_anew(lakes[0].filter(own), at_ms)
    assert_replays(run_dir.root)

    follower = AsOfFollower(run_dir.checkpoints("augmentation"))
    assert follower.refresh()
    row = pa.record_batch({"user_id": [user], "ad_id": [1]})
    shown = follower.look(row, np.array([pc.max(lakes[0]["merge_time_ms"]).as_py() + TICK_MS]))
    assert shown["met_user_shown"][0].as_py() == pc.sum(own).as_py()

    again = RunDir(tmp_path / "again")  # a run that knows from its beginning when
    again.root.mkdir()
    again.lock.touch()
    shutil.copy(run_dir.forgotten, again.forgotten)
    assert_same_run(to_the_end(of_few(broker.bootstrap_servers, by), again.root), found)


def of_impressions(run: Finished) -> pa.Table:
    """The lake's rows, one of each impression, in order of their ids."""
    rows = run.lake.filter(pc.equal(run.lake["settlement"], "ctr"))
    return rows.sort_by("impression_id")


def assert_begins_anew(own: pa.Table, at_ms: int) -> None:
    """Rows of a user know those since `at_ms` and no others."""
    assert own.num_rows > 10
    shown, ads = own["merge_time_ms"].to_numpy(), own["ad_id"].to_numpy()
    tick = shown // TICK_MS * TICK_MS
    before = shown < tick[:, None]  # [i, j]: row i knows row j
    assert own["met_user_shown"].to_pylist() == before.sum(axis=1).tolist()
    met = (before & (ads == ads[:, None])).any(axis=1)
    assert (own["met_ad_shown"].to_numpy() > 0).tolist() == met.tolist()
    clicks = before & pc.equal(own["label_ctr"], 1).to_numpy(zero_copy_only=False)
    assert (pc.list_value_length(own["clicked_ad_id"]).to_numpy() <= clicks.sum(axis=1)).all()
    assert (own["met_user"].to_numpy()[before.sum(axis=1) == 0] < 0.5).all()

"""An id that as-of features forget: it begins anew at a recorded event time, and nobody else's values change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from pipelines.cli.console import app
from pipelines.core.run_dir.forgotten import forgotten
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.forgetting import AsOfForgetting
from streaming.lake.reader import LakeReader
from streaming.settlement.saved.follower import AsOfFollower
from tests.support.pipelines.small_runs import (
    Finished,
    assert_replays,
    assert_same_run,
    everything,
    to_the_end,
)

pytestmark = pytest.mark.broker
TICK_MS = 30_000


def of_few(servers: str, by: str, **more: Any) -> Any:
    """Few users, so that each is met often, and room for all keys."""
    parts = {f"kafka__{topic}__partitions": 4 for topic in ("impressions", "feedback")}
    source = {"source__users": 40, "source__impressions": 3000, "source__chunk_rows": 50}
    block = {"pace__first_block_rows": 128, "pace__block_rows": 256}
    return everything(servers, settlement__by=by, asof__max_keys=10_000, **parts | source | block | more)


def asked_while_it_lives(config: Any, root: Path, user: int) -> Finished:
    """A run that is asked to forget a user behind its first block."""
    look, asked = AsOfForgetting.look, list[str]()

    def asked_first(self: AsOfForgetting) -> None:
        if not asked and LakeReader(RunDir(root).lake, config.rows).rows:
            command = ["forget", str(root), "--table", "user_id", "--id", str(user), "--wait", "0"]
            asked.append(CliRunner().invoke(app, command).output)
            assert "  augmentation: before it takes in another row" in asked[0]
        look(self)

    with patch.object(AsOfForgetting, "look", asked_first):
        return to_the_end(config, root)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("by", ["stream", pytest.param("partition", marks=pytest.mark.check)])
def test_a_user_who_is_forgotten_begins_anew_and_nobody_else_changes(broker, tmp_path, by):
    whole = to_the_end(of_few(broker.bootstrap_servers, by), tmp_path / "whole")
    user = pc.mode(whole.lake["user_id"])[0]["mode"].as_py()
    config = of_few(broker.bootstrap_servers, by, source__rate="150")  # else all is read before it is asked
    run_dir = RunDir(tmp_path / "run")
    found = asked_while_it_lives(config, run_dir.root, user)

    record = forgotten(run_dir)
    at_ms, removed = record.at["augmentation"][1], record.removed[1]
    assert removed.keys > 5
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

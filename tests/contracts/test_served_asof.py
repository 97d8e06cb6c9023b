"""As-of features of requests: looked up in the state of a run they are what the lake says of the same impressions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.commit import BlockCommit
from pipelines.serve.app import Server
from pipelines.serve.model_store import model_store_of
from streaming.settlement.saved.follower import AsOfFollower
from tests.support.pipelines.served_runs import ask
from tests.support.pipelines.small_runs import small, to_the_end

pytestmark = pytest.mark.broker
TICK_S = 7200
ASOF = [
    {"name": "user_rate", "by": "user_id", "rate": "ctr", "prior": 5},
    {"name": "ad_rate", "by": ["ad_id", "user_id"], "rate": "ctr", "half_life_s": 9000},
    {"name": "above", "by": "ad_id", "residual": "ctr", "against": "user_rate"},
    {"name": "since_click", "by": "vertical", "since": "ctr"},
    {"name": "recent", "by": "user_id", "last": 4, "of": ["ad_id", "ctr", "gap_s"]},
]
COLUMNS = ["user_rate", "user_rate_shown", "ad_rate", "ad_rate_shown", "above", "above_shown", "since_click"]
PREDICT = "/v1/models/feed:predict"


class Noted:
    """A log of what was served, in memory."""

    written = dropped = unidentified = 0

    def __init__(self) -> None:
        self.rows: list[pa.RecordBatch] = []

    def note(self, version, asked, answer) -> None:
        self.rows.append(version.signature.impressions(asked, 0))

    def close(self) -> None:
        pass


def a_run_with_an_earlier_state(servers: str, root: Path):
    """A finished run whose as-of state is that of an earlier commit; what came later is asked for."""
    config = small(
        servers,
        source__impressions=3000,
        source__chunk_rows=64,
        source__rate="1500",  # else all is read before the first commit
        augmentation__buffer_rows=64,
        features__asof=ASOF,
        asof={"tick_s": TICK_S},
        pace__first_block_rows=256,
    )
    commit, states, earlier = BlockCommit.commit, RunDir(root).checkpoints("augmentation"), root.with_name("earlier")

    def kept(self, *args, **options):
        commit(self, *args, **options)
        shutil.copytree(states, earlier / str(len(list(earlier.glob("*")))))

    with patch.object(BlockCommit, "commit", kept):
        run = to_the_end(config, root)
    lake = run.lake.filter(pa.compute.equal(run.lake["settlement"], "ctr"))
    merged = lake["merge_time_ms"].to_numpy()

    def to_come(folder: Path) -> int:
        """Impressions of the rest of the state's tick."""
        state = AsOfFollower(folder)
        assert state.refresh()
        until_ms = state.state.until_ms or 0
        return int(((merged > until_ms) & (merged // (1000 * TICK_S) == until_ms // (1000 * TICK_S))).sum())

    shutil.rmtree(states)
    shutil.move(max(earlier.glob("*"), key=to_come), states)
    return run


def test_requests_have_the_features_that_the_lake_will_hold_and_a_feature_store_has_the_last_word(kafka, tmp_path):
    run = a_run_with_an_earlier_state(kafka.bootstrap_servers, tmp_path / "run")
    log, model_store = Noted(), model_store_of(run.run_dir, ["feed"], "newest")
    server = Server(model_store, served_log=log)
    (source,) = model_store.asof_sources
    assert source.until_ms is not None
    lake = run.lake.filter(pa.compute.equal(run.lake["settlement"], "ctr"))
    merged = lake["merge_time_ms"].to_numpy()
    next_ones = np.flatnonzero(
        (merged > source.until_ms) & (merged // (1000 * TICK_S) == source.until_ms // (1000 * TICK_S))
    )
    lake = lake.take(pa.array(next_ones))
    assert lake.num_rows > 50
    asked = lake.select(["impression_id", "vertical", "user_id", "ad_id", "bid"])
    rows = asked.append_column("event_time_ms", lake["merge_time_ms"]).to_pylist()
    assert ask(server.app, "POST", PREDICT, json.dumps({"rows": rows}).encode()).code == 200
    (served,) = log.rows
    assert served.select(COLUMNS).to_pylist() == lake.select(COLUMNS).to_pylist()
    assert any(value is not None for value in served["since_click"].to_pylist())

    own = [row | {"user_rate": 0.25} for row in rows]
    assert ask(server.app, "POST", PREDICT, json.dumps({"rows": own}).encode()).code == 200
    assert set(log.rows[1]["user_rate"].to_pylist()) == {0.25}
    assert log.rows[1].select(COLUMNS[1:]).equals(served.select(COLUMNS[1:]))

    stranger = rows[0] | {"user_id": 10**6}
    assert ask(server.app, "POST", PREDICT, json.dumps({"rows": [stranger]}).encode()).code == 200
    (new,) = log.rows[2].to_pylist()
    assert (new["user_rate_shown"], 0 < new["user_rate"] < 0.2) == (0, True)

    shutil.rmtree(run.run_dir.checkpoints("augmentation"))
    alone = Server(model_store_of(run.run_dir, ["feed"], "newest"))
    said = ask(alone.app, "POST", PREDICT, json.dumps({"rows": rows[:1]}).encode())
    assert said.code == 422
    assert "as-of feature" in json.loads(said.body)["refused"][0]["why"]
    whole = [row | values for row, values in zip(rows, served.select(COLUMNS).to_pylist(), strict=True)]
    assert ask(alone.app, "POST", PREDICT, json.dumps({"rows": whole}).encode()).code == 200

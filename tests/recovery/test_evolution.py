"""A run that is stopped, and goes on with larger tables and with a feature more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from exfm.snapshots.checkpoint import checkpoint_names, latest_checkpoint, load_checkpoint
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.settings import Config, dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from streaming.errors import BadInput
from tests.support.pipelines.small_runs import assert_replays, everything, slow_commits, small, stop_after, to_the_end

pytestmark = pytest.mark.broker

STREAM: dict[str, Any] = {"source__impressions": 6000, "pace__block_rows": 256, "teacher__batch_rows": 128}
BUCKETS = {"name": "bid_bucket", "column": "bid", "transform": "bucketize", "boundaries": [0.5, 1.0, 2.0]}


def config_of(servers: str) -> Config:
    config = everything(servers, **STREAM)  # long enough that the last stop leaves blocks to score
    students = tuple(s.model_copy(update={"checkpoint_every_rows": 150}) for s in config.students)
    return config.model_copy(update={"students": students})


def edited(config: Config, *, user_rows: int = 1000, more: tuple[dict[str, Any], ...] = (), only=(), less=()) -> Config:
    raw = yaml.safe_load(dump(config))
    sparse = raw["features"]["sparse"]
    next(f for f in sparse if f["name"] == "user_id")["rows"] = user_rows
    raw["features"]["sparse"] = [f for f in [*sparse, *more] if f["name"] not in less]
    raw["teacher"]["only"] = [*(n for n in raw["teacher"]["only"] if n not in less), *only]
    return parse(raw)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr("pipelines.live.rules.restarts.FIRST_DELAY_S", 0.01)
    monkeypatch.setattr("pipelines.live.loop.live_run.STATUS_INTERVAL_S", 0.0)


def stopped(config: Config, root: Path, rows: int, **options: Any) -> list[str]:
    said: list[str] = []
    with slow_commits():
        status, _ = run(
            config, RunDir(root), local=True, until_end=True, watch=stop_after(rows), say=said.append, **options
        )
    assert status.state is RunState.STOPPED, status.reason
    return said


def version(root: Path) -> int:
    newest = latest_checkpoint(RunDir(root).checkpoints("teacher"))
    assert newest is not None
    return int(newest.name[1:])


@pytest.mark.slow
def test_a_run_grows_and_gains_a_feature_and_loses_no_row(broker, tmp_path):
    before = config_of(broker.bootstrap_servers)
    undisturbed = to_the_end(before, tmp_path / "undisturbed")
    root = tmp_path / "run"
    config = config_of(broker.bootstrap_servers)
    grown = edited(config, user_rows=2000)
    more = edited(grown, user_rows=2000, more=(BUCKETS,), only=("bid_bucket",))

    stopped(config, root, 700)
    first, kept = version(root), load_checkpoint(RunDir(root).checkpoints("teacher") / f"v{version(root):08d}").tensors
    with pytest.raises(BadInput, match=r"rows was 1000, is 2000.* Or continue it with --evolve"):
        run(grown, RunDir(root), local=True, until_end=True)
    said = stopped(grown, root, 1400, evolve=True)
    assert any("`user_id` grows from 1,000 to 2,000 rows: row i starts as a copy of row i mod 1,000" in s for s in said)
    assert any("`user_id` is read by students too: feed, brand, clicks" in line for line in said)
    second = version(root)
    assert second > first
    said = stopped(more, root, 2000, evolve=True)
    assert any("`bid_bucket` is added: its table of 4 rows starts from the seed" in line for line in said)
    finished = to_the_end(more, root)  # from now on it is this run's config, and nothing is asked

    # Every row once, in the lake and in every model.
    assert finished.summary["counts"] == undisturbed.summary["counts"]
    for worker in undisturbed.models:
        assert finished.learned(worker) == undisturbed.learned(worker)
        assert finished.left_out(worker) == undisturbed.left_out(worker)
    # What snapshots of the smaller teacher scored after it had grown is what they would have scored anyway.
    ours, theirs = finished.lake, undisturbed.lake
    assert ours["impression_id"].equals(theirs["impression_id"])
    assert ours["teacher_version"].equals(theirs["teacher_version"])
    versions = ours["teacher_version"].to_numpy()
    logits = [lake["teacher_logit_ctr"].to_numpy(zero_copy_only=False) for lake in (ours, theirs)]
    assert np.array_equal(*(column[versions <= first] for column in logits), equal_nan=True)
    assert not np.array_equal(*(column[versions > second] for column in logits), equal_nan=True)
    # The models are those of the new config.
    tensors = load_checkpoint(latest_checkpoint(RunDir(root).checkpoints("teacher"))).tensors
    assert tensors["table/user_id/weight"].shape == (2000, 8)
    assert kept["table/user_id/weight"].shape == (1000, 8)
    assert tensors["table/bid_bucket/accumulator"].any()
    for student in ("feed", "brand", "clicks"):
        state = load_checkpoint(latest_checkpoint(RunDir(root).checkpoints(f"student-{student}"))).tensors
        assert state["student/table/user_id/weight"].shape == (2000, 4)
        assert "student/table/bid_bucket/weight" not in state
        served = RunDir(root).served(student)
        assert load_checkpoint(served / checkpoint_names(served)[-1]).tensors[
            "tables.embedding_bags.user_id.weight"
        ].shape == (2000, 4)
    lineage = json.loads(RunDir(root).lineage.read_text())
    assert [(entry["from"], entry["to"]) for entry in lineage] == [(config.hash, grown.hash), (grown.hash, more.hash)]
    meta = read_manifest(latest_checkpoint(RunDir(root).snapshots))["meta"]
    assert meta["config_hash"] == more.identity("teacher")
    assert "bid_bucket" in [feature["name"] for feature in meta["made_with"]["features"]["sparse"]]
    # A replay grows where the run did.
    assert_replays(root)


@pytest.mark.timeout(900)
def test_a_full_table_becomes_chunks_that_are_all_kept_in_mid_run_and_no_bit_changes(broker, tmp_path):
    """Of a teacher by element-wise AdaGrad. Rows, logits, students and the rest of its state are those of a run whose
    table stayed full; another kind is refused before anything is touched."""

    def of_kind(config: Config, **embeddings: Any) -> Config:
        raw = yaml.safe_load(dump(config))
        raw["teacher"]["model"] |= {"sparse_optimizer": "adagrad", "embeddings": embeddings}
        return parse(raw)

    def began() -> Config:
        return of_kind(small(broker.bootstrap_servers, source__impressions=1500, pace__block_rows=128))

    undisturbed = to_the_end(began(), tmp_path / "undisturbed")
    root, begin = tmp_path / "run", began()
    stopped(begin, root, 400)
    before = version(root)
    chunks = of_kind(begin, user_id={"kind": "fiited", "keep": 1, "chunks": 2})
    pruned = of_kind(begin, user_id={"kind": "fiited", "keep": 0.5, "chunks": 2})
    with pytest.raises(BadInput, match=r"Or continue it with --evolve"):
        run(chunks, RunDir(root), local=True, until_end=True)
    with pytest.raises(BadInput, match=r"table `user_id` was `full`, and is wanted as `fiited, chunks: 2, keep: 0.5`"):
        run(pruned, RunDir(root), local=True, until_end=True, evolve=True)
    said = list[str]()
    finished = to_the_end(chunks, root, evolve=True, say=said.append)
    assert any("`user_id` becomes `fiited`: the teacher's table is cut in chunks" in line for line in said)
    assert version(root) > before

    assert finished.summary["counts"] == undisturbed.summary["counts"]
    for name in ("impression_id", "teacher_version", "teacher_logit_ctr"):
        assert finished.lake[name].equals(undisturbed.lake[name])
    ours, theirs = (
        load_checkpoint(latest_checkpoint(RunDir(at).checkpoints("teacher"))).tensors
        for at in (root, tmp_path / "undisturbed")
    )
    for name in ("weight", "accumulator"):
        assert ours[f"table/user_id/{name}"].shape == (2000, 4)
        assert torch.equal(ours[f"table/user_id/{name}"].view(1000, 8), theirs[f"table/user_id/{name}"])
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if not name.startswith("table/user_id/"))
    assert_replays(root)

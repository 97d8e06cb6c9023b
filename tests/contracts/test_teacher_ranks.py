"""The teacher as several processes: they learn what one would, whoever has the rows, wherever these come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import torch
from kafka import KafkaAdminClient, TopicPartition

import exfm.models.bad_rows  # noqa: F401  (with its own ceiling)
from exfm.parallel.layout import Sharding
from exfm.snapshots.checkpoint import checkpoint_names, latest_checkpoint, load_checkpoint
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from streaming.kafka.topics import end_offsets
from streaming.partitioner import partition_of
from streaming.position import Partition
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake, small, to_the_end
from tests.support.pipelines.topics import by_hand, fill
from tests.support.ranks.teacher_ranks import laid_down, seen_from, taught

pytestmark = pytest.mark.broker

PARTITIONS = 4
IMPRESSIONS = 2000
STREAM: dict[str, Any] = {
    "source": None,
    "kafka__examples__partitions": PARTITIONS,
    "pace__block_rows": 500,
    "teacher__batch_rows": 128,
    "students": [],
}


def feed(config: Config, into: set[int], bid: float | None = None) -> None:
    """A stream whose rows all go to these partitions of the examples topic; one impression in it has this bid."""
    shown, feedback = by_hand(config, IMPRESSIONS)
    pool = np.arange(10 * PARTITIONS * IMPRESSIONS)
    pool = pool[np.isin(partition_of(pa.array(pool), PARTITIONS), list(into))]
    ids = {row["impression_id"]: int(pool[number]) for number, row in enumerate(shown)}
    shown = [row | {"impression_id": ids[row["impression_id"]]} for row in shown]
    feedback = [row | {"impression_id": ids[row["impression_id"]]} for row in feedback if row["impression_id"] in ids]
    if bid is not None:
        shown[1000] |= {"bid": bid}
    fill(config, shown, feedback)


def learned_by_one(servers: str, root: Path, into: set[int], bid: float | None = None, **changes: Any) -> Finished:
    """A run whose teacher was one process."""
    config = small(servers, **(STREAM | changes))
    feed(config, into, bid)
    return to_the_end(config, root)


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory) -> Finished:
    """Its examples lie in two of four partitions."""
    return learned_by_one(broker.bootstrap_servers, tmp_path_factory.mktemp("one") / "run", {0, 1})


def furthest(one: Finished, other: Finished) -> dict[str, float]:
    """By kind of tensor, how far the last checkpoints are from each other."""
    a, b = (load_checkpoint(latest_checkpoint(run.run_dir.checkpoints("teacher"))).tensors for run in (one, other))  # type: ignore[arg-type]
    assert {name: t.shape for name, t in a.items() if name[:7] != "metrics"} == {
        name: t.shape for name, t in b.items() if name[:7] != "metrics"
    }
    found: dict[str, float] = {}
    for name in (name for name in a if not name.startswith("metrics")):
        kind = name.split("/")[-1] if name.startswith("table") else name.split("/")[0]
        distance = float(np.abs(a[name].double().numpy() - b[name].double().numpy()).max(initial=0))
        found[kind] = max(found.get(kind, 0.0), distance)
    return found


def assert_same_teacher(one: Finished, other: Finished, *, from_lake: bool = False) -> None:
    """Of other ranks: not a word of what they say differs, and weights only by rounding."""
    assert_learned_the_lake(other)
    metas = [run.checkpoint("teacher")[1] for run in (one, other)]
    for meta in metas if from_lake else ():
        del meta["positions"]  # what comes from the lake to its end moves none
    assert metas[0] == metas[1]
    far = furthest(one, other)
    assert far["weight"] < 1e-5
    assert far["accumulator"] < 1e-5
    assert far["dense"] < 1e-5
    assert far["rng"] == 0


@pytest.mark.check
def test_three_ranks_of_which_one_never_has_a_row_learn_what_one_learns_and_say_so_as_one(finished, tmp_path):
    reports = taught(finished, tmp_path / "three", 3)
    assert_same_teacher(finished, seen_from(finished, tmp_path / "three"))
    rows = finished.lake.num_rows
    assert [report["rows"] for report in reports] == [rows] * 3
    own = [report["own_rows"] for report in reports]
    assert own[2] == 0
    assert min(own[:2]) > 0.4 * rows
    assert sum(own) == rows
    assert len({json.dumps(report["ne"]) for report in reports}) == 1
    three = seen_from(finished, tmp_path / "three")
    assert [p.name for p in sorted(three.run_dir.snapshots.glob("v*"))] == [
        p.name for p in sorted(finished.run_dir.snapshots.glob("v*"))
    ]


@pytest.mark.slow
def test_all_rows_in_one_partition_of_four(broker, tmp_path):
    finished = learned_by_one(broker.bootstrap_servers, tmp_path / "one", {2})
    for ranks in (2, 4):
        reports = taught(finished, tmp_path / f"{ranks}", ranks)
        assert sorted(report["own_rows"] for report in reports)[:-1] == [0] * (ranks - 1)
        assert_same_teacher(finished, seen_from(finished, tmp_path / f"{ranks}"))


@pytest.mark.slow
def test_ranks_come_and_go_between_blocks(finished, tmp_path):
    root = tmp_path / "changing"
    for ranks, until in ((2, 2), (4, 3), (1, 4), (3, 10**9)):
        taught(finished, root, ranks, until=until)
    assert_same_teacher(finished, seen_from(finished, root))


@pytest.mark.slow
def test_ranks_that_read_and_send_ahead_learn_the_same_to_the_last_bit_as_often_as_they_do(finished, tmp_path):
    assert finished.config.teacher.read_ahead > 0
    for name, changes in {"ahead": {}, "again": {}, "not ahead": {"read_ahead": 0}}.items():
        reports = taught(finished, tmp_path / name, 2, **changes)
        assert [("send ids" in report["phases_s"]) for report in reports] == [name != "not ahead"] * 2
    ahead, *others = (seen_from(finished, tmp_path / n).checkpoint("teacher") for n in ("ahead", "again", "not ahead"))
    assert all(other == ahead for other in others)


@pytest.mark.slow
def test_of_a_damaged_checkpoint_all_ranks_go_on_from_the_one_before_and_it_is_set_aside_once(broker, tmp_path):
    given = laid_down(small(broker.bootstrap_servers, **(STREAM | {"pace__block_rows": 200})), tmp_path / "given", 5)
    taught(given, tmp_path / "whole", 2)
    taught(given, tmp_path / "damaged", 2, until=3)
    checkpoints = RunDir(tmp_path / "damaged").checkpoints("teacher")
    newest = latest_checkpoint(checkpoints)
    assert newest is not None
    (piece, *_) = sorted(newest.glob("tensors*"))
    content = bytearray(piece.read_bytes())
    content[len(content) // 2] ^= 1
    piece.write_bytes(content)
    first, second = taught(given, tmp_path / "damaged", 2)
    assert [path.name for path in checkpoints.glob(".damaged-*")] == [f".damaged-{newest.name}"]
    assert newest.name in first["note"]
    assert second["note"] is None
    assert seen_from(given, tmp_path / "damaged").checkpoint("teacher") == seen_from(
        given, tmp_path / "whole"
    ).checkpoint("teacher")


@pytest.mark.slow
def test_ways_to_cut_tables_are_for_the_ranks_alone_to_know(finished, tmp_path):
    for types in (("row_wise",), ("table_row_wise",), ("data_parallel",)):
        sharding = finished.config.teacher.sharding.model_copy(update={"types": types})
        taught(finished, tmp_path / types[0], 2, sharding=sharding)
        assert_same_teacher(finished, seen_from(finished, tmp_path / types[0]))


def forget(finished: Finished, partition: int, before: int) -> None:
    """Retention deletes a partition's messages before an offset."""
    topic, servers = finished.config.kafka.examples.topic, finished.config.kafka.bootstrap_servers
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.delete_records({TopicPartition(topic, partition): before})
    admin.close()


@pytest.mark.slow
def test_what_one_partition_has_forgotten_all_ranks_take_from_the_lake(broker, tmp_path):
    finished = learned_by_one(broker.bootstrap_servers, tmp_path / "one", {0, 1, 2, 3})
    taught(finished, tmp_path / "two", 2, until=1)
    forget(finished, 3, before=3)  # blocks 0 to 2; rank 1 alone reads it
    taught(finished, tmp_path / "two", 2)
    assert_same_teacher(finished, seen_from(finished, tmp_path / "two"))
    assert "from the lake" in (tmp_path / "two" / "rank0.log").read_text()
    kafka = finished.config.kafka
    (end,) = end_offsets(kafka, [Partition(kafka.examples.topic, 0)]).values()
    forget(finished, 0, before=end)  # and then everything, in one partition of rank 0
    taught(finished, tmp_path / "again", 2)
    assert_same_teacher(finished, seen_from(finished, tmp_path / "again"), from_lake=True)


@pytest.mark.slow
def test_rows_that_no_step_bears_are_left_out_by_the_rank_that_reads_them_and_counted_on_all(broker, tmp_path):
    plain = {"features__dense": [{"name": "bid"}]}  # as it is: too large for the model
    with patch("exfm.features.dense.LARGEST_INPUT", 1e39):  # a lake from before numbers had a ceiling
        finished = learned_by_one(broker.bootstrap_servers, tmp_path / "one", {0, 1, 2, 3}, 3e38, **plain)
    left_out = finished.checkpoint("teacher")[1]["quarantine"]["teacher"]
    poison = finished.lake["lake_seq"].to_numpy()[finished.lake["bid"].to_numpy() > 1e38].tolist()
    assert [row["first_lake_seq"] for row in left_out["last"]] == poison
    assert 0 < left_out["rows"] == len(poison)
    taught(finished, tmp_path / "two", 2)
    assert_same_teacher(finished, seen_from(finished, tmp_path / "two"))


SAVES = [("consecutive", None), ("one_shot", None), ("intermittent", None), ("one_shot", 4)]


@pytest.mark.parametrize(
    ("policy", "bits"), [pytest.param(*each, marks=[pytest.mark.slow] if n else []) for n, each in enumerate(SAVES)]
)
def test_ranks_store_the_rows_that_changed_and_go_on_from_them_to_the_bit(finished, tmp_path, policy, bits):
    cut = Sharding(tables={"user_id": "row_wise", "ad_id": "data_parallel", "vertical": "table_wise"})
    ended = {}
    for saves in ("whole", policy):
        root, options = tmp_path / saves, {"saves": saves, "sharding": cut, "keep_snapshots": 8, "publish_bits": bits}
        taught(finished, root, 2, until=3, **options)
        taught(finished, root, 2, **options)  # a start begins with a whole one
        ended[saves] = seen_from(finished, root)
    whole = ended.pop("whole")
    names = checkpoint_names(whole.run_dir.snapshots)
    assert len(names) > 3
    for run in ended.values():
        assert run.checkpoint("teacher") == whole.checkpoint("teacher")
        assert checkpoint_names(run.run_dir.snapshots) == names
        for name in names:
            stored, wanted = (load_checkpoint(of_run.run_dir.snapshots / name) for of_run in (run, whole))
            assert stored.tensors.keys() == wanted.tensors.keys()
            assert all(torch.equal(stored.tensors[key], tensor) for key, tensor in wanted.tensors.items())
        parents = [read_manifest(run.run_dir.snapshots / name)["parent"] for name in names]
        assert sum(parent is not None for parent in parents) >= len(names) - 2

"""The teacher as several processes: they learn what one would, whoever has the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exfm.checkpoint import latest, load
from pipelines.layout import RunDir
from tests.contracts.pipeline_fixtures import Finished, assert_learned_the_lake, small, to_the_end
from tests.contracts.rank_processes import taught

pytestmark = pytest.mark.broker

PARTITIONS = 4
STREAM = {
    "source__impressions": 2500,
    "source__malformed_rate": 0.0,
    "kafka__examples__partitions": PARTITIONS,
    "pace__block_rows": 500,
    "teacher__batch_rows": 128,
    "students": [],
}


@pytest.fixture(scope="module")
def finished(broker, tmp_path_factory) -> Finished:
    """A run whose teacher was one process."""
    return to_the_end(small(broker.bootstrap_servers, **STREAM), tmp_path_factory.mktemp("one") / "run")


@pytest.fixture(scope="module")
def taught_by_two(finished, tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """Where two ranks learned the same topic, and what they reported last."""
    root = tmp_path_factory.mktemp("two") / "run"
    return root, taught(finished, root, 2)


def of(finished: Finished, root: Path) -> Finished:
    """What ranks learned under `root`, with the lake they learned it from."""
    other = Finished.__new__(Finished)
    other.config, other.run_dir, other.lake = finished.config, RunDir(root), finished.lake
    return other


def furthest(one: Path, other: Path) -> dict[str, float]:
    """By kind of tensor, how far two checkpoints are from each other."""
    a, b = load(one).tensors, load(other).tensors
    assert a.keys() == b.keys()
    found: dict[str, float] = {}
    for name in a:
        kind = name.split("/")[-1] if name.startswith("table") else name.split("/")[0]
        distance = float(np.abs(a[name].double().numpy() - b[name].double().numpy()).max(initial=0))
        found[kind] = max(found.get(kind, 0.0), distance)
    return found


def test_two_ranks_learn_what_one_learns_and_say_so_as_one(finished, taught_by_two):
    root, (first, second) = taught_by_two
    two, rows = of(finished, root), finished.lake.num_rows
    assert_learned_the_lake(two)
    one_meta, two_meta = finished.checkpoint("teacher")[1], two.checkpoint("teacher")[1]
    assert two_meta == one_meta  # learned, quarantine, positions of all partitions, rows: not a word differs
    assert first["rows"] == second["rows"] == first["own_rows"] + second["own_rows"] == rows
    assert min(first["own_rows"], second["own_rows"]) > 0.4 * rows
    one_last, two_last = (latest(run.run_dir.checkpoints("teacher")) for run in (finished, two))
    far = furthest(one_last, two_last)
    assert far["weight"] < 1e-5
    assert far["dense"] < 1e-5
    ne = [run.checkpoint("teacher")[1] for run in (finished, two)]
    assert ne[0] == ne[1]
    snapshots = [sorted(p.name for p in run.run_dir.snapshots.glob("v*")) for run in (finished, two)]
    assert snapshots[0] == snapshots[1]


def test_ranks_that_read_and_send_ahead_learn_the_same_to_the_last_bit(finished, taught_by_two, tmp_path):
    assert finished.config.teacher.read_ahead > 0
    taught(finished, tmp_path / "not ahead", 2, read_ahead=0)
    ahead, other = (of(finished, root).checkpoint("teacher") for root in (taught_by_two[0], tmp_path / "not ahead"))
    assert ahead[1] == other[1]
    assert ahead[0] == other[0]

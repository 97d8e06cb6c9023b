"""The teacher's ranks as plain processes, without Ray, over a lake and a topic that a finished run has left.

reports = taught(finished, tmp_path / "two", ranks=2)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from streaming.delivery.publisher import ExamplesPublisher
from streaming.kafka.topics import ensure_topics
from streaming.lake.writer import LakeTable
from streaming.ports import free_port
from tests.support.pipelines.small_runs import Finished, assert_learned_the_lake
from tests.support.ranks import learning_ranks

PATIENCE_S = 150


def new_run(finished: Finished, root: Path) -> RunDir:
    """A run directory with the finished run's lake, and no checkpoints."""
    run_dir = RunDir(root)
    run_dir.lake.parent.mkdir(parents=True)
    run_dir.lake.symlink_to(finished.run_dir.lake, target_is_directory=True)
    return run_dir


def seen_from(finished: Finished, root: Path) -> Finished:
    """What ranks learned under `root`, with the lake they learned it from."""
    other = Finished.__new__(Finished)
    other.config, other.run_dir, other.lake = finished.config, RunDir(root), finished.lake
    return other


class Ranks(NamedTuple):
    """Their processes, and where each writes what it has to say: `rank<n>.out` a line of JSON at every block's end and
    its report as the last, `rank<n>.log` the rest."""

    parent: subprocess.Popen[str]
    root: Path
    pids: list[int]

    def wait(self) -> list[int]:
        """Their exit codes, once all have ended."""
        said, _ = self.parent.communicate(timeout=PATIENCE_S)
        codes: list[int] = json.loads(said)
        return codes

    def said(self, rank: int) -> list[dict[str, Any]]:
        """So far."""
        text = (self.root / f"rank{rank}.out").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def laid_down(config: Config, root: Path, blocks: int) -> Finished:
    """A lake of so many blocks, whose clicks follow from user, ad and interest, and its examples topic; no pipeline."""
    kafka, run_dir = config.kafka, RunDir(root)
    ensure_topics(kafka, {kafka.examples.topic: kafka.examples.partitions})
    lake = LakeTable(run_dir.lake, config.rows).open_writer()
    publisher = ExamplesPublisher(kafka, kafka.examples.topic, kafka.examples.partitions, config.rows, lake.id)
    for number in range(blocks):
        block = _block(config, number)
        lake.commit(block, state=number, metadata={})
        publisher.publish(block)
    publisher.close()
    return Finished(config, root)


def _block(config: Config, number: int) -> pa.RecordBatch:
    count, drawn = config.pace.block_rows, np.random.default_rng(number)
    taste, appeal = (np.random.default_rng(seed).normal(0, 1.2, (500, 3)) for seed in (1, 2))
    user, ad = drawn.integers(0, 500, count), drawn.integers(0, 50, count)
    clicked = drawn.random(count) < 1 / (1 + np.exp(1.5 - (taste[user] * appeal[ad]).sum(1)))
    seq = np.arange(number * count, (number + 1) * count)
    given: dict[str, Any] = {
        "lake_seq": seq,
        "impression_id": seq * 7,
        "block": np.full(count, number),
        "event_time_ms": seq,
        "vertical": np.array(["feed", "shop"])[drawn.integers(0, 2, count)],
        "user_id": user,
        "ad_id": ad,
        "bid": drawn.random(count),
        "interest_0": drawn.integers(0, 5, count),
        "settlement": ["ctr"] * count,
        "label_ctr": clicked,
        "source_topic": ["impressions"] * count,
        "event_date": ["2026-01-01"] * count,
    }
    schema, nothing = config.rows.augmented, pa.nulls(count)
    arrays = [
        pa.array(given[f.name]).cast(f.type) if f.name in given
        else nothing.cast(f.type) if f.nullable else pa.array(np.zeros(count)).cast(f.type)
        for f in schema
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def started(finished: Finished, root: Path, ranks: int, *, until: int = 10**9, **changes: Any) -> Iterator[Ranks]:
    """`ranks` processes that learn the topic, from where the run at `root` stands to the end of the lake or to version
    `until`. `changes`: of the teacher."""
    if not root.exists():
        new_run(finished, root)
    config = finished.config.model_copy(update={"teacher": finished.config.teacher.model_copy(update=changes)})
    asked = {
        "config": json.dumps(config.model_dump(mode="json")),
        "root": str(root),
        "servers": config.kafka.bootstrap_servers,
        "ranks": ranks,
        "port": free_port(),
        "end_seq": finished.lake.num_rows - 1,
        "until": until,
    }
    command = [sys.executable, "-W", "ignore", "-m", learning_ranks.__name__, json.dumps(asked)]
    with (root / "parent.log").open("w") as log:
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ)
    pids: list[int] = []
    try:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline() or "[]")
        assert len(pids) == ranks, (root / "parent.log").read_text()[-3000:]
        yield Ranks(parent, root, pids)
    finally:
        for pid in pids:
            if parent.poll() is None:  # afterwards the pids may be somebody else's
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        parent.kill()
        parent.wait()


def taught(finished: Finished, root: Path, ranks: int, *, until: int = 10**9, **changes: Any) -> list[dict[str, Any]]:
    """As `started`, to its end: what each rank reports last."""
    with started(finished, root, ranks, until=until, **changes) as group:
        for rank, code in enumerate(group.wait()):
            assert code == 0, (root / f"rank{rank}.log").read_text()[-3000:]
        return [group.said(rank)[-1] for rank in range(ranks)]


def as_undisturbed(finished: Finished, root: Path) -> None:
    """The teacher, its snapshots and what they have scored."""
    assert_learned_the_lake(finished)
    taught(finished, root, 2)
    other = seen_from(finished, root)
    (tensors, meta), (other_tensors, other_meta) = finished.checkpoint("teacher"), other.checkpoint("teacher")
    assert meta == other_meta
    assert tensors.keys() == other_tensors.keys()
    assert [name for name in tensors if tensors[name] != other_tensors[name]] == []

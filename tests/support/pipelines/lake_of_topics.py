"""Topics into a lake without models: what is read, settled and committed, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.ingest import IngestWorker
from pipelines.live.workers.worker import Orders
from streaming.kafka.topics import ensure_topics
from streaming.lake.reader import LakeReader
from streaming.lake.side_tables import DEAD_LETTERS
from tests.support.pipelines.small_runs import small

BUDGET_S = 60.0


def without_models(servers: str, **changes: Any) -> Config:
    """A config in free pace, whose blocks wait for no teacher, of one task `ctr` within a minute."""
    rows = {"tasks": [{"name": "ctr", "window_s": 60}], **changes.pop("rows")}
    features = {"sparse": [{"name": "vertical", "rows": 16}], "dense": []}
    teacher = {"batch_rows": 128, "model": {"width": 8, "layers": 1, "mlp": [16], "head": [16]}}
    student = {"name": "all", "verticals": "all", "model": {"width": 4, "trunk": {"name": "dlrm", "mlp": [16]}}}
    return small(
        servers,
        rows=rows,
        features=features,
        teacher=teacher,
        students=[student],
        pace={"mode": "free"},
        **changes,
    )


def play(config: Config, root: Path) -> None:
    """The config's source into its topics, with end markers."""
    inputs = (config.kafka.impressions, config.kafka.feedback)
    ensure_topics(config.kafka, {topic.topic: topic.partitions for topic in inputs})
    worker = IngestWorker(config, RunDir(root))
    worker.open()
    try:
        assert worker.advance(BUDGET_S, Orders()).done
    finally:
        worker.close()


def lake_of(config: Config, root: Path) -> tuple[pa.Table, list[dict[str, Any]], AugmentationWorker]:
    """The lake's rows in order, the dead letters in order of their places, and the worker that wrote them, closed; of
    topics that end."""
    root.mkdir(exist_ok=True)
    run_dir, kafka = RunDir(root), config.kafka
    ensure_topics(kafka, {topic.topic: topic.partitions for topic in (kafka.examples, kafka.dead_letters)})
    prepare(config, run_dir)
    worker = AugmentationWorker(config, run_dir, until_end=True)
    worker.open()
    try:
        assert worker.advance(BUDGET_S, Orders(teacher_gone=True)).done
    finally:
        worker.close()
    side = run_dir.side_tables / DEAD_LETTERS
    letters = DeltaTable(str(side)).to_pyarrow_table().to_pylist() if side.exists() else []
    letters.sort(key=lambda letter: (letter["source_topic"], letter["source_partition"], letter["source_offset"]))
    return LakeReader(run_dir.lake, config.rows).read().table.combine_chunks(), letters, worker

"""A live stream of plain rows whose columns change, and the augmentation that takes them in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from pipelines.core.config.settings import Config, dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.preflight import prepare
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.worker import Orders
from streaming.kafka.topics import ensure_topics
from streaming.lake.reader import LakeReader
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import send

COUPON = {"name": "coupon", "type": "string", "nullable": True}


def live(
    servers: str, *more: dict[str, Any], codec: str = "json", undeclared: str = "keep", students: int = 3
) -> Config:
    """A live stream of one task; without a student, it needs no teacher to go on."""
    config = small(
        servers,
        source=None,
        rows__tasks=[{"name": "ctr", "window_s": 10}],
        rows__undeclared=undeclared,
        pace={"mode": "free", "block_rows": 64, "commit_interval_s": 0.05},
        augmentation__idle_s=0.05,
        kafka__impressions__codec=codec,
        kafka__feedback__codec=codec,
        kafka__impressions__partitions=1,
        kafka__feedback__partitions=1,
    )
    return declared(config.model_copy(update={"students": config.students[:students]}), *more)


def declared(config: Config, *more: dict[str, Any], **changes: dict[str, Any]) -> Config:
    """The config with more columns, and with `changes` of its own by name."""
    raw = yaml.safe_load(dump(config))
    raw["rows"]["columns"] = [c | changes.get(c["name"], {}) for c in raw["rows"]["columns"]] + list(more)
    return parse(raw)


def row(number: int, **values: Any) -> dict[str, Any]:
    base = {"impression_id": number, "event_time_ms": 1_790_000_000_000 + 1000 * number, "vertical": "feed"}
    return base | {"user_id": number % 9, "ad_id": number % 5, "bid": 1.5, "interest_0": 1} | values


def feed(config: Config, *rows: dict[str, Any]) -> None:
    topic, codec = config.kafka.impressions.topic, config.kafka.impressions.codec
    values = [json.dumps(each).encode() for each in rows]
    if codec == "arrow":
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist(list(rows))
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        values = [sink.getvalue().to_pybytes()]
    send(str(config.kafka.bootstrap_servers), [(topic, 0, value) for value in values])


def stepped(config: Config, root: Path, rows: int) -> AugmentationWorker:
    """The augmentation of a run, stepped until so many rows are in the lake."""
    run_dir = RunDir(root)
    root.mkdir(exist_ok=True)
    prepare(config, run_dir)
    ensure_topics(config.kafka, {topic.topic: 1 for topic in (config.kafka.examples, config.kafka.dead_letters)})
    worker = AugmentationWorker(config, run_dir, until_end=False)
    worker.open()
    step_until(worker, rows)
    return worker


def step_until(worker: AugmentationWorker, rows: int) -> None:
    for _ in range(400):
        report = worker.advance(0.05, Orders(teacher_gone=True))
        if (report.lake_seq or 0) + 1 >= rows:
            return
    raise AssertionError((report.lake_seq, report.note, report.counts))


def lake(config: Config, root: Path, *columns: str) -> list[dict[str, Any]]:
    return LakeReader(RunDir(root).lake, config.rows).read(columns=["impression_id", *columns]).table.to_pylist()


def augment(settings: str, root: str) -> None:
    """In a process of its own: augment until killed."""
    worker = AugmentationWorker(parse(yaml.safe_load(settings)), RunDir(Path(root)), until_end=False)
    worker.open()
    while True:
        worker.advance(0.05, Orders(teacher_gone=True))

"""Feeds a stream into the input topics: a generated or a recorded one, as fast as it goes or at a pace.

Every message says in its headers which chunk of the stream it belongs to and which part of it it is. A restart finds
the last one in each partition, plays the stream again from its start, and writes only what is not there yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipelines.config import Config, Generated, Recorded, Topic
from pipelines.layout import RunDir
from pipelines.workers.base import Report, Worker
from streaming.codecs import make_codec
from streaming.dead_letters import Kind
from streaming.hashing import hash64
from streaming.kafka import TopicWriter, last_message
from streaming.sources.chunk import Chunk
from streaming.sources.files import RecordedStream
from streaming.sources.generated import GeneratedStream
from streaming.sources.pacer import Pacer
from streaming.sources.truth import TruthWriter

CHUNK_ROWS = 8192
ENDED = (1 << 62, 0)


class _Output:
    """One topic, and what each of its partitions holds already."""

    def __init__(self, config: Config, topic: Topic, kind: Kind) -> None:
        self.topic, self.kind = topic, kind
        self.codec = make_codec(topic.codec, kind, config.rows, max_message_bytes=config.kafka.max_message_bytes)
        self.writer = TopicWriter(config.kafka, topic.topic)
        self.held = [self._last(config, partition) for partition in range(topic.partitions)]

    def _last(self, config: Config, partition: int) -> tuple[int, int]:
        message = last_message(config.kafka, self.topic.topic, partition)
        if message is None:
            return (-1, 0)
        headers = dict(message.headers)
        if "exfm-end" in headers:
            return ENDED
        return (int(headers["chunk"]), int(headers["part"]))

    def write(self, number: int, rows: pa.RecordBatch, malformed: list[bytes]) -> None:
        owner = (hash64(rows["impression_id"]) % np.uint64(self.topic.partitions)).astype(np.int64)
        for partition, held in enumerate(self.held):
            mine = rows if self.topic.partitions == 1 else rows.filter(pa.array(owner == partition))
            values = self.codec.encode(mine) if mine.num_rows else []
            if partition == number % self.topic.partitions:
                values = values + malformed
            time_ms = int(mine["event_time_ms"].to_numpy().max()) if mine.num_rows else -1
            for part, value in enumerate(values):
                if (number, part) > held:
                    headers = [("chunk", str(number).encode()), ("part", str(part).encode())]
                    self.writer.write(partition, [value], headers=headers, timestamp_ms=time_ms)

    def end(self) -> None:
        self.writer.end_marker([p for p, held in enumerate(self.held) if held != ENDED])


class IngestWorker(Worker):
    kind = "ingest"

    def __init__(self, config: Config, run_dir: RunDir) -> None:
        super().__init__("ingest")
        self._config = config
        self._run_dir = run_dir
        self._done = False
        self._number = 0
        self._waiting: Chunk | None = None

    def open(self) -> None:
        kafka, source = self._config.kafka, self._config.source
        assert source is not None
        self._impressions = _Output(self._config, kafka.impressions, "impression")
        self._feedback = _Output(self._config, kafka.feedback, "feedback")
        self._outputs = (self._impressions, self._feedback)
        if all(held == ENDED for output in self._outputs for held in output.held):
            self._done = True
        self._truth: TruthWriter | None = None
        self._total = 0
        self._chunks = self._open_source(source)
        self._pacer = Pacer(source.rate, clock=time.monotonic)

    def _open_source(self, source: Generated | Recorded) -> Iterator[Chunk]:
        rows = self._config.rows
        if isinstance(source, Recorded):
            recorded = RecordedStream(source.path, source, rows)
            self._total = recorded.rows
            return recorded.chunks(CHUNK_ROWS)
        windows = {task.name: task.window_s for task in rows.tasks}
        stream = GeneratedStream(
            source,
            windows,
            columns=[c.name for c in rows.columns],
            encoding=self._config.kafka.impressions.codec,
        )
        self._total = source.impressions
        if not self._done:
            self._truth = TruthWriter(self._run_dir.truth, replace=True)
        return stream.chunks(CHUNK_ROWS)

    def step(self) -> bool:
        if self._waiting is None:
            with self.watch("make"):
                self._waiting = next(self._chunks, None)
            if self._waiting is None:
                self._end()
                return True
        chunk = self._waiting
        if self._pacer.wait_s(self.rows, chunk.watermark_ms) > 0:
            return False
        with self.watch("truth"):
            if self._truth is not None and chunk.truth is not None:
                self._truth.write(chunk.truth)
        with self.watch("produce"):
            for output, rows in zip(self._outputs, (chunk.impressions, chunk.feedback), strict=True):
                broken = [value for kind, value in chunk.malformed if kind == output.kind]
                output.write(self._number, rows, broken)
        self.rows += chunk.impressions.num_rows
        self._number += 1
        self._waiting = None
        return True

    def _end(self) -> None:
        with self.watch("produce"):
            for output in self._outputs:
                output.writer.flush()
                output.end()
                output.writer.flush()
        if self._truth is not None:
            self._truth.close()
        self._done = True

    @property
    def done(self) -> bool:
        return self._done

    def close(self) -> None:
        for output in self._outputs:
            output.writer.close()

    def describe(self, report: Report) -> None:
        report.progress = (self.rows, self._total)

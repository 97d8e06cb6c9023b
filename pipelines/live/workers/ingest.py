"""Feeds a generated or a recorded stream into the input topics, at full speed or at a given pace.

Every message names in its headers its stream, the chunk, the part of the chunk, its producer and its number. A restart
finds the last message of each partition, plays the stream again from its start, and writes only what is missing, as the
same producer: what a killed predecessor had sent, and the broker takes up late, is refused or is the same message.

A message's timestamp is the present, or its latest event time where that lies ahead: a broker that starts again forgets
producers whose last timestamp is a day old (`producer.id.expiration.ms`), and would take up again what is sent again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.core.config.sections import Generated, Recorded
from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Topic
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Worker
from streaming.errors import BadInput
from streaming.kafka.topics import end_offsets, last_message
from streaming.kafka.writer import TopicWriter
from streaming.messages.codecs import make_codec
from streaming.messages.dead_letters import Kind
from streaming.messages.message import END_HEADER, RawMessage
from streaming.messages.source import EndOfStream
from streaming.partitioner import partition_of
from streaming.position import Partition
from streaming.sources.chunk import Chunk, PlayedStream
from streaming.sources.pacer import Pacer
from streaming.sources.recorded import reading_of, reading_of_feedback
from streaming.sources.synthetic.stream import generated_stream
from streaming.sources.synthetic.truth import TruthWriter
from streaming.sources.tables.copies import Copies
from streaming.sources.tables.forms import is_parquet

ENDED = (1 << 62, 0)
NOTHING = (-1, 0)
FOOTER_BYTES = 65_536
PRODUCER_HEADER = "producer"


def stream_name(config: Config, source: Generated | Recorded, copies: Copies | None = None) -> str:
    """Name of a stream: a digest of everything that decides its rows, independent of its pace and folder. `copies` of a
    recorded source's files know what those hold.

    A file counts with its size and its end: a Parquet file ends with the places and statistics of all its columns. Text
    and folders count with all their bytes. Raises BadInput where a file does not exist.
    """
    digest = hashlib.blake2b(digest_size=8)
    files = {"path", "written_path"}
    left_out: Any = {"rate": True, "copies": True, **dict.fromkeys(files, True), "feedback": files}
    digest.update(f"{source.model_dump_json(exclude=left_out)} {config.rows.model_dump_json()}".encode())
    if isinstance(source, Generated):
        return f"generated-{digest.hexdigest()}"
    for content in _contents(config, source, copies):
        digest.update(content)
    return f"{Path(source.path).name}-{digest.hexdigest()}"


def files_name(config: Config, source: Recorded, copies: Copies) -> str:
    """Name of a source's files, independent of their use. Raises BadInput where one does not exist."""
    return hashlib.blake2b(b"".join(_contents(config, source, copies)), digest_size=8).hexdigest()


def _contents(config: Config, source: Recorded, copies: Copies | None) -> Iterator[bytes]:
    """Fingerprint of the source: of each Parquet file its size and its end; of text and folders a digest of their
    bytes."""
    files = [(source.path, reading_of(source, config.rows))]
    if source.feedback is not None:
        files.append((source.feedback.path, reading_of_feedback(source, config.rows)))
    for path, reading in files:
        at = Path(path)
        if copies is not None and (at.is_dir() or (at.is_file() and not is_parquet(at))):
            yield copies.content(at, reading).encode()
            continue
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - FOOTER_BYTES))
                yield str(size).encode() + file.read()
        except OSError as error:
            raise BadInput(
                f"cannot read the recorded stream {path}: {error.strerror}; source.path, and source.feedback, "
                "say where it is"
            ) from None


class _Output:
    """One topic, and the place in the stream that each of its partitions has reached."""

    def __init__(self, config: Config, topic: Topic, kind: Kind, stream: str, append: bool) -> None:
        self.topic, self.kind = topic, kind
        self._stream, self._append = stream, append
        self.codec = make_codec(topic.codec, kind, config.rows, max_message_bytes=config.kafka.max_message_bytes)
        self.writer = TopicWriter(config.kafka, topic.topic)
        partitions = [Partition(topic.topic, partition) for partition in range(topic.partitions)]
        ends = end_offsets(config.kafka, partitions)
        last = [last_message(config.kafka, *partition) for partition in partitions]
        self.held = [self._place(message) for message in last]
        self._producer, self._numbers = self._numbering(last, [ends[partition] for partition in partitions])
        self.writer.continue_as(self._producer, self._numbers)

    def _place(self, message: RawMessage | None) -> tuple[int, int]:
        if message is None:
            return NOTHING
        headers = dict(message.headers)
        other = headers.get("stream", b"").decode()
        if other == self._stream:
            return ENDED if END_HEADER in headers else (int(headers["chunk"]), int(headers["part"]))
        if END_HEADER not in headers and self._append:
            return NOTHING
        raise BadInput(
            f"topic `{self.topic.topic}` holds {other or 'messages of another program'}"
            f"{', which has ended,' if END_HEADER in headers else ''} and this stream is {self._stream}; continue "
            "that one, use another run directory or other topics, or append to a stream left open (`--append`)"
        )

    def _numbering(self, last: list[RawMessage | None], ends: list[int]) -> tuple[int, list[int]]:
        """The producer of this stream and the number of its next message in each partition, from the last messages; or
        a new one, which follows from where the stream begins. Brokers give ids from 0 on, this is beyond 2^62."""
        before: list[tuple[int, int] | None] = []
        for message in last:
            headers = dict(message.headers) if message is not None else {}
            own = headers.get("stream", b"").decode() == self._stream and PRODUCER_HEADER in headers
            before.append(_pair(headers[PRODUCER_HEADER]) if own else None)
        digest = hashlib.blake2b(f"{self.topic.topic} {self._stream} {ends}".encode(), digest_size=8).digest()
        new = (1 << 62) + (int.from_bytes(digest) >> 2)
        producer = max((found[0] for found in before if found is not None), default=new)
        return producer, [0 if found is None or found[0] != producer else found[1] + 1 for found in before]

    def write(self, number: int, rows: pa.RecordBatch, malformed: list[bytes]) -> None:
        owner = partition_of(rows["impression_id"], self.topic.partitions)
        for partition, held in enumerate(self.held):
            mine = rows if self.topic.partitions == 1 else rows.filter(pa.array(owner == partition))
            values = self._encode(mine) if mine.num_rows else []
            if partition == number % self.topic.partitions:
                values = values + malformed
            latest_ms = int(mine["event_time_ms"].to_numpy().max()) if mine.num_rows else -1
            time_ms = max(latest_ms, int(time.time() * 1000))
            for part, value in enumerate(values):
                if (number, part) > held:
                    place = [("chunk", str(number).encode()), ("part", str(part).encode())]
                    self._write(partition, value, place, time_ms)

    def _write(self, partition: int, value: bytes, place: list[tuple[str, bytes]], time_ms: int | None = None) -> None:
        numbered = (PRODUCER_HEADER, f"{self._producer} {self._numbers[partition]}".encode())
        headers = [*place, ("stream", self._stream.encode()), numbered]
        self.writer.write(partition, [value], headers=headers, timestamp_ms=time_ms)
        self._numbers[partition] += 1

    def _encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """The rows as message values, halved until each fits the topic."""
        values = self.codec.encode(rows)
        if rows.num_rows < 2 or max(map(len, values)) <= self.writer.payload_bytes:
            return values
        half = rows.num_rows // 2
        return self._encode(rows.slice(0, half)) + self._encode(rows.slice(half))

    def end(self) -> None:
        for partition, held in enumerate(self.held):
            if held != ENDED:
                self._write(partition, b"", [(END_HEADER, b"1")])


def _pair(text: bytes) -> tuple[int, int]:
    producer, number = text.split()
    return int(producer), int(number)


class IngestWorker(Worker):
    """Plays `config.source` into the input topics.

    end: write end markers after the last row; without them the topics stay open for more.
    append: to topics that another stream left open, instead of refusing them.
    `resumed_rows`: impressions of chunks that earlier starts had sent; they are played again, without pacing.
    """

    kind = "ingest"

    def __init__(
        self,
        config: Config,
        run_dir: RunDir,
        *,
        end: bool = True,
        append: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("ingest")
        self._end_markers, self._append, self._clock = end, append, clock
        self.resumed_rows = 0
        self._config = config
        self._run_dir = run_dir
        self._done = False
        self._outputs: list[_Output] = []
        self._waiting: Chunk | None = None

    def open(self) -> None:
        kafka, source = self._config.kafka, self._config.source
        assert isinstance(source, Generated | Recorded)
        kinds: tuple[tuple[Topic, Kind], ...] = ((kafka.impressions, "impression"), (kafka.feedback, "feedback"))
        copies = source.copies_in(self._run_dir.copies) if isinstance(source, Recorded) else None
        stream = stream_name(self._config, source, copies)
        self._outputs = [_Output(self._config, topic, kind, stream, self._append) for topic, kind in kinds]
        held = [place for output in self._outputs for place in output.held]
        self._done = all(place == ENDED for place in held)
        self._begun = max(number for number, _ in held)
        self._truth: TruthWriter | None = None
        self._total = 0
        self._stream = self._open_source(source)
        self._stream.chunk_rows = source.chunk_rows
        self._stream.open()
        self._pacer = Pacer(source.rate, clock=self._clock)

    def _open_source(self, source: Generated | Recorded) -> PlayedStream:
        if isinstance(source, Recorded):
            recorded = source.opened(self._config.rows, source.copies_in(self._run_dir.copies))
            self._total = recorded.rows
            return recorded
        stream = generated_stream(source, self._config.rows, encoding=self._config.kafka.impressions.written)
        self._total = source.impressions
        if not self._done:
            self._truth = TruthWriter(self._run_dir.truth, replace=True)
        return stream

    def step(self) -> bool:
        if self._waiting is None:
            with self.watch("make"):
                try:
                    self._waiting = self._stream.next_batch()
                except EndOfStream:
                    self._end()
                    return True
        chunk = self._waiting
        number = self._stream.position() - 1
        if number <= self._begun:
            self.resumed_rows += chunk.impressions.num_rows
        elif self._pacer.wait_s(self.rows, chunk.watermark_ms) > 0:
            return False
        with self.watch("truth"):
            if self._truth is not None and chunk.truth is not None:
                self._truth.write(chunk.truth)
        with self.watch("produce"):
            for output, rows in zip(self._outputs, (chunk.impressions, chunk.feedback), strict=True):
                broken = [value for kind, value in chunk.malformed if kind == output.kind]
                output.write(number, rows, broken)
        self.rows += chunk.impressions.num_rows
        self._waiting = None
        return True

    def _end(self) -> None:
        if self._truth is not None:
            self._truth.close()  # before the end markers: a restart that finds them plays nothing
        with self.watch("produce"):
            for output in self._outputs:
                output.writer.flush()
                if self._end_markers:
                    output.end()
                    output.writer.flush()
        self._done = True

    def checkpoint(self) -> None:
        """Wait until the topics have everything sent."""
        for output in self._outputs:
            output.writer.flush()

    @property
    def total(self) -> int:
        """Impressions of the whole stream."""
        return self._total

    @property
    def done(self) -> bool:
        return self._done

    def close(self) -> None:
        for output in self._outputs:
            output.writer.close()

    def abandon(self) -> None:
        for output in self._outputs:
            output.writer.abandon()

    def describe(self, report: Report) -> None:
        report.total_rows = self._total if self._done else self.rows  # a restart plays the stream from its beginning
        report.progress = (report.total_rows, self._total)

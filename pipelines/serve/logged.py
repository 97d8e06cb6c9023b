"""Log of predictions: a topic of requests and answers for a share of all impressions, without delaying answers.

    a message is an Arrow IPC batch: the impression's columns that were asked with, in the types of the row schema,
    prediction_<task> (float64), served_model, served_version, served_ms

Which impressions are logged is decided by a hash of `impression_id` alone, so that every server and every repetition
of a request logs the same ones, and all candidates of other servers can be joined. Rows wait in a bounded queue for a
thread that writes them; what does not fit, and what a broker that is away does not take, is dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.serve.prediction_request import PredictionRequest
from pipelines.serve.version import Answer, ServedVersion, Signature
from streaming.errors import BadInput, StreamingError
from streaming.hashing import hash64
from streaming.messages.ipc import write_ipc

if TYPE_CHECKING:
    from streaming.kafka.settings import KafkaSettings
    from streaming.kafka.writer import TopicWriter

ID, TIME = "impression_id", "event_time_ms"
LOGGED = (ID, TIME, "vertical")
"""Columns that the log takes along though a model may not read them."""
WAITING = 1000
"""Requests that may wait to be written."""
AT_ONCE = 64
"""So many are written between two flushes: they are on the broker, or dropped."""
AGAIN_S = 2.0

log = logging.getLogger(__name__)


class LogSettings(NamedTuple):
    """Settings of the log; `share` of the impressions, by a hash of their ids."""

    kafka: KafkaSettings
    topic: str
    share: float = 0.01


def _writer(settings: LogSettings) -> TopicWriter:
    from streaming.kafka.writer import TopicWriter

    return TopicWriter(settings.kafka, settings.topic)


def check_topic(settings: LogSettings) -> None:
    """Raise BadInput if the topic does not exist, BrokerAway if no broker answers."""
    _writer(settings).close()


class _Noted(NamedTuple):
    version: Signature
    asked: PredictionRequest
    probabilities: np.ndarray
    rows: np.ndarray
    at_ms: int


class ServedLog:
    """Counts rows: `written`, `dropped`, and `unidentified`, which had no `impression_id`."""

    def __init__(self, settings: LogSettings, waiting: int = WAITING) -> None:
        self._settings = settings
        self._below = np.uint64(min(settings.share * 2.0**64, 2.0**64 - 2048))
        self._writer: TopicWriter | None = None  # the thread opens it: a server starts without a broker, too
        self._queue: queue.Queue[_Noted | None] = queue.Queue(waiting)
        self.written = self.dropped = self.unidentified = 0
        self._again_at = 0.0
        self._thread = threading.Thread(target=self._work, name="served-log", daemon=True)
        self._thread.start()

    def note(self, version: ServedVersion, asked: PredictionRequest, answer: Answer) -> None:
        """Queue a request and its answer for writing, if in the share. Never waits, never raises."""
        ids = _ids(asked, version.signature.schema.id_type)
        if ids is None:
            self.unidentified += asked.size
            return
        mine = np.asarray(hash64(ids) < self._below)
        if answer.refusals:
            mine[list(answer.refusals)] = False
        rows = np.flatnonzero(mine)
        if not len(rows):
            return
        try:
            at_ms = int(time.time() * 1000)
            self._queue.put_nowait(_Noted(version.signature, asked, answer.probabilities[rows], rows, at_ms))
        except queue.Full:
            self.dropped += len(rows)

    def _work(self) -> None:
        over = False
        while not over:
            some = [self._queue.get()]
            with suppress(queue.Empty):
                while len(some) < AT_ONCE:
                    some.append(self._queue.get_nowait())
            over = None in some
            noted = [each for each in some if each is not None]
            rows = sum(len(each.rows) for each in noted)
            try:
                for each in noted:
                    self._write(each)
                if self._writer is not None:
                    self._writer.flush()
                self.written += rows
            except Exception as error:  # the log's trouble is not an answer's
                self.dropped += rows
                self._away(error)

    def _write(self, noted: _Noted) -> None:
        if self._writer is None:
            if time.monotonic() < self._again_at:
                raise StreamingError("no broker yet")
            self._writer = _writer(self._settings)
        batch = noted.version.impressions(noted.asked, noted.at_ms).take(pa.array(noted.rows))
        for t, task in enumerate(noted.version.tasks):
            batch = batch.append_column(f"prediction_{task}", pa.array(noted.probabilities[:, t]))
        batch = batch.append_column("served_model", pa.repeat(noted.version.model, len(batch)))
        batch = batch.append_column("served_version", pa.repeat(noted.version.name, len(batch)))
        batch = batch.append_column("served_ms", pa.repeat(pa.scalar(noted.at_ms, pa.int64()), len(batch)))
        partition = int(hash64(batch[ID])[0] % np.uint64(self._writer.partitions))
        self._writer.write(partition, [write_ipc(batch)], timestamp_ms=noted.at_ms)

    def _away(self, error: Exception) -> None:
        if self._writer is not None or time.monotonic() >= self._again_at:
            log.warning("rows are not logged: %s", error)
            self._again_at = time.monotonic() + AGAIN_S
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def close(self) -> None:
        """Write the queued rows, if a broker answers."""
        self._queue.put(None)
        self._thread.join()
        if self._writer is not None:
            with suppress(StreamingError, BadInput):
                self._writer.close()


def _ids(asked: PredictionRequest, kind: pa.DataType) -> pa.Array | None:
    """The `impression_id` of every row, in the row schema's type; None where one has none, or another."""
    given = asked.columns.get(ID)
    try:
        if given is None:
            ids = pa.repeat(pa.scalar(asked.context[ID], kind), asked.size)
        else:
            ids = pa.array(given, kind) if isinstance(given, list) else given.combine_chunks().cast(kind)
    except (KeyError, pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
    return None if ids.null_count else ids

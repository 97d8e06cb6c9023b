"""A world in which a history is played: the real augmentation service over a faked broker, faked tables and a disk that
forgets.

What runs between topics and lake is the product's own: reader, codecs, merge, settlement, blocks, commits, delivery and
recovery (`AugmentationWorker`). Faked are the Kafka client, deltalake, what scores rows, housekeeping and time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from kafka import TopicPartition

import pipelines.workers.augmentation.commit as commit_module
import pipelines.workers.augmentation.worker as worker_module
import streaming.delta.table as table_module
import streaming.kafka.lag as lag_module
import streaming.kafka.reader as reader_module
import streaming.kafka.topics as topics_module
import streaming.kafka.writer as writer_module
import streaming.lake.writer as lake_writer_module
from pipelines.config import Config
from pipelines.config.settings import parse
from pipelines.run_dir import RunDir
from pipelines.workers.augmentation import AugmentationWorker
from streaming.errors import BadInput, BrokerAway, DataLost, DiskFull, StreamingError
from streaming.messages import END_HEADER
from streaming.settlement import id_index, marks, pending
from tests.simulation.broker import Broker, Record
from tests.simulation.disk import Disk
from tests.simulation.history import (
    ADS,
    EVENTS,
    LARGE,
    At,
    Away,
    Decide,
    Delete,
    Event,
    Full,
    History,
    Kill,
    Run,
    Settings,
    Stall,
    Stop,
    Truncate,
    Unsure,
    Write,
    encoded,
)
from tests.simulation.live import BASE_MS
from tests.simulation.scheduler import Killed, Process, Scheduler, Strand
from tests.simulation.tables import Tables, last_counts

EXAMPLES, LETTERS = "examples", "dead-letters"
MOST_STEPS = 3000
MOST_RESTARTS = 60
LAG, NEWEST = 2, 1000
IDLE_STEP_S = 0.05


class Outcome(NamedTuple):
    """What a history left behind, as plain values, and the true contents of the topics."""

    lake: list[dict[str, Any]]
    late: list[dict[str, Any]]
    dead: list[dict[str, Any]]
    counts: dict[str, Any] | None
    letters: list[Record]
    examples: dict[int, list[tuple[dict[str, str], list[dict[str, Any]]]]]
    logs: dict[tuple[str, int], Any]
    gave_up: str | None
    """Why the service said that it cannot continue."""
    fault: str | None
    """What it did that no service may do: an error that nothing explains, or no end."""
    lost: bool
    """Whether messages were lost before, or after, the service had read them."""
    replaced: bool
    """Whether messages that it had committed were replaced by others."""
    unnoticed: bool
    """… and the process that had read them went on to the end. One that was started later cannot know."""
    stops: int
    points: int
    outages: list[tuple[float, float]]


@cache
def _base(codecs: tuple[str, str], partitions: int, examples: int) -> Config:
    topics = zip(("impressions", "feedback"), (ADS, EVENTS), codecs, strict=True)
    kafka: dict[str, Any] = {key: {"topic": t, "codec": c, "partitions": partitions} for key, t, c in topics}
    kafka |= {"examples": {"topic": EXAMPLES, "partitions": examples}, "dead_letters": {"topic": LETTERS}}
    student = {"name": "feed", "model": {"width": 4, "trunk": {"name": "dlrm", "mlp": [4], "bottom": [4]}}}
    raw = {
        "name": "simulated",
        "rows": {"columns": [{"name": "age", "minimum": 0, "maximum": 99}], "tasks": [{"name": "ctr", "window_s": 1}]},
        "features": {"sparse": [{"name": "age", "rows": 100}]},
        "pace": {"mode": "lockstep", "lag": LAG},
        "kafka": kafka | {"bootstrap_servers": "simulated:1"},
        "teacher": {"model": {"width": 4, "layers": 1, "num_fmb": 2, "num_lcb": 2, "rank": 2, "mlp": [4], "head": [4]}},
        "students": [student],
    }
    return parse(raw)


def config_of(settings: Settings) -> Config:
    base = _base(settings.codecs, settings.partitions, settings.examples)
    tasks = [{"name": name, "window_s": window / 1000, "given": given} for name, window, given in settings.tasks]
    rows = type(base.rows)(
        impression_id="string" if settings.string_ids else "int64", columns=base.rows.columns, tasks=tasks
    )
    settlement = type(base.settlement)(
        lateness_s=settings.lateness / 1000,
        dedup_horizon_s=settings.horizon / 1000,
        max_future_skew_s=None if settings.skew is None else settings.skew / 1000,
    )
    blocks = {"block_rows": settings.block_rows, "first_block_rows": LARGE}
    pace = base.pace.model_copy(
        update={"mode": settings.pace, "commit_interval_s": settings.interval_s, "max_rows_ahead": LARGE, **blocks}
    )
    augmentation = base.augmentation.model_copy(update={"buffer_rows": settings.buffer_rows, "idle_s": settings.idle_s})
    changes = {"rows": rows, "settlement": settlement, "pace": pace, "augmentation": augmentation}
    return base.model_copy(update=changes)


class FakeSnapshots:
    """Every version is there at once; a logit says which version and row it is of."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.version: int | None = None
        self.lake_seq, self.inferences, self.age_s = -1, 0, 0.0
        self.scorer = SimpleNamespace(rows=0, leave=lambda: None)

    def load(self, version: int) -> bool:
        self.version = version
        return True

    def load_newest(self) -> int | None:
        self.version = NEWEST
        return NEWEST

    def score(self, rows: pa.RecordBatch, part_rows: int) -> np.ndarray:
        self.inferences += rows.num_rows
        tasks = sum(name.startswith("label_") for name in rows.schema.names)
        return np.outer(rows["event_time_ms"].to_numpy() % 1000, np.arange(1, tasks + 1)).astype(np.float32)


class World:
    """Plays one history."""

    def __init__(self, history: History, *, trace: bool = False) -> None:
        self.history, settings = history, history.settings
        self.scheduler = Scheduler(history.schedule)
        if trace:
            self.scheduler.trace = []
        topics = {ADS: settings.partitions, EVENTS: settings.partitions, EXAMPLES: settings.examples, LETTERS: 1}
        self.broker = Broker(self.scheduler, topics, settings.message_bytes)
        self.tables = Tables(self.scheduler)
        self.disk = Disk(self.scheduler)
        self.config = config_of(settings)
        self.run_dir = RunDir(self.disk.root)
        self._codec = dict(zip((ADS, EVENTS), settings.codecs, strict=True))
        self._process: Process | None = None
        self._stopped: list[tuple[Process, int]] = []
        self._failures = 0
        self._decided: set[int] = set()
        self._gave_up: str | None = None
        self._fault: str | None = None
        self._lost = self._replaced = False
        self._knows: Process | None = None
        self._stops = self._steps = self._seen = 0
        self._outages: list[tuple[float, float]] = []
        self._held: list[tuple[float, Write]] = []
        """Writes that wait for the broker's return, and when their producers send them."""

    def play(self) -> Outcome:
        with self.disk.watched(), self._faked():
            for event in self.history.events:
                if self._over:
                    break
                self._befall(event)
            self._to_the_end()
            return self._outcome()

    @property
    def _over(self) -> bool:
        return self._gave_up is not None or self._fault is not None

    # what befalls

    def _befall(self, event: Event) -> None:
        scheduler, broker = self.scheduler, self.broker
        match event:
            case Write():
                self._send(event)
            case At(seconds):
                for _ in range(MOST_STEPS):
                    if self._over or scheduler.clock() >= seconds:
                        break
                    self._step()
            case Decide(transaction, commit):
                self._decide(transaction, commit)
            case Run(steps):
                for _ in range(steps):
                    self._step()
            case Kill(after, power, commit):
                scheduler.kill(after, power=power, commit=commit)
            case Stop(after, steps, commit):
                self._stop_steps = steps
                scheduler.stop(after, commit=commit)
            case Away(seconds):
                broker.away_until = scheduler.clock() + seconds
                self._outages.append((scheduler.clock(), broker.away_until))
            case Stall(topic, partition, fetches):
                broker.stalled[TopicPartition(topic, partition)] = fetches
            case Full(after, times):
                scheduler.fill_disk(after, times)
            case Unsure():
                scheduler.unsure_commit()
            case Truncate(topic, partition, messages):
                self._truncate(TopicPartition(topic, partition), messages)
            case Delete(topic, partition, share):
                self._delete(TopicPartition(topic, partition), share)

    def _send(self, write: Write) -> None:
        """In free pace producers wait for a broker that is away, and each partition's keep their order."""
        if self.history.settings.pace == "free" and (self.broker.away or self._held):
            after_s = self.broker.random.uniform(0, 0.6 * self.history.settings.idle_s)
            self._held.append((max(self.broker.away_until, self.scheduler.clock()) + after_s, write))
        else:
            self._write(write)

    def _send_held(self, *, all_of_them: bool = False) -> None:
        blocked: set[tuple[str, int]] = set()
        for entry in list(self._held):
            place = (entry[1].topic, entry[1].partition)
            if not all_of_them and (entry[0] > self.scheduler.clock() or place in blocked or self.broker.away):
                blocked.add(place)
                continue
            self._held.remove(entry)
            self._write(entry[1])

    def _see(self, records: list[Record]) -> None:
        """Readers can see these from now on."""
        for record in records:
            self._seen += 1
            record.seen, record.seen_s = self._seen, self.scheduler.clock()

    def _write(self, write: Write) -> None:
        log = self.broker.logs[TopicPartition(write.topic, write.partition)]
        transaction = None if write.transaction in self._decided else write.transaction
        for message in write.messages:
            value = encoded(message, write.topic, self._codec[write.topic], self.history.settings.string_ids)
            log.append(Record(value, timestamp=message.stamp, truth=message, transaction=transaction))
            self._see(log.records[-1:])

    def _decide(self, transaction: int, commit: bool) -> None:
        self._decided.add(transaction)
        for log in self.broker.logs.values():
            log.decide(transaction, commit=commit)

    def _committed(self) -> list[Any] | None:
        """Up to where the service has committed partitions; None before its first state."""
        if str(self.run_dir.lake) not in self.tables.logs:
            return None
        meta = commit_module.committed_meta(self.run_dir)
        return None if meta is None else meta["merge"]["partitions"]

    def _delete(self, partition: TopicPartition, share: float) -> None:
        log, committed = self.broker.logs[partition], self._committed()
        to = max(log.begin, round(log.stable_end * share))
        if committed is None and self._process is not None:
            return  # whether it has begun to read is its own business
        if committed is None:
            log.first = to  # the run begins here
        self._lost |= to > log.first
        log.begin = to

    def _truncate(self, partition: TopicPartition, messages: int) -> None:
        log = self.broker.logs[partition]
        to = max(log.begin, log.end - messages)
        if to == log.end:
            return
        self._lost = True
        for topic, number, offset, row, _ in self._committed() or []:
            if (topic, number) == tuple(partition) and offset + (row > 0) > to:
                self._replaced, self._knows = True, self._process
        log.truncate(to)

    # the service

    def _step(self) -> None:
        """One step of the service, and of each predecessor that goes on."""
        if self._over:
            return
        self._steps += 1
        self._send_held()
        for process, at in list(self._stopped):
            if at <= self._steps:
                self._go_on(process)
        if self._process is None:
            self._start()
        elif not self._done:
            self._attempt(self._process, self._process.worker.step)

    @property
    def _done(self) -> bool:
        return self._process is not None and self._process.worker.done

    def _start(self) -> None:
        process = self._process = self.scheduler.new_process()
        clock = self.scheduler.clock
        process.worker = AugmentationWorker(
            self.config, self.run_dir, until_end=True, now_ms=lambda: BASE_MS + clock.now_ms(), clock=clock
        )
        self._attempt(process, process.worker.open)
        if process.alive and process is self._process and not self._over and self._committed() is None:
            self._fault = "it has opened the topics, and has not stored where they begin"

    def _attempt(self, process: Process, work: Callable[[], Any]) -> None:
        """Have a process do something; it may be killed or stopped meanwhile, or fail."""
        if process.strand is None and not self.scheduler.stop_is_near:
            self.scheduler.process = process
            result, failure = None, None
            try:
                result = work()
            except BaseException as error:
                failure = error
            self.scheduler.process = None
            self._came_of(process, result, failure)
            return
        process.strand = Strand(work)
        self._go_on(process)

    def _go_on(self, process: Process) -> None:
        """Let it go on where it stood still, or with its next step."""
        strand = process.strand
        if strand is None:
            self._attempt(process, process.worker.step)
            return
        self.scheduler.process = process
        strand.go_on()
        self.scheduler.process = None
        if strand.finished:
            process.strand = None
            self._came_of(process, strand.result, strand.error)
        elif process is self._process:  # it stands still; another one takes over
            self._stops += 1
            self._stopped.append((process, self._steps + self._stop_steps))
            self._process = None

    def _came_of(self, process: Process, moved: Any, failure: BaseException | None) -> None:
        if failure is not None:
            self._failed(process, failure)
        elif not moved:
            self.scheduler.clock.advance(IDLE_STEP_S)

    def _failed(self, process: Process, error: BaseException) -> None:
        followed = process is not self._process
        self._die(process)
        if isinstance(error, Killed):
            if error.power:
                self._power_cut()
        elif isinstance(error, DataLost | BadInput) and not followed:
            self._gave_up = f"{type(error).__name__}: {error}"
        elif isinstance(error, DiskFull | BrokerAway | OSError) or (self._stops and isinstance(error, StreamingError)):
            # Whatever one of two writers says, it has to end, and nothing of it may be seen. The service is restarted.
            self._failures += not followed
            if self._failures > MOST_RESTARTS:
                self._fault = f"it never gets on: {error}"
        else:
            self._fault = f"{type(error).__name__}: {error}"
            raise_for_debugging(error)

    def _die(self, process: Process) -> None:
        process.alive = False
        self.broker.process_dies(process)
        self._stopped = [(other, at) for other, at in self._stopped if other is not process]
        if process.strand is not None and not process.strand.finished:  # it stands still: have it unwind
            self.scheduler.process = process
            process.strand.go_on()
            self.scheduler.process = None
        if process is self._process:
            self._process = None

    def _power_cut(self) -> None:
        """All that run on this machine are gone, and what was not flushed."""
        for process in [p for p, _ in self._stopped] + [self._process] * (self._process is not None):
            self._die(process)
        self.disk.power_cut()
        self.tables.power_cut()
        for path in self.tables.logs:  # tables that are there have their folder
            Path(path).mkdir(parents=True, exist_ok=True)

    # the end

    def _to_the_end(self) -> None:
        """No fault strikes any more; what was sent is decided, and the topics end."""
        self.scheduler.calm()
        self.broker.away_until = float("-inf")
        self.broker.stalled.clear()
        self.broker.patient = True
        self._send_held(all_of_them=True)
        for partition, log in self.broker.logs.items():
            for transaction in list(log.open):
                log.decide(transaction, commit=False)
            if partition.topic in (ADS, EVENTS):
                log.append(Record(b"", headers=[(END_HEADER, b"1")], truth="end"))
        for _ in range(MOST_STEPS):
            if self._over or (self._done and not any(p.strand for p, _ in self._stopped)):
                return  # also what stood still has had its turn
            self._step()
        self._fault = f"no end within {MOST_STEPS} steps"

    def _outcome(self) -> Outcome:
        self.scheduler.process = None
        for process, _ in self._stopped:
            self._die(process)
        lake = self.tables.logs.get(str(self.run_dir.lake))
        side = {
            name: self.tables.logs.get(str(self.run_dir.side_tables / name))
            for name in ("late_feedback", "dead_letters")
        }
        late, dead = ([] if log is None else log.rows.to_pylist() for log in side.values())
        return Outcome(
            lake=[] if lake is None else lake.rows.to_pylist(),
            late=late,
            dead=dead,
            counts=None if lake is None else last_counts(lake),
            letters=list(self.broker.logs[TopicPartition(LETTERS, 0)].records),
            examples={p: self._examples(p) for p in range(self.history.settings.examples)},
            logs={tuple(p): log for p, log in self.broker.logs.items() if p.topic in (ADS, EVENTS)},
            gave_up=self._gave_up,
            fault=self._fault,
            lost=self._lost,
            replaced=self._replaced,
            unnoticed=self._knows is not None and self._knows is self._process and self._done,
            stops=self._stops,
            points=self.scheduler.points,
            outages=self._outages,
        )

    def _examples(self, partition: int) -> list[tuple[dict[str, str], list[dict[str, Any]]]]:
        found = []
        for record in self.broker.logs[TopicPartition(EXAMPLES, partition)].records:
            rows = pa.ipc.open_stream(record.value).read_all().select(["lake_seq", "impression_id"]).to_pylist()
            found.append(({name: value.decode() for name, value in record.headers}, rows))
        return found

    # what is faked

    @contextmanager
    def _faked(self) -> Iterator[None]:
        broker, tables, rows = self.broker, self.tables, self.history.settings.segment_rows
        nothing = SimpleNamespace(maybe=lambda: None, close=lambda: None, trouble=None)
        fakes: list[tuple[Any, str, Any]] = [
            *(
                (module, "connect", broker.connect)
                for module in (reader_module, writer_module, topics_module, lag_module)
            ),
            (table_module, "DeltaTable", _Handles(tables)),
            (table_module, "write_deltalake", tables.write),
            (table_module, "flush", tables.flush),
            (table_module, "in_flight_lock", tables.no_lock),
            (table_module, "vacuum_table", lambda path, older_than_s: None),
            (lake_writer_module, "TableFiles", tables.files),
            (commit_module, "LakeReader", tables.lake_reader),
            (commit_module, "TableFiles", lambda path: _Identifiers(tables, path)),
            (worker_module, "Snapshots", FakeSnapshots),
            (worker_module, "scorer_of", lambda config, group: None),
            (worker_module, "set_threads", lambda threads: None),
            (worker_module, "Housekeeper", lambda *args, **kwargs: nothing),
            (worker_module, "mend", lambda *args: []),
            (pending, "SEGMENT_ROWS", rows),
            (marks, "CHUNK_ROWS", min(rows, 4096)),
            (id_index, "RUN_ROWS", rows),
            (id_index, "FILTERED_ROWS", rows),
            (marks, "FEW", 4096 if rows == LARGE else 1),
        ]
        with ExitStack() as stack:
            for owner, name, fake in fakes:
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, fake)
            yield


class _Handles:
    """`DeltaTable`, the class: called to load a table, and its `create`."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.create = tables.create

    def __call__(self, path: str | Path) -> Any:
        return self._tables.handle(path)


class _Identifiers:
    """`TableFiles`, as far as it is asked for an identifier."""

    def __init__(self, tables: Tables, path: Path) -> None:
        self._handle = tables.handle(path)
        self.identifier = self._handle.transaction_version


RAISE = False
"""Let errors of the service through, to see where they come from."""


def raise_for_debugging(error: BaseException) -> None:
    if RAISE:
        raise error


logging.getLogger("pipelines").setLevel(logging.CRITICAL)

"""A world in which a history is played: the real augmentation service over a faked broker, faked tables and a disk that
forgets.

What runs between topics and lake is the product's own: reader, codecs, merge, settlement, blocks, commits, delivery and
recovery (`AugmentationWorker`). Faked are the Kafka client, deltalake, what scores rows, housekeeping and time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import TopicPartition

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.augmentation.commit import committed_meta, folder_of_state
from pipelines.live.workers.augmentation.feed import SteadyClock
from pipelines.live.workers.augmentation.shards import ShardHost
from pipelines.live.workers.augmentation.worker import AugmentationWorker
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.errors import BadInput, BrokerAway, DataLost, DiskFull, StreamingError
from streaming.intake.merge import with_partitions
from streaming.lake.delta.identifiers import STATE
from streaming.messages.message import END_HEADER
from streaming.position import NOTHING_YET, Partition
from streaming.store.seal import unsealed
from tests.simulation.broker import Broker
from tests.simulation.config import EXAMPLES, LETTERS, config_of
from tests.simulation.disk import Disk
from tests.simulation.history import (
    ADS,
    EVENTS,
    At,
    Away,
    Decide,
    Delete,
    Event,
    Full,
    Grow,
    History,
    Kill,
    Refuse,
    Run,
    Stall,
    Stop,
    Truncate,
    Unsure,
    Write,
    encoded,
)
from tests.simulation.live import BASE_MS
from tests.simulation.log import Record
from tests.simulation.outcome import Outcome, TakenIn
from tests.simulation.scheduler import Killed, Process, Scheduler, Strand
from tests.simulation.stand_ins import stand_ins
from tests.simulation.store import Machines
from tests.simulation.tables import TableLog, Tables, last_counts

MOST_STEPS = 3000
MOST_RESTARTS = 60
IDLE_STEP_S = 0.05
MIRRORED = 0.03
"""In this share of steps the coordinator of a run at a store puts what need not last."""


class World:
    """Plays one history."""

    def __init__(self, history: History, *, trace: bool = False) -> None:
        self.history, settings = history, history.settings
        self.scheduler = Scheduler(history.schedule)
        if trace:
            self.scheduler.trace = []
        topics = {ADS: settings.partitions, EVENTS: settings.partitions, EXAMPLES: settings.examples, LETTERS: 1}
        self.broker = Broker(self.scheduler, topics, settings.message_bytes)
        self.disk = Disk(self.scheduler)
        self.machines = machines = Machines(self.scheduler, self.disk.root) if settings.stored else None
        self.tables = Tables(self.scheduler)
        if machines is not None:
            self.tables = Tables(self.scheduler, machines.key, lambda file: machines.bucket.holds(machines.key(file)))
        self.config = config_of(settings)
        self._codec = dict(zip((ADS, EVENTS), settings.codecs, strict=True))
        self._process: Process | None = None
        self._stopped: list[tuple[Process, int]] = []
        self._failures = 0
        self._decided: set[int] = set()
        self._gave_up: str | None = None
        self._fault: str | None = None
        self._lost = self._replaced = False
        self._stops = self._steps = self._seen = 0
        self._outages: list[tuple[float, float]] = []
        self._taken_in: TakenIn | None = None
        self._held: list[tuple[float, Write]] = []
        """Writes that wait for the broker's return, and when their producers send them."""

    def play(self) -> Outcome:
        rows = self.history.settings.segment_rows
        further = [] if self.machines is None else self.machines.stand_ins()
        with (
            quiet(),
            self.disk.watched(),
            stand_ins(self.broker, self.tables, rows, self._take_in, further),
        ):
            for event in self.history.events:
                if self._over:
                    break
                self._befall(event)
            self._to_the_end()
            return self._outcome()

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.disk.root) if self.machines is None else self.machines.run_dir

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
            case Away(seconds, 0):
                self._go_away(seconds)
            case Away(seconds, after):
                scheduler.befall(after, partial(self._go_away, seconds))
            case Stall(topic, partition, fetches):
                broker.stalled[TopicPartition(topic, partition)] = fetches
            case Full(after, times):
                scheduler.fill_disk(after, times)
            case Unsure():
                scheduler.unsure_commit()
            case Refuse(after, requests, carried_out):
                if self.machines is not None:
                    scheduler.befall(after, partial(self.machines.bucket.refuse, requests, carried_out=carried_out))
            case Grow(topic):
                self._grow(topic)
            case Truncate(topic, partition, messages):
                self._truncate(TopicPartition(topic, partition), messages)
            case Delete(topic, partition, share):
                self._delete(TopicPartition(topic, partition), share)

    def _go_away(self, seconds: float) -> None:
        """Outages that overlap are one: the broker is back, and producers send, at the later of their ends."""
        now = self.scheduler.clock()
        start = self._outages.pop()[0] if self.broker.away else now
        self.broker.away_until = max(self.broker.away_until, now + seconds)
        self._outages.append((start, self.broker.away_until))

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
        log = self.broker.logs.get(TopicPartition(write.topic, write.partition))
        if log is None:  # of a history that was made smaller
            log = self.broker.logs[TopicPartition(write.topic, 0)]
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
        log = self.tables.logs.get(self.tables.key(self.run_dir.lake))
        if log is None:
            return None
        try:
            meta = committed_meta(self.run_dir) if self.machines is None else self._stored_meta(log)
        except (StreamingError, FileNotFoundError) as error:
            self._fault = f"what it has committed cannot be read: {error}"
            return None
        return None if meta is None else meta["merge"]["partitions"]

    def _stored_meta(self, log: TableLog) -> dict[str, Any] | None:
        """`committed_meta`, as the store has it: the machine that is there now may be empty."""
        state = log.versions[-1].identifiers.get(STATE, NOTHING_YET)
        if state == NOTHING_YET:
            return None
        record = folder_of_state(self.run_dir, state) / f"record-{state:012d}" / "meta.json"
        stored = self.machines.bucket.read(self.machines.key(record))
        meta: dict[str, Any] = unsealed(stored)["meta"]
        return meta

    def _delete(self, partition: TopicPartition, share: float) -> None:
        log, committed = self.broker.logs[partition], self._committed()
        to = max(log.begin, round(log.stable_end * share))
        if committed is None and self._process is not None:
            return  # whether it has begun to read is its own business
        if committed is None:
            log.first = to  # the run begins here
        self._lost |= to > log.first
        log.begin = to

    def _grow(self, topic: str) -> None:
        for process in [p for p, _ in self._stopped] + [self._process] * (self._process is not None):
            self._die(process)
        self.broker.grow(topic)
        kind, counts = ("impressions" if topic == ADS else "feedback"), {"partitions": self.broker.topics[topic]}
        grown = {kind: getattr(self.config.kafka, kind).model_copy(update=counts)}
        self.config = self.config.model_copy(update={"kafka": self.config.kafka.model_copy(update=grown)})

    def _take_in(self, state: dict[str, Any], added: list[Partition]) -> dict[str, Any]:
        """As the service does it, from which state is the judge's to know; the last time counts."""
        if added:
            read = {(topic, number): (offset, row) for topic, number, offset, row, _ in state["partitions"]}
            self._taken_in = TakenIn(state["watermark_ms"], read)
        return with_partitions(state, added)

    def _truncate(self, partition: TopicPartition, messages: int) -> None:
        log = self.broker.logs[partition]
        to = max(log.begin, log.end - messages)
        if to == log.end:
            return
        self._lost = True
        for topic, number, offset, row, _ in self._committed() or []:
            if (topic, number) == tuple(partition) and offset + (row > 0) > to:
                self._replaced = True
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
            if self.machines is not None and self._process is not None and self.scheduler.random.random() < MIRRORED:
                self._attempt(self._process, self.machines.mirror)

    @property
    def _done(self) -> bool:
        return self._process is not None and self._process.worker.done

    def _start(self) -> None:
        process = self._process = self.scheduler.new_process()
        if self.machines is not None:
            self.machines.place(process)
        ranks, settings = 1, self.history.settings
        if settings.workers:  # another number at every start
            ranks = 1 + (settings.workers + process.number) % settings.partitions
        self._attempt(process, partial(self._open, process, Rendezvous(0, ranks)))
        starts = process.alive and process is self._process and not self._over
        if starts and self._committed() is None and self._fault is None:
            self._fault = "it has opened the topics, and has not stored where they begin"

    def _open(self, process: Process, at: Rendezvous) -> None:
        run_dir, clock = self.run_dir, self.scheduler.clock
        process.further_ranks = partial(self._further_ranks, run_dir, at.ranks)
        if self.machines is not None:
            self.machines.begin(process, [*self.tables.logs])
        process.worker = AugmentationWorker(
            self.config, run_dir, until_end=True, at=at, now_ms=self._now_ms, clock=clock
        )
        process.worker.open()

    def _now_ms(self) -> int:
        return BASE_MS + self.scheduler.clock.now_ms()

    def _further_ranks(self, run_dir: RunDir, ranks: int) -> list[ShardHost]:
        clock = self.scheduler.clock
        return [
            ShardHost(
                self.config,
                run_dir,
                Rendezvous(rank, ranks),
                Stopwatch(),
                until_end=True,
                steady=SteadyClock(self._now_ms, clock),
                clock=clock,
            )
            for rank in range(1, ranks)
        ]

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
        elif isinstance(error, DiskFull | BrokerAway | OSError) or (
            (self._stops or self._refusals) and isinstance(error, StreamingError)
        ):
            # Whatever one of two writers says, it has to end, and nothing of it may be seen. The service is restarted.
            self._failures += not followed
            if self._failures > MOST_RESTARTS + self._refusals:
                self._fault = f"it never gets on: {error}"
        else:
            self._fault = f"{type(error).__name__}: {error}"
            raise_for_debugging(error)

    @property
    def _refusals(self) -> int:
        return 0 if self.machines is None else self.machines.bucket.refusals

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
            if self.machines is None or self.machines.is_here(process):
                self._die(process)
        if self.machines is not None:
            self.machines.lose()
            return
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
        if self.machines is not None:
            self.machines.bucket.calm()
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
        lake = self.tables.logs.get(self.tables.key(self.run_dir.lake))
        side = {
            name: self.tables.logs.get(self.tables.key(self.run_dir.side_tables / name))
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
            unnoticed=self._replaced and self._done,
            stops=self._stops,
            points=self.scheduler.points,
            outages=self._outages,
            taken_in=self._taken_in,
        )

    def _examples(self, partition: int) -> list[tuple[dict[str, str], list[dict[str, Any]]]]:
        found = []
        for record in self.broker.logs[TopicPartition(EXAMPLES, partition)].records:
            rows = pa.ipc.open_stream(record.value).read_all().select(["lake_seq", "impression_id"]).to_pylist()
            found.append(({name: value.decode() for name, value in record.headers}, rows))
        return found


RAISE = False
"""Let errors of the service through, to see where they come from."""


def raise_for_debugging(error: BaseException) -> None:
    if RAISE:
        raise error


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log of the service, which says every fault that befalls."""
    log = logging.getLogger("pipelines")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)

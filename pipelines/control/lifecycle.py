"""A run from its config to its summary: broker, topics, tracking, workers, coordinator, results."""

from __future__ import annotations

import logging
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pipelines.config import Config, dump, hashes_of_run, parse
from pipelines.control.coordinator import Coordinator
from pipelines.control.embedded_broker import EmbeddedBroker
from pipelines.control.fits import check_ranks
from pipelines.control.preflight import locked, prepare
from pipelines.control.supervised import Wanted
from pipelines.launch import Launcher, LocalLauncher, RayLauncher
from pipelines.results import Summary, draw, summarise
from pipelines.rules import Kind, Patience, RunState
from pipelines.run_dir import RunDir, store_ends
from pipelines.status import Heartbeat, RunStatus, StatusFile, read_status
from pipelines.tracking import Tracker
from pipelines.workers import Rendezvous, Worker
from streaming.broker import LocalBroker
from streaming.disk import read_json, write_json
from streaming.errors import BadInput, StreamingError
from streaming.kafka import check_retention, end_offsets, ensure_topics, require_topics
from streaming.lake import LakeTable
from streaming.position import Partition

log = logging.getLogger(__name__)

Say = Callable[[str], None]


def build_worker(
    kind: str, name: str, config_yaml: str, root: str, servers: str, until_end: bool, rendezvous: Rendezvous
) -> Worker:
    """Make a worker, or one rank of it, in the process that will run it. What is passed is plain text and numbers, so
    that any process can be reached."""
    import yaml

    config = parse(yaml.safe_load(config_yaml), f"{root}/config.yaml")
    config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap_servers": servers})})
    run_dir = RunDir(Path(root))
    if kind == "ingest":
        from pipelines.workers import IngestWorker

        return IngestWorker(config, run_dir)
    if kind == "augmentation" and rendezvous.rank:
        from pipelines.workers.augmentation import ScoringWorker

        return ScoringWorker(config, run_dir, rendezvous)
    if kind == "augmentation":
        from pipelines.workers.augmentation import AugmentationWorker

        return AugmentationWorker(config, run_dir, until_end=until_end, at=rendezvous)
    if kind == "teacher":
        from pipelines.workers.teacher import TeacherWorker

        return TeacherWorker(config, run_dir, rendezvous)
    from pipelines.workers.student import StudentWorker

    return StudentWorker(config, config.student(name), run_dir)


def jobs_of(config: Config, run_dir: RunDir, servers: str, until_end: bool) -> list[Wanted]:
    """Every worker of a run."""
    names = [("ingest", "ingest", "", 1)] if config.source is not None else []
    names += [
        ("augmentation", "augmentation", "", config.augmentation.ranks),
        ("teacher", "teacher", "", config.teacher.ranks),
    ]
    names += [(f"student-{student.name}", "student", student.name, 1) for student in config.students]
    text, root = dump(config), str(run_dir.root.absolute())
    return [
        Wanted(worker, Kind(kind), partial(build_worker, kind, name, text, root, servers, until_end), ranks)
        for worker, kind, name, ranks in names
    ]


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does, also while the coordinator is not there yet, or no longer. An interrupt that
    comes this far is the last one heard: what it ends (Ray, the broker) would be left behind by another."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deaf_once_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise


def start_over(run_dir: RunDir) -> None:
    """Delete a run, after stopping its broker. Raises BadInput where the folder holds something else."""
    foreign = {path.name for path in run_dir.root.iterdir()} - {run_dir.broker.name}
    if foreign and not run_dir.lock.exists():
        raise BadInput(
            f"{run_dir.root} is not empty and holds no run (no {run_dir.lock.name}), so --fresh leaves it alone; give "
            "the --run-dir of a run, or an empty one"
        )
    with locked(run_dir):
        LocalBroker(run_dir.broker).stop()
        shutil.rmtree(run_dir.root, ignore_errors=True)


def run(
    config: Config,
    run_dir: RunDir,
    *,
    local: bool = False,
    until_end: bool = False,
    evolve: bool = False,
    drop: Sequence[str] = (),
    watch: Callable[[RunStatus], None] = lambda status: None,
    say: Say = lambda text: None,
) -> tuple[RunStatus, Summary | None]:
    """Run (or resume) a stream until it ends, is stopped, or fails. `evolve`, `drop`: as `preflight.prepare` has them.

    A configured source has an end, and so has its run; topics that others feed have one with `until_end`.
    """
    until_end = until_end or config.source is not None
    check_ranks(config, local=local)
    with locked(run_dir), terminable(), ExitStack() as stack:
        prepare(config, run_dir, evolve=evolve, drop=drop, say=say)
        if (done := _finished(config, run_dir)) is not None:
            say(f"{run_dir.root} holds this run, finished on {done.value['run']['started_at']}: nothing left to do.")
            return RunStatus(config.name, RunState.DONE), done
        _say_what_is_there(run_dir, say)
        logging.basicConfig(filename=run_dir.logs / "coordinator.log", level=logging.INFO, force=True)
        status = RunStatus(config.name)
        status_file = StatusFile(run_dir.status)
        stack.enter_context(Heartbeat(status_file, status))
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        with ThreadPoolExecutor(1) as beside:
            broker = starting = None
            status.broker["bootstrap_servers"] = config.kafka.bootstrap_servers
            if config.kafka.bootstrap_servers is None:
                say("starting the embedded Apache Kafka broker")
                broker = _embedded(config, run_dir, status)
                starting = beside.submit(stack.enter_context, broker)
            launcher = _launcher(config, local, say)
            stack.callback(launcher.shutdown)
            servers = starting.result() if starting is not None else str(config.kafka.bootstrap_servers)
        _topics(config, run_dir, servers, until_end, say)
        _lake(config, run_dir, servers)
        tracker = _tracker(config, run_dir)
        summaries: list[Summary] = []

        def finish() -> None:
            say("computing the summary from every prediction")
            summary = summarise(config, run_dir, status, started_at)
            try:
                draw(config, run_dir)
            except Exception:
                log.exception("drawing the picture")
                say(f"the picture could not be drawn; {run_dir.logs / 'coordinator.log'} says why")
            if tracker is not None and not tracker.closed:  # once, though this may be tried again on a full disk
                say("writing MLflow")
                _track_results(config, run_dir, tracker, summary)
                _close(tracker, 120.0, say)
            write_json(run_dir.summary, summary.value)  # the mark of a finished run: nothing is left to do
            summaries.append(summary)

        coordinator = Coordinator(
            run_dir,
            status,
            jobs_of(config, run_dir, servers, until_end),
            launcher,
            tracker,
            config.resources,
            give_up_s=config.kafka.give_up_s,
            pace=config.pace.mode,
            broker=broker,
            watch=watch,
            finish=finish,
            status_file=status_file,
        )
        stack.enter_context(deaf_once_interrupted())  # last in, first out: before anything is shut down
        coordinator.run()
        if tracker is not None and not summaries:
            for name in coordinator.workers:
                tracker.finish(name, "FAILED" if status.state is RunState.FAILED else "KILLED")
            _close(tracker, 5.0, say)
        return status, summaries[0] if summaries else None


def _close(tracker: Tracker, wait_s: float, say: Say) -> None:
    tracker.close(wait_s)
    if tracker.problem:
        say(f"tracking: {tracker.problem}; {tracker.dropped} entries were dropped, training is not affected")


def _launcher(config: Config, local: bool, say: Say) -> Launcher:
    if local:
        return LocalLauncher()
    address = config.resources.address
    say("starting Ray" if address is None else f"joining Ray at {address}")
    return RayLauncher(config.resources)


def _finished(config: Config, run_dir: RunDir) -> Summary | None:
    value = read_json(run_dir.summary)
    if value is None:
        return None
    try:
        ours = hashes_of_run(run_dir, config)
        return Summary(value) if value["run"]["config_hash"] in ours else None
    except (KeyError, TypeError):
        raise StreamingError(
            f"{run_dir.summary} is not a summary that exfm wrote; delete it: the run computes it again"
        ) from None


def _say_what_is_there(run_dir: RunDir, say: Say) -> None:
    if not run_dir.status.exists():
        say(f"starting in {run_dir.root}")
        return
    try:
        before = read_status(run_dir.root)
    except StreamingError as error:  # it is written anew at once; what is resumed from are the checkpoints
        say(f"found a run in {run_dir.root}: resuming it ({error})")
        return
    rows = before["lake"]["rows"]
    say(f"found a run in {run_dir.root} ({before['state']}, {rows:,} rows in the lake): resuming it")


def _embedded(config: Config, run_dir: RunDir, status: RunStatus) -> EmbeddedBroker:
    def make(port: int | None) -> LocalBroker:
        return LocalBroker(run_dir.broker, port=port or config.kafka.port, heap_mb=config.kafka.heap_mb)

    return EmbeddedBroker(make, status.broker, Patience.of(config.resources, config.kafka.give_up_s))


def _topics(config: Config, run_dir: RunDir, servers: str, until_end: bool, say: Say) -> None:
    """Make the topics of an embedded broker or of our own source; of somebody else's, see that they are there and keep
    their messages for as long as they are needed."""
    kafka = config.kafka.model_copy(update={"bootstrap_servers": servers})
    inputs = {t.topic: t.partitions for t in (kafka.impressions, kafka.feedback)}
    outputs = {t.topic: t.partitions for t in (kafka.examples, kafka.dead_letters)}
    if config.source is not None or config.kafka.bootstrap_servers is None:
        ensure_topics(kafka, inputs | outputs)
    else:
        require_topics(kafka, inputs)
        needed_s = config.rows.groups[-1].window_ms / 1000 + config.settlement.lateness_s + kafka.downtime_s
        skew_s = config.settlement.max_future_skew_s
        for warning in check_retention(kafka, inputs, needed_s=needed_s, max_future_skew_s=skew_s):
            say(warning)
        ensure_topics(kafka, outputs)
    if until_end and config.source is None and not run_dir.end_offsets.exists():
        partitions = [Partition(topic, p) for topic, count in inputs.items() for p in range(count)]
        ends = end_offsets(kafka, partitions)
        if not any(ends.values()):
            raise BadInput(
                f"--until-end, but {', '.join(inputs)} hold no messages at {servers}; feed them first, or leave it out"
            )
        store_ends(run_dir.end_offsets, ends)


def _lake(config: Config, run_dir: RunDir, servers: str) -> None:
    """Make the lake, so that readers find it and another schema is refused, at once.

    Raises BadInput where a new lake meets an examples topic that another run has filled.
    """
    new = not run_dir.lake.exists()
    examples = config.kafka.examples
    if new:
        kafka = config.kafka.model_copy(update={"bootstrap_servers": servers})
        held = sum(end_offsets(kafka, [Partition(examples.topic, p) for p in range(examples.partitions)]).values())
        if held:
            raise BadInput(
                f"topic `{examples.topic}` holds {held:,} messages of another run, and {run_dir.root} is a new one; "
                "give it a topic of its own (--set kafka.examples.topic=…), or delete that topic"
            )
    LakeTable(run_dir.lake, config.rows).open_writer()


def _tracker(config: Config, run_dir: RunDir) -> Tracker | None:
    if not config.tracking.enabled:
        return None
    uri = config.tracking.uri or f"sqlite:///{run_dir.mlflow.absolute()}"
    settings, runs = config.tracking, run_dir.root / "mlflow_runs.json"
    tracker = Tracker(uri, run_dir.artifacts.absolute(), config.name, runs, settings.interval_s, settings.queue_entries)
    common = {"config_hash": config.hash, "seed": config.seed, "pace": config.pace.mode}
    tracker.params("teacher", common | config.teacher.model.model_dump(mode="json"))
    for student in config.students:
        values = {"verticals": ",".join(student.row_filter), "tasks": ",".join(config.student_tasks(student))}
        tracker.params(f"student-{student.name}", common | values | student.model.model_dump(mode="json"))
    return tracker


def _track_results(config: Config, run_dir: RunDir, tracker: Tracker, summary: Summary) -> None:
    for student in config.students:
        worker = f"student-{student.name}"
        served = run_dir.served(student.name)
        newest = max(served.glob("v*"), default=None)
        if newest is None:
            continue
        for task, result in summary.value["students"][student.name].items():
            tracker.metrics(worker, result["rows"], summary.flat(student.name, task))
        if run_dir.picture.exists():
            tracker.artifact(worker, run_dir.picture)
        lineage = {"config_hash": config.hash, "lake": run_dir.lake, "position": newest.name}
        tracker.register(worker, f"{config.name}-{student.name}", newest, lineage)
        tracker.finish(worker)
    tracker.finish("teacher")

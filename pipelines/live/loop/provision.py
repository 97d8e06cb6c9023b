"""Infrastructure of a run before its workers: the broker and the launcher, then topics and the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from pipelines.core.config.sections import Recorded
from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Kafka
from pipelines.core.run_dir.end_offsets import store_ends, stored_ends
from pipelines.core.run_dir.object_storage import shown
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.cluster import require_machines
from pipelines.live.launch.fork_server import ForkServer
from pipelines.live.launch.local import LocalLauncher
from pipelines.live.launch.ray import Launcher, RayLauncher
from pipelines.live.loop.embedded_broker import EmbeddedBroker
from pipelines.live.rules.restarts import Patience
from pipelines.live.status.status import RunStatus
from pipelines.live.workers.augmentation.commit import committed_meta
from streaming.broker.broker import LocalBroker
from streaming.errors import BadInput, DataLost
from streaming.kafka.client import require_answer
from streaming.kafka.identity import require_cluster, source_topics
from streaming.kafka.topics import check_retention, end_offsets, ensure_topics
from streaming.lake.writer import LakeTable
from streaming.position import Partition
from streaming.store.working_copy import copy_of

Say = Callable[[str], None]

DAY_MS = 86_400_000


class Provision(NamedTuple):
    """Infrastructure that a run's workers need. `broker`: the embedded one, where there is one."""

    servers: str
    launcher: Launcher
    broker: EmbeddedBroker | None


@contextmanager
def provisioned(
    config: Config, run_dir: RunDir, status: RunStatus, *, local: bool, forks: ForkServer | None, say: Say
) -> Iterator[Provision]:
    """Start the embedded broker and the launcher side by side; shut both down at the end. `forks`: RayLauncher's.

    A run that follows another's lake has no broker. Raises BadInput for a port that is taken or a password that is not
    there, BrokerAway where no configured broker answers, before anything is started.
    """
    if config.follows is not None:
        launcher = _launcher(config, run_dir, status, local, forks, say)
        with ExitStack() as stack:
            stack.callback(launcher.shutdown)
            _require_machines(config, run_dir, "", local, say)
            yield Provision("", launcher, None)
        return
    configured = config.kafka.bootstrap_servers
    if configured is None:
        _local(config, run_dir).check_port()
    else:
        config.kafka.client_security()
        require_answer(config.kafka)
    status.broker["bootstrap_servers"] = configured
    with ExitStack() as stack:
        with ThreadPoolExecutor(1) as starter:
            broker = starting = None
            if configured is None:
                status.stage = "starting the embedded Apache Kafka broker"
                say(status.stage)
                broker = _embedded(config, run_dir, status)
                starting = starter.submit(stack.enter_context, broker)
            launcher = _launcher(config, run_dir, status, local, forks, say)
            stack.callback(launcher.shutdown)
            servers = starting.result() if starting is not None else str(configured)
            _require_machines(config, run_dir, servers, local, say)
        yield Provision(servers, launcher, broker)


def make_topics(config: Config, run_dir: RunDir, servers: str, *, until_end: bool, say: Say) -> None:
    """Create the topics of an embedded broker or of the run's own source. Where others feed them, check that they exist
    and keep their messages for as long as they are needed, and record where a bounded run ends.

    Raises BadInput for another cluster than the run began with, before anything is made there; for topics that are
    absent, have other numbers of partitions than configured, or hold nothing although the run is to end where they end.
    """
    kafka = config.kafka.model_copy(update={"bootstrap_servers": servers})
    if configured := config.kafka.bootstrap_servers is not None:
        with suppress(DataLost):  # of a damaged record: its worker says so
            if (committed := committed_meta(run_dir)) is not None:
                require_cluster(kafka, committed["sources"])
    inputs = {t.topic: t.partitions for t in (kafka.impressions, kafka.feedback)}
    outputs = {kafka.examples.topic: kafka.examples.partitions}
    if config.plays or not configured:
        ensure_topics(kafka, inputs | outputs)
    else:
        source_topics(kafka, inputs)
        needed_s = config.rows.groups[-1].window_ms / 1000 + config.settlement.lateness_s + kafka.downtime_s
        skew_s = None if config.reads_live else config.max_future_skew_s  # a live run asks its own clock, too
        for warning in check_retention(kafka, inputs, needed_s=needed_s, max_future_skew_s=skew_s):
            say(warning)
        ensure_topics(kafka, outputs)
    ensure_dead_letters(kafka)
    if until_end and not config.plays:
        _record_ends(kafka, run_dir, [Partition(topic, p) for topic, count in inputs.items() for p in range(count)])


def ensure_dead_letters(kafka: Kafka) -> None:
    """Create the topic of dead letters, which keeps them for `kafka.dead_letter_days`."""
    kept_ms = -1 if kafka.dead_letter_days is None else round(kafka.dead_letter_days * DAY_MS)
    ensure_topics(kafka, {kafka.dead_letters.topic: kafka.dead_letters.partitions}, retention_ms=kept_ms)


def _record_ends(kafka: Kafka, run_dir: RunDir, partitions: list[Partition]) -> None:
    """Record the end of a bounded run: where its partitions ended at its first start, or at the start that took them
    in."""
    recorded = stored_ends(run_dir.end_offsets)
    if not (new := [partition for partition in partitions if partition not in recorded]):
        return
    ends = end_offsets(kafka, new)
    if not recorded and not any(ends.values()):
        topics = ", ".join(dict.fromkeys(partition.topic for partition in partitions))
        raise BadInput(
            f"--until-end, but {topics} hold no messages at {kafka.bootstrap_servers}; feed them first, or leave it out"
        )
    store_ends(run_dir.end_offsets, recorded | ends)


def make_lake(config: Config, run_dir: RunDir, servers: str) -> None:
    """Create the lake, so that readers find it and another schema is refused at once.

    Raises BadInput where a new lake meets an examples topic that another run has filled.
    """
    examples = config.kafka.examples
    if not run_dir.lake.exists():
        kafka = config.kafka.model_copy(update={"bootstrap_servers": servers})
        held = sum(end_offsets(kafka, [Partition(examples.topic, p) for p in range(examples.partitions)]).values())
        if held:
            raise BadInput(
                f"topic `{examples.topic}` holds {held:,} messages of another run, and {run_dir.root} is a new one; "
                "give it a topic of its own (--set kafka.examples.topic=…), or delete that one if its run is gone"
            )
    LakeTable(run_dir.lake, config.rows, config.lake.layout).open_writer()


def _launcher(
    config: Config, run_dir: RunDir, status: RunStatus, local: bool, forks: ForkServer | None, say: Say
) -> Launcher:
    if local:
        return LocalLauncher()
    address = config.resources.address
    stage = "starting Ray" if address is None else f"joining Ray at {address}"
    say(stage)
    status.stage = stage if status.stage is None else f"{status.stage}, {stage}"
    return RayLauncher(
        config.resources, forks, run=config.name, copy=None if address is None else copy_of(run_dir.root)
    )


def _require_machines(config: Config, run_dir: RunDir, servers: str, local: bool, say: Say) -> None:
    """Raise BadInput where a machine of a cluster cannot take part in the run."""
    if local or config.resources.address is None:
        return
    kafka, source, inputs = config.kafka.model_copy(update={"bootstrap_servers": servers}), config.source, list[str]()
    if isinstance(source, Recorded) and config.follows is None:
        inputs = [source.path, *([source.feedback.path] if source.feedback is not None else [])]
    if config.follows is not None:
        if copy_of(run_dir.leader.root) is not None:
            raise BadInput(
                f"the lake of {shown(run_dir.leader)} is followed from one machine: leave resources.address out; its "
                "workers read one copy of it"
            )
        inputs = [str(run_dir.leader.root)]
    elif (begun := config.teacher.init_from) is not None:
        inputs.append(str(begun.path))
    say("looking at the run from every machine of Ray")
    require_machines(run_dir, kafka.addresses if servers else [], inputs, say)


def _embedded(config: Config, run_dir: RunDir, status: RunStatus) -> EmbeddedBroker:
    def make(port: int | None) -> LocalBroker:
        return _local(config, run_dir, port)

    return EmbeddedBroker(make, status.broker, Patience.of(config.resources, config.kafka.give_up_s))


def _local(config: Config, run_dir: RunDir, port: int | None = None) -> LocalBroker:
    return LocalBroker(run_dir.broker, port=port or config.kafka.port, heap_mb=config.kafka.heap_mb)

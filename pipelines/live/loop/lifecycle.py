"""A run from its config to its summary, stage by stage.

checked       the run directory is locked, holds this run or none, and the disk has room        preflight
provisioned   broker, Ray, topics, lake                                                         provision
              of a run that follows another's lake: Ray, and a link to that lake                lake_watch
live          the loop over its workers, until they are done or it is asked to stop             live_run
concluded     summary.json, the picture, MLflow                                                 conclusion
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exfm.snapshots.checkpoint import checkpoint_names
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.scaling import answer_at_start, with_scaling
from pipelines.core.config.sections import Recorded
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.logs import LogForm
from pipelines.core.run_dir.object_storage import coordinating, following_leader
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.fork_server import ForkServer
from pipelines.live.loop.conclusion import Conclusion, earlier_summary, tracker_of
from pipelines.live.loop.lake_watch import keep_rows, link_lake, release_rows
from pipelines.live.loop.live_run import LiveRun
from pipelines.live.loop.preflight import (
    PreflightState,
    check_compiler,
    check_processes,
    check_ranks,
    clear,
    contents,
    left_as_found,
    locked,
    prepare,
    refuse_foreign,
)
from pipelines.live.loop.provision import Say, make_lake, make_topics, provisioned
from pipelines.live.loop.signals import interruptible, undisturbed_cleanup
from pipelines.live.rules.restarts import Patience
from pipelines.live.rules.states import RunState
from pipelines.live.status.file import Heartbeat, StatusFile
from pipelines.live.status.losses import LossSeverity
from pipelines.live.status.status import RunStatus
from pipelines.live.status.stored import earlier_attempts, last_status, read_status
from pipelines.live.workers.block_spans import check_spans
from pipelines.live.workers.ingest import files_name
from pipelines.report.results.summary import Summary
from pipelines.teacher.replace.takeover import TAKES_OVER, take_over
from pipelines.track.endpoint import metrics_served
from pipelines.track.webhooks import send_failed
from streaming.broker.broker import LocalBroker
from streaming.errors import BadInput, StreamingError
from streaming.lake.delta.files import TableFiles
from streaming.lake.delta.identifiers import LAKE_SEQ
from streaming.store.files import write_text
from streaming.store.working_copy import copy_of, delete_stored


def run(
    config: Config,
    run_dir: RunDir,
    *,
    local: bool = False,
    until_end: bool = False,
    until_idle_s: float | None = None,
    evolve: bool = False,
    drop: Sequence[str] = (),
    forks: ForkServer | None = None,
    watch: Callable[[RunStatus], None] = lambda status: None,
    attend: Callable[[LiveRun], None] = lambda live_run: None,
    say: Say = lambda text: None,
) -> tuple[RunStatus, Summary | None]:
    """Run (or resume) a stream until it ends, is stopped, or fails. `evolve`, `drop`: as `preflight.prepare` has them;
    `forks`: a server to fork workers from, if one was started; `watch(status)` and `attend(live_run)` are called about
    every second.

    A configured source has an end, and so has its run; topics that others feed, and a lake that is followed, have one
    with `until_end`. With
    `until_idle_s` the run stops, for the reason `CAUGHT_UP`, when nothing has come for that long.
    """
    until_end = until_end or config.plays
    check_ranks(with_scaling(config, run_dir), local=local)
    check_compiler(config)
    check_spans(config)
    check_processes(config, local=local)
    refuse_foreign(run_dir)
    before = contents(run_dir.root)
    with (
        locked(run_dir),
        coordinating(run_dir, say, shared=config.resources.address is not None and not local),
        left_as_found(run_dir, before) as found,
        interruptible(),
    ):
        while True:
            try:
                status, summary = _attempt(
                    config, run_dir, found, local=local, until_end=until_end, until_idle_s=until_idle_s, evolve=evolve,
                    drop=drop, forks=forks, watch=watch, attend=attend, say=say,
                )  # fmt: skip
            except BadInput:
                raise  # whoever gave the command reads it
            except Exception as error:  # whoever restarts it at night does not
                if not found.loops:
                    send_failed(config.alarms.webhooks, config.name, run_dir.silences, run_dir.notices, str(error))
                raise
            found.loops = False
            if status.reason != TAKES_OVER:
                return status, summary


def _attempt(
    config: Config,
    run_dir: RunDir,
    found: PreflightState,
    *,
    local: bool,
    until_end: bool,
    until_idle_s: float | None,
    evolve: bool,
    drop: Sequence[str],
    forks: ForkServer | None,
    watch: Callable[[RunStatus], None],
    attend: Callable[[LiveRun], None],
    say: Say,
) -> tuple[RunStatus, Summary | None]:
    """Run until the stream ends, is stopped, fails, or another teacher is to take over."""
    _clear_failed_start(config, run_dir, say)
    if config.follows is None:
        config = take_over(config, run_dir, say)
    else:
        link_lake(config, run_dir)
    config = with_scaling(with_roster(config, run_dir.roster), run_dir)
    check_ranks(config, local=local)
    prepare(config, run_dir, evolve=evolve, drop=drop, say=say)
    answer_at_start(config, run_dir)
    if (earlier := earlier_summary(config, run_dir)) is not None:
        say(f"{run_dir.root} holds this run, finished on {earlier.run.started_at}: nothing left to do.")
        return _finished(config, earlier), earlier
    _announce(run_dir, say)
    _open_recording(config, run_dir, say)
    logs = LogForm(config.resources.log_mb, config.resources.log_format, config.name)
    logs.take_all(run_dir.logs / "coordinator.log")
    status = RunStatus.resuming(config.name, earlier_attempts(run_dir.root), lake_rows(run_dir))
    status_file = StatusFile(run_dir.status)
    with (
        metrics_served(run_dir.root, config.tracking.metrics_port) as status.metrics_url,
        Heartbeat(status_file, status),
        following_leader(run_dir.leader),
        provisioned(config, run_dir, status, local=local, forks=forks, say=say) as provision,
        undisturbed_cleanup(),
    ):
        if config.follows is None:
            status.stage = f"making topics and lake (broker: {provision.servers})"
            make_topics(config, run_dir, provision.servers, until_end=until_end, say=say)
            make_lake(config, run_dir, provision.servers)
        else:
            keep_rows(config, run_dir)
        tracker = tracker_of(config, run_dir)
        patience = Patience.of(config.resources, config.kafka.give_up_s)
        conclusion = Conclusion(run_dir, status, tracker, say, patience)
        live = LiveRun(
            config, run_dir, provision, status, status_file, conclusion, tracker,
            until_end=until_end, until_idle_s=until_idle_s, say=say,
        )  # fmt: skip
        found.begun, found.loops, status.stage = True, True, None
        say("waiting for the workers: each process starts and imports torch")
        live.run(watch, attend)
        conclusion.break_off(live.workers)
    return status, conclusion.summary


def _clear_failed_start(config: Config, run_dir: RunDir, say: Say) -> None:
    """Start over where the run failed before it learned anything."""
    if not failed_before_learning(run_dir):
        return
    say(f"the run in {run_dir.root} failed before it learned anything: starting over")
    LocalBroker(run_dir.broker).stop()
    kept = [run_dir.lock, run_dir.roster.folder, run_dir.scaling, run_dir.forgotten, run_dir.copies]
    if not config.plays:  # others filled the topics of its broker
        kept.append(run_dir.broker)
    for path in (contents(run_dir.root) or set()) - {*kept, run_dir.status}:
        delete_stored(path)
    clear(run_dir.root, keep=kept)
    delete_stored(run_dir.status)  # last: it says that the rest may go


def _open_recording(config: Config, run_dir: RunDir, say: Say) -> None:
    """Make the copies that a recorded source needs, before a worker would, whose silence counts as a hang; and note
    which files the run began with."""
    source = config.source
    if not isinstance(source, Recorded):
        return
    copies = source.copies_in(run_dir.copies)
    for text in source.opened(config.rows, copies).made_now:
        say(text)
    if not run_dir.source_files.exists():
        write_text(run_dir.source_files, files_name(config, source, copies))


def _finished(config: Config, summary: Summary) -> RunStatus:
    """Status of a run that has ended, by the limits that `config` has now."""
    losses = summary.losses_under(config)
    state = RunState.FAILED if losses.severity is LossSeverity.FAIL else RunState.DONE
    return RunStatus(config.name, state, "; ".join(losses.words) or None)


def start_over(run_dir: RunDir) -> None:
    """Delete a run, after stopping its broker. Raises BadInput where the folder holds something else."""
    refuse_foreign(run_dir)
    if (copy := copy_of(run_dir.root)) is not None:
        raise BadInput(
            f"--fresh does not delete {copy.url}: delete it with your provider's tools, or give another address"
        )
    with locked(run_dir):
        release_rows(run_dir)
        LocalBroker(run_dir.broker).stop()
        clear(run_dir.root, keep=[run_dir.copies])
        if not any(run_dir.root.iterdir()):
            run_dir.root.rmdir()


def failed_before_learning(run_dir: RunDir) -> bool:
    """True if the earlier run here ended by the caller's mistake before its lake had a row: nothing is lost by
    starting over."""
    try:
        stored = last_status(run_dir.root)
    except StreamingError:
        return False
    if stored is None or not stored.mistaken:
        return False
    rows = (file for file in run_dir.lake.rglob("*.parquet") if "_delta_log" not in file.parts)
    learners = [run_dir.checkpoints("teacher"), *run_dir.checkpoints("").glob(f"{STUDENT}*/")]
    empty = run_dir.follows or (not lake_rows(run_dir) and next(rows, None) is None)
    return empty and not any(map(checkpoint_names, learners))


def _announce(run_dir: RunDir, say: Say) -> None:
    if not run_dir.status.exists():
        say(f"starting in {run_dir.root}")
        return
    try:
        before = read_status(run_dir.root)
    except StreamingError as error:  # it is written anew at once; what is resumed from are the checkpoints
        say(f"found a run in {run_dir.root}: resuming it ({error})")
        return
    rows = lake_rows(run_dir)  # its status was written before the last of them, or before any worker had reported
    say(f"found a run in {run_dir.root} ({before.state}, {rows:,} rows in the lake): resuming it")


def lake_rows(run_dir: RunDir) -> int:
    """Rows committed to the run's lake, according to its log; 0 without a readable lake, whose errors are reported
    by whoever opens it."""
    try:
        last = TableFiles(run_dir.lake).identifier(LAKE_SEQ)
    except StreamingError:
        return 0
    return 0 if last is None else last + 1

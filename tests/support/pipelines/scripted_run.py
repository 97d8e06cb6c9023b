"""Workers whose lives are scripts, and a live run over them with a clock that is advanced by hand."""

from __future__ import annotations

import time
from typing import Any

from pipelines.core.config.sections import Resources
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.conclusion import Conclusion
from pipelines.live.loop.live_run import LiveRun
from pipelines.live.loop.monitor import AlarmMonitor
from pipelines.live.loop.provision import Provision
from pipelines.live.loop.worker_spec import WorkerSpec
from pipelines.live.rules.causes import Died
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.restarts import Cause, Patience
from pipelines.live.status.file import StatusFile
from pipelines.live.status.status import RunStatus
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.report import Report
from streaming.store.files import read_json
from tests.support.pipelines.clocks import Clock
from tests.support.pipelines.raw_configs import small

KINDS = {
    "ingest": Kind.INGEST, "augmentation": Kind.AUGMENTATION, "teacher": Kind.TEACHER, "student-feed": Kind.STUDENT,
    "student-late": Kind.STUDENT,
}  # fmt: skip
WRONG = Died("ModelError: 16 batches in a row were not finite", Cause.PERMANENT)


class ScriptedHandle:
    """Answers polls with what its life says: a report, None, or a death; the last answer again and again."""

    def __init__(self, name, life, clock):
        self.node = "here"
        self.name, self.life, self._clock = name, list(life), clock
        self.orders = []
        self.ended = None
        self.asked = False

    def poll(self, orders):
        assert self.ended is None, f"{self.name} was polled after its end"
        self.orders.append(orders)
        answer = self.life.pop(0) if len(self.life) > 1 else self.life[0]
        if isinstance(answer, BaseException):
            self.ended = "died"
            raise answer
        return answer(orders) if callable(answer) else answer

    def ask_to_close(self):
        self.asked = True

    def close(self, wait_s):
        assert self.ended is None
        assert wait_s > 0
        self.ended = "closed"
        return Report(self.name, KINDS[self.name], metrics=[(99, {"closing": 1.0})])

    def kill(self):
        self.ended = "killed"


class ScriptedLauncher:
    """Starts workers with the next of their lives; the last one again and again."""

    died = None

    def __init__(self, clock, lives, pause):
        self._clock, self.rest = clock, pause
        self.lives = {name: list(lives) for name, lives in lives.items()}
        self.handles: dict[str, list[ScriptedHandle]] = {name: [] for name in lives}
        self.started_at: dict[str, list[float]] = {name: [] for name in lives}

    def start(self, name, build, log, ranks=1, host=None):
        lives = self.lives[name]
        handle = ScriptedHandle(name, lives.pop(0) if len(lives) > 1 else lives[0], self._clock)
        self.handles[name].append(handle)
        self.started_at[name].append(self._clock())
        return handle

    def lacks(self, more, *, of_one_model=False):
        return None if more <= self.room else f"{more} more processes find no place"

    room = 9

    def shutdown(self):
        pass


class Recorder:
    """A tracker that remembers."""

    def __init__(self):
        self.seen = []
        self.dropped, self.problem = 0, None

    def mirror(self, worker, mirror):
        raise AssertionError("nothing was published")

    def metrics(self, worker, step, values):
        self.seen.append((worker, step, values))


def report(name, rows=0, **fields):
    return Report(name, KINDS[name], pid=4242, rows=rows, rss_bytes=1 << 20, **fields)


def working(name):
    return report(name, rows=1)


def done(name, **fields):
    return report(name, rows=10, done=True, **fields)


def follows(name):
    """Done as soon as it is told where the stream ends."""
    return lambda orders: done(name) if orders.end_seq is not None else working(name)


ENDING = {
    "ingest": [[None, working("ingest"), done("ingest")]],
    "augmentation": [[report("augmentation", 1, lake_seq=50), done("augmentation", lake_seq=99)]],
    "teacher": [[follows("teacher")]],
    "student-feed": [[follows("student-feed")]],
}
ENDLESS = {name: [[working(name)]] for name in ENDING}


def never_built(rendezvous: Rendezvous) -> Any:
    raise AssertionError("a scripted launcher builds nothing")


class ScriptedConclusion(Conclusion):
    """Calls `finish` in place of writing a summary."""

    def __init__(self, finish, *given, **options):
        super().__init__(*given, **options)
        self._finish = finish

    def conclude(self, config):
        self._finish()


class NoAlarms(AlarmMonitor):
    def check(self, status):
        return []


def live_run(launcher, run_dir, status, specs, resources, *, finish=lambda: None, tracker=None, clock=time.monotonic,
             pace="lockstep", give_up_s=300.0):  # fmt: skip
    """A live run of these workers, whatever they are: the config names others, and its end writes nothing."""
    config = parse(small(pace={"mode": pace}, kafka={"give_up_s": give_up_s}))
    config = config.model_copy(update={"resources": resources})
    patience = Patience.of(resources, give_up_s)
    conclusion = ScriptedConclusion(finish, run_dir, status, None, print, patience, clock=clock)
    return LiveRun(
        config, run_dir, Provision("", launcher, None), status, StatusFile(run_dir.status), conclusion, tracker,
        specs=specs, monitor=NoAlarms(config, clock), clock=clock,
    )  # fmt: skip


class Run:
    """A live run over scripted lives, and everything it let be seen."""

    def __init__(self, root, lives, at_tell=None, sleep=None, tracker=None, finish=lambda: None, pace="lockstep",
                 give_up_s=300.0, **resources):  # fmt: skip
        self.clock = Clock()
        pause = self.clock.sleep if sleep is None else lambda seconds: sleep(self.clock, seconds)
        self.launcher = ScriptedLauncher(self.clock, lives, pause)
        self.run_dir = RunDir(root)
        self.told = []
        self._at_tell = at_tell or (lambda run: None)
        self.status = RunStatus("scripted")
        settings = Resources(**({"min_free_disk_gb": 0} | resources))
        specs = [WorkerSpec(name, KINDS[name], never_built) for name in lives if name != "student-late"]
        self.live = live_run(
            self.launcher, self.run_dir, self.status, specs, settings,
            finish=finish, tracker=tracker, clock=self.clock, pace=pace, give_up_s=give_up_s,
        )  # fmt: skip

    def _see(self, status):
        self.told.append((self.clock.now, read_json(self.run_dir.status)))
        assert len(self.told) < 1000, "it does not end"
        self._at_tell(self)

    def to_the_end(self):
        return self.live.run(self._see)

    @property
    def written(self):
        return read_json(self.run_dir.status)

    def ends(self):
        return {name: [handle.ended for handle in handles] for name, handles in self.launcher.handles.items()}


def stop_after(seconds):
    def at_tell(run):
        if run.clock() >= 1000 + seconds:
            run.live.stop("enough")

    return at_tell


def reasons(run):
    """What the status said while the run went on."""
    return [value["reason"] for _, value in run.told if value["state"] not in ("done", "failed", "stopped")]

"""Launcher of workers in Ray actors, the only file that imports Ray; and the interface of launchers.

All launchers return handles with the same four verbs, and the coordinator does not distinguish them:

    handle.poll(orders) -> Report | None      None: nothing new yet. Raises Died when the worker is gone.
    handle.ask_to_close()                     at the end of its step; returns at once
    handle.close(wait_s) -> Report | None     lets it commit and leave; None when it did not within wait_s
    handle.kill()
    handle.node
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from pipelines.core.config.identity import AUGMENTATION
from pipelines.core.config.sections import Resources
from pipelines.core.run_dir.logs import LogForm
from pipelines.live.launch.cluster import HeadWatch, machines, near_brokers, not_joined, shipped_source
from pipelines.live.launch.fork_server import ForkServer
from pipelines.live.launch.host import Build, Host, last_turn
from pipelines.live.launch.preloaded import fitting, starts_plainly, worker_environment
from pipelines.live.launch.ranks import RankHandle
from pipelines.live.launch.ray_node import lean_node, require_answer
from pipelines.live.launch.worker_copies import Following, WorkerPlace, wait_for_first
from pipelines.live.rules.causes import Died, Gone
from pipelines.live.workers.ranks import Rendezvous
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders, Worker
from streaming.errors import StreamingError
from streaming.store.working_copy import WorkingCopy

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

SLOW_STARTS = 5
FORKS_END_S = 3.0
OBJECT_STORE_BYTES = 100 << 20
FITS_S = 3.0  # what has room is reserved in milliseconds
LOOK_S = 10.0  # between two looks into Ray's logs while a worker is placed


class Handle(Protocol):
    node: str | None

    def poll(self, orders: Orders) -> Report | None: ...
    def ask_to_close(self) -> None: ...
    def close(self, wait_s: float) -> Report | None: ...
    def kill(self) -> None: ...


class Launcher(Protocol):
    def start(self, name: str, build: Build, log: Path, ranks: int = 1, host: str | None = None) -> Handle:
        """Start a worker; workers of the same kind of `host` may share a process."""

    def lacks(self, more: int, *, of_one_model: bool = False) -> str | None:
        """Reason why so many more processes would find no place; None where they would. `of_one_model`: ranks beside
        the first."""

    def rest(self, interval_s: float) -> None:
        """Pause about `interval_s` between two rounds of polling."""

    @property
    def died(self) -> str | None:
        """Reason why everything it started has died and nothing can be started; None while it lives."""

    def shutdown(self) -> None: ...


class ActorHost(Host):
    """The workers of an actor. `place`: where the run is on object storage, and the actor on any machine; why it could
    not be opened is said when a worker is."""

    def __init__(self, own_log: str, logs: LogForm, turn: str | None = None, place: WorkerPlace | None = None) -> None:
        self._copy: WorkingCopy | None = None
        self._led = place is not None and place.led
        self._unopened: Exception | None = None
        try:
            self._copy = None if place is None else place.opened()
        except Exception as error:  # of whatever kind: an actor that is not made has no words
            self._unopened = error
        super().__init__(self._here(own_log), logs, turn)

    def open(self, name: str, build: Any, log: str, rendezvous: Rendezvous) -> None:
        super().open(name, partial(self._built, build), self._here(log), rendezvous)

    def _built(self, build: Any, rendezvous: Rendezvous) -> Worker:
        if self._unopened is not None:
            raise self._unopened
        if self._copy is not None:
            if self._led:
                wait_for_first(self._copy.root)
            else:
                self._following = Following(self._copy)  # until the process ends
                self._following.begin()
            build = replace(build, root=str(self._copy.root))
        worker: Worker = build(rendezvous)
        return worker

    def close(self, name: str) -> Report:
        report = super().close(name)
        self._mirror()
        return report

    def drop(self, name: str) -> None:
        super().drop(name)
        self._mirror()

    def _mirror(self) -> None:
        """Put the log, which says what the worker ended of."""
        if self._copy is not None:
            with suppress(StreamingError, OSError):
                if self._led:
                    self._copy.put_folder(self._copy.root / "logs")
                else:
                    self._copy.mirror()

    def _here(self, log: str) -> str:
        if self._unopened is not None:
            return os.devnull  # the coordinator's folder is on another machine
        if self._copy is None:
            return log
        (logs := self._copy.root / "logs").mkdir(exist_ok=True)
        return str(logs / Path(log).name)

    def place(self, name: str) -> str:
        """Answered as soon as the process runs; nothing heavy has been imported yet."""
        import ray

        logging.info("%s: pid %d on %s", name, os.getpid(), ray.util.get_node_ip_address())
        return str(ray.util.get_node_ip_address())


class RayHost:
    """An actor, and the names of the workers that it holds. `turn`: where several share it, the file that names the one
    at work."""

    def __init__(self, actor: Any, turn: Path | None = None) -> None:
        self.actor, self.workers = actor, set[str]()
        self.answered = self.ended = False
        self.culprit: str | None = None
        """The worker whose turn it was when the process of several ended."""
        self._turn = turn

    def remove(self, worker: str) -> None:
        """Drop a worker, after what the actor works on; an actor without workers ends."""
        self.workers.discard(worker)
        if self.workers:
            self.actor.drop.remote(worker)
        else:
            self.kill()

    def kill(self) -> None:
        import ray

        ray.kill(self.actor, no_restart=True)
        self.note_end()

    def note_end(self) -> None:
        if not self.ended:
            self.ended = True
            self.culprit = last_turn(self._turn) if self._turn is not None and self.workers else None


class RayCall:
    """A call that an actor works on."""

    def __init__(self, host: RayHost, reference: Any) -> None:
        self._host, self._reference = host, reference

    def here(self) -> bool:
        import ray

        return bool(ray.wait([self._reference], timeout=0)[0])

    def get(self, wait_s: float | None = None) -> Any:
        import ray

        try:
            answer = ray.get(self._reference, timeout=wait_s)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError(f"no answer within {wait_s:.0f} s") from None
        except ray.exceptions.RayTaskError as error:
            died = error.cause if isinstance(error.cause, Died) else Died.of(error)
            raise Died(str(died), died.cause) from None
        except (ray.exceptions.RayError, ConnectionError) as error:  # also of a machine out of memory
            self._host.note_end()
            raise Gone(str(error).strip().splitlines()[0]) from None
        self._host.answered = True
        return answer


class RayProcess:
    """A worker in its host, or one rank of it. `first`: what `open` is asked with, before anything else."""

    def __init__(self, host: RayHost, name: str, *first: Any) -> None:
        self._host, self._name, self._first = host, name, first
        self._last: RayCall | None = None
        host.workers.add(name)

    def ask(self, what: str, *values: Any) -> RayCall:
        given = (*self._first, *values) if what == "open" else values
        self._last = RayCall(self._host, getattr(self._host.actor, what).remote(self._name, *given))
        return self._last

    def let_go(self) -> None:
        self._host.remove(self._name)

    def kill(self) -> None:
        """End the worker; the actor with it only where it is at work for it and does not answer."""
        if self._last is not None and not self._last.here():
            self._host.kill()
        else:
            self.let_go()


def _free_cpus() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0.0))


class RayLauncher:
    """A Ray of this run's own (two cores, small object store), or a cluster's by address.

    forks: a server to fork workers from that was started before; it is closed with the launcher, or at once where it
    does not fit. run: its name, for lines of the logs. copy: the coordinator's, of a run on object storage whose
    workers are to have copies of their own.
    """

    def __init__(
        self, resources: Resources, forks: ForkServer | None = None, *, run: str = "", copy: WorkingCopy | None = None
    ) -> None:
        import ray

        variables = worker_environment(resources.threads)
        self._resources, wait_s = resources, SLOW_STARTS * resources.placement_timeout_s
        self._copy = copy
        own = not (resources.address or starts_plainly())
        self._node = lean_node() if own else None
        self._logs = LogForm(resources.log_mb, resources.log_format, run)
        self._shared: dict[str, RayHost] = {}
        self._alone: set[str] = set()
        self._look_at = 0.0
        self._forks = fitting(forks, resources.threads, resources.address)
        require_answer(resources.address)
        forking = {} if self._forks is None else {"py_executable": self._forks.command}
        shipped = {} if resources.address is None else shipped_source()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # workers without an actor: none is ever used
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            with nullcontext() if self._node is None else self._node.beginning(wait_s):
                ray.init(
                    address=resources.address or "local",
                    include_dashboard=False if not resources.address else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": variables, **forking, **shipped},
                    object_store_memory=None if resources.address else OBJECT_STORE_BYTES,
                )
            self._head = None if resources.address is None else HeadWatch.of(resources.address)
        except BaseException as error:
            if self._forks is not None:
                self._forks.close()
            if resources.address is not None and isinstance(error, ConnectionError):
                raise StreamingError(not_joined(resources.address, error)) from error
            raise

    def start(self, name: str, build: Build, log: Path, ranks: int = 1, host: str | None = None) -> Handle:
        """Start a worker, in a process of its own if it was active when its host's process ended, since it may be
        the cause."""
        import ray

        if self._head is not None and self._head.silent:
            raise Gone(f"the head of Ray at {self._resources.address} does not answer")
        self._forget_ended()
        logs = [log, *(log.with_name(f"{log.stem}-rank{rank}{log.suffix}") for rank in range(1, ranks))]
        near = near_brokers(machines()) if self._resources.address and name == AUGMENTATION else []
        shared = host is not None and name not in self._alone
        places = [] if shared else self._places(name, ranks)
        group = self._reserved(name, ranks) if ranks > 1 and not near else None

        def give_back() -> None:
            if group is not None:
                ray.util.remove_placement_group(group)

        def unplaced(waited_s: float) -> str | None:
            return None if all(each.answered for each in hosts) else self._unplaced(name, ranks, group, waited_s)

        try:
            if host is not None and shared:
                hosts = [self._shared_host(host, log.parent)]
            else:
                left = host is not None and not self._resources.address  # its share is its host's, which it left
                cpus = 0.0 if left else self._resources.cpus_per_worker  # a cluster's head may have no core for workers
                nodes = [near[rank % len(near)] if near else None for rank in range(ranks)]
                hosts = [
                    self._host(cpus, own, group=group, rank=rank, near=nodes[rank], place=places[rank])
                    for rank, own in enumerate(logs)
                ]
            processes = [RayProcess(each, name, build, str(own)) for each, own in zip(hosts, logs, strict=True)]
            return RankHandle(name, processes, unplaced=unplaced, give_back=give_back, ended=self._limit_met)
        except BaseException:
            give_back()
            raise

    def lacks(self, more: int, *, of_one_model: bool = False) -> str | None:
        import ray

        if more <= 0:
            return None
        cpus, together = self._resources.cpus_per_worker, of_one_model and self._copy is not None
        bundles = [{"CPU": cpus}] * (more + together)
        tried = ray.util.placement_group(bundles, strategy="STRICT_PACK" if together else "PACK")
        fits = tried.wait(timeout_seconds=FITS_S)
        ray.util.remove_placement_group(tried)
        if fits:
            return None
        return (
            f"{len(bundles)} more processes of {cpus:g} CPU each find no place{' on one machine' if together else ''}, "
            f"{_free_cpus():g} CPU are free; ask for fewer, "
            "lower resources.cpus_per_worker, or give Ray more nodes"
        )

    def rest(self, interval_s: float) -> None:
        time.sleep(interval_s)

    @property
    def died(self) -> str | None:
        watched = self._node or self._head
        return None if watched is None else watched.died

    def _limit_met(self) -> str | None:
        return None if self._node is None else self._node.limit_met()

    # --- hosts -------------------------------------------------------------------------------------------------------

    def _host(
        self,
        cpus: float,
        log: Path,
        turn: Path | None = None,
        *,
        group: PlacementGroup | None = None,
        rank: int = 0,
        near: str | None = None,
        place: WorkerPlace | None = None,
    ) -> RayHost:
        """A new host: in its place of a reserved group; on the machine `near` while that has room; else anywhere, on a
        cluster spread over its machines."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        where: Any = "SPREAD" if self._resources.address else "DEFAULT"
        if group is not None:
            where = PlacementGroupSchedulingStrategy(group, rank)
        elif near is not None:
            where = NodeAffinitySchedulingStrategy(near, soft=True, _spill_on_unavailable=True)
        actor = ray.remote(ActorHost).options(num_cpus=cpus, max_restarts=0, name=None, scheduling_strategy=where)
        return RayHost(actor.remote(str(log), self._logs, None if turn is None else str(turn), place), turn)

    def _places(self, name: str, ranks: int) -> list[WorkerPlace | None]:
        """Places of a worker's new process, by rank: from now on earlier ones put nothing."""
        if (copy := self._copy) is None:
            return [None] * ranks
        try:
            successor = copy.begin_writer(name)
        except StreamingError as error:
            raise Died.of(error) from None
        assert copy.epoch is not None
        shared = uuid4().hex[:8] if self._shares_copy(name, ranks) else ""
        return [WorkerPlace(copy.url, copy.epoch, name, rank, successor, shared) for rank in range(ranks)]

    def _shares_copy(self, name: str, ranks: int) -> bool:
        """True for ranks that share a copy of the run, so that all must be on one machine."""
        return self._copy is not None and ranks > 1 and name != AUGMENTATION

    def _shared_host(self, kind: str, logs: Path) -> RayHost:
        """The first host of its kind that has a free slot; where none has, a new one."""
        for name in (f"{kind}-{number}" for number in count()):
            if name not in self._shared:
                cpus = self._resources.cpus_per_worker
                self._shared[name] = self._host(cpus, logs / f"{name}.log", logs / f"{name}.turn")
            if len(self._shared[name].workers) < self._resources.students_per_host:
                return self._shared[name]
        raise AssertionError("unreachable")

    def _forget_ended(self) -> None:
        """Make room for new hosts; a worker whose turn it was when its host ended is started in a process of its own
        from now on."""
        ended = {name: host for name, host in self._shared.items() if host.ended}
        self._alone |= {host.culprit for host in ended.values() if host.culprit is not None}
        for name in ended:
            del self._shared[name]

    def _reserved(self, name: str, ranks: int) -> PlacementGroup:
        """All or none: half a group would hold its places and never start. On as few machines as have room: ranks
        exchange rows at every step."""
        import ray

        bundles = [{"CPU": self._resources.cpus_per_worker}] * ranks
        return ray.util.placement_group(bundles, strategy="STRICT_PACK" if self._shares_copy(name, ranks) else "PACK")

    def _unplaced(self, name: str, ranks: int, group: PlacementGroup | None, waited_s: float) -> str | None:
        """Reason why an actor will not be placed, once the timeout has passed. One that has a place may start
        slowly."""
        import ray

        timeout_s, cpus = self._resources.placement_timeout_s, self._resources.cpus_per_worker
        if waited_s >= LOOK_S and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            if (limit := self._limit_met()) is not None:
                return f"no process for {name} within {waited_s:.0f} s: {limit}"
        if waited_s < timeout_s or (waited_s <= SLOW_STARTS * timeout_s and self._has_place(group)):
            return None
        total = ray.cluster_resources().get("CPU", 0.0)
        if not total:
            return (
                f"no place for {name} within {waited_s:.0f} s: no machine of Ray is there any more; start them, resume"
            )
        where = "on one machine, with a run on object storage" if self._shares_copy(name, ranks) else "all or none"
        many = f" ({ranks} ranks of {cpus:g}, {where})" if ranks > 1 else ""
        fewer = f"fewer {name} ranks, " if ranks > 1 else ""
        return (
            f"no place for {name} within {waited_s:.0f} s: it needs {ranks * cpus:g} CPU{many}, {_free_cpus():g} of "
            f"{total:g} are free; {fewer}lower resources.cpus_per_worker, give Ray more nodes, or raise "
            "resources.placement_timeout_s"
        )

    def _has_place(self, group: PlacementGroup | None) -> bool:
        import ray

        if group is None:
            return _free_cpus() >= self._resources.cpus_per_worker
        return bool(ray.util.placement_group_table(group)["state"] == "CREATED")

    def shutdown(self) -> None:
        import ray

        try:
            ray.shutdown()
        finally:
            if self._forks is not None:
                self._forks.close(FORKS_END_S)

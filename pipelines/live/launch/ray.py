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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pipelines.core.config.sections import Resources
from pipelines.live.launch.fork_server import ForkServer
from pipelines.live.launch.host import Build, Host, last_turn
from pipelines.live.launch.preloaded import fitting, starts_plainly, worker_environment
from pipelines.live.launch.ranks import RankHandle
from pipelines.live.launch.ray_node import LeanNode, PlainNode, lean_node, require_answer
from pipelines.live.launch.slots import Slots
from pipelines.live.rules.causes import Died, Gone
from pipelines.live.workers.report import Report
from pipelines.live.workers.worker import Orders

SLOW_STARTS = 5
FORKS_END_S = 3.0
OBJECT_STORE_BYTES = 100 << 20
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

    def rest(self, interval_s: float) -> None:
        """Pause about `interval_s` between two rounds of polling."""

    @property
    def died(self) -> str | None:
        """Reason why everything it started has died and nothing can be started; None while it lives."""

    def shutdown(self) -> None: ...


class _Host(Host):
    """The actor around workers."""

    def place(self, name: str) -> str:
        """Answered as soon as the process runs; nothing heavy has been imported yet."""
        import ray

        logging.info("%s: pid %d on %s", name, os.getpid(), ray.util.get_node_ip_address())
        return str(ray.util.get_node_ip_address())


class _RayAnswer:
    """A call that an actor works on."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def here(self) -> bool:
        import ray

        return bool(ray.wait([self.call], timeout=0)[0])

    def get(self, wait_s: float | None = None) -> Any:
        import ray

        try:
            return ray.get(self.call, timeout=wait_s)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError(f"no answer within {wait_s:.0f} s") from None
        except ray.exceptions.RayTaskError as error:
            died = error.cause if isinstance(error.cause, Died) else Died.of(error)
            raise Died(str(died), died.cause) from None
        except ray.exceptions.RayError as error:  # also of a machine out of memory, whose workers Ray ends
            raise Gone(str(error).strip().splitlines()[0]) from None


class _RayProcess:
    """An actor that holds one rank, or one student of several. `first`: what `open` is asked with, before anything
    else."""

    def __init__(self, actor: Any, name: str, *first: Any) -> None:
        self._actor, self._name, self._first = actor, name, first

    def ask(self, what: str, *values: Any) -> _RayAnswer:
        given = (*self._first, *values) if what == "open" else values
        return _RayAnswer(getattr(self._actor, what).remote(self._name, *given))

    def let_go(self) -> None:
        self.kill()

    def kill(self) -> None:
        import ray

        ray.kill(self._actor, no_restart=True)


class _HostEvents(NamedTuple):
    """Events of a shared actor: it answers, it has ended, a worker left it."""

    answers: Callable[[], None]
    ended: Callable[[], None]
    left: Callable[[], None]


class _SharedAnswer(_RayAnswer):
    """A call to an actor that others share."""

    def __init__(self, call: Any, events: _HostEvents) -> None:
        super().__init__(call)
        self._events = events

    def get(self, wait_s: float | None = None) -> Any:
        try:
            answer = super().get(wait_s)
        except Gone:
            self._events.ended()
            raise
        self._events.answers()
        return answer


class _SharedProcess(_RayProcess):
    """One worker of an actor that holds several. Killing it drops it from the actor; the actor itself is killed only
    where the worker is at work and does not answer."""

    def __init__(self, actor: Any, events: _HostEvents, name: str, *first: Any) -> None:
        super().__init__(actor, name, *first)
        self._events = events
        self._last: _SharedAnswer | None = None

    def ask(self, what: str, *values: Any) -> _RayAnswer:
        self._last = answer = _SharedAnswer(super().ask(what, *values).call, self._events)
        return answer

    def let_go(self) -> None:
        self._actor.drop.remote(self._name)  # after what it works on
        self._events.left()

    def kill(self) -> None:
        if self._last is not None and not self._last.here():
            super().kill()
            self._events.ended()
        else:
            self.let_go()


class _Places(NamedTuple):
    """Places of a worker's ranks, whether they are held, and how to release them."""

    each: list[Any]
    held: Callable[[], bool]
    give_back: Callable[[], None]


def _free_cpus() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0.0))


class RayLauncher:
    """A Ray of this run's own (two cores, small object store), or a cluster's by address.

    forks: a server to fork workers from that was started before; it is closed with the launcher, or at once where it
    does not fit.
    """

    def __init__(self, resources: Resources, forks: ForkServer | None = None) -> None:
        import ray

        variables = worker_environment(resources.threads)
        self._resources, wait_s = resources, SLOW_STARTS * resources.placement_timeout_s
        own = not (resources.address or starts_plainly())
        self._node: LeanNode | PlainNode = lean_node() if own else PlainNode()
        self._slots = Slots(resources.students_per_host)
        self._hosts: dict[str, Any] = {}
        self._running: set[str] = set()
        self._alone: set[str] = set()
        self._look_at = 0.0
        self._forks = fitting(forks, resources.threads, resources.address)
        require_answer(resources.address)
        forking = {} if self._forks is None else {"py_executable": self._forks.command}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # workers without an actor: none is ever used
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            with self._node.beginning(wait_s):
                ray.init(
                    address=resources.address or "local",
                    include_dashboard=False if not resources.address else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": variables, **forking},
                    object_store_memory=None if resources.address else OBJECT_STORE_BYTES,
                )
        except BaseException:
            if self._forks is not None:
                self._forks.close()
            raise

    def start(self, name: str, build: Build, log: Path, ranks: int = 1, host: str | None = None) -> Handle:
        """Start a worker, in a process of its own if it was active when its host's process ended, since it may be
        the cause."""
        if host is not None and name not in self._alone:
            return self._in_shared_host(name, build, log, host)
        cpus = self._resources.cpus_per_worker if host is None else 0.0  # its share is its host's, which it has left
        logs = [log, *(log.with_name(f"{log.stem}-rank{rank}{log.suffix}") for rank in range(1, ranks))]
        places = self._reserved(ranks) if ranks > 1 else self._anywhere()
        processes = [
            _RayProcess(self._actor(cpus, place, str(own), self._resources.log_mb), name, build, str(own))
            for own, place in zip(logs, places.each, strict=True)
        ]
        unplaced = partial(self._unplaced, name, places)
        return RankHandle(name, processes, unplaced=unplaced, give_back=places.give_back, ended=self._node.limit_met)

    def _actor(self, cpus: float, place: Any, *given: Any) -> Any:
        import ray

        host = ray.remote(_Host).options(num_cpus=cpus, max_restarts=0, name=None, scheduling_strategy=place)
        return host.remote(*given)

    def rest(self, interval_s: float) -> None:
        time.sleep(interval_s)

    @property
    def died(self) -> str | None:
        return self._node.died

    # --- workers that share an actor --------------------------------------------------------------------------------

    def _in_shared_host(self, name: str, build: Build, log: Path, kind: str) -> Handle:
        """In the first host of its kind that has a free slot; where none has, a new host is made."""
        host, logs, places = self._slots.assign(kind, name), log.parent, self._anywhere()
        if host not in self._hosts:
            given = (str(logs / f"{host}.log"), self._resources.log_mb, str(logs / f"{host}.turn"))
            self._hosts[host] = self._actor(self._resources.cpus_per_worker, places.each[0], *given)
        actor = self._hosts[host]
        events = _HostEvents(
            answers=partial(self._running.add, host),
            ended=partial(self._host_ended, host, actor, logs),
            left=partial(self._left, name, host, actor),
        )

        def unplaced(waited_s: float) -> str | None:
            return None if host in self._running else self._unplaced(name, places, waited_s)

        processes = [_SharedProcess(actor, events, name, build, str(log))]
        return RankHandle(name, processes, unplaced=unplaced, ended=self._node.limit_met)

    def _host_ended(self, host: str, actor: Any, logs: Path) -> None:
        """Its workers are started again in a new shared process; the one whose turn it was, in a process of its own."""
        if self._hosts.get(host) is not actor:
            return
        self._forget(host)
        if (culprit := last_turn(logs / f"{host}.turn")) is not None:
            self._alone.add(culprit)

    def _left(self, name: str, host: str, actor: Any) -> None:
        """Free its slot; a process without workers ends."""
        import ray

        if self._hosts.get(host) is actor and self._slots.release(name) == host:
            ray.kill(self._forget(host), no_restart=True)

    def _forget(self, host: str) -> Any:
        """Forget a host that has ended, so that the next worker of its kind gets a new one; returns its actor."""
        self._running.discard(host)
        self._slots.remove(host)
        return self._hosts.pop(host)

    # --- places ------------------------------------------------------------------------------------------------------

    def _anywhere(self) -> _Places:
        place = "SPREAD" if self._resources.address else "DEFAULT"
        return _Places([place], held=lambda: _free_cpus() >= self._resources.cpus_per_worker, give_back=lambda: None)

    def _reserved(self, ranks: int) -> _Places:
        """All or none: half a group would hold its places and never start. On a cluster, ranks spread over as many
        nodes as there are, for their memory and cores."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundles = [{"CPU": self._resources.cpus_per_worker}] * ranks
        group = ray.util.placement_group(bundles, strategy="SPREAD" if self._resources.address else "PACK")
        return _Places(
            [PlacementGroupSchedulingStrategy(group, rank) for rank in range(ranks)],
            held=lambda: ray.util.placement_group_table(group)["state"] == "CREATED",
            give_back=partial(ray.util.remove_placement_group, group),
        )

    def _unplaced(self, name: str, places: _Places, waited_s: float) -> str | None:
        """Reason why an actor will not be placed, once the timeout has passed. One that has a place may start
        slowly."""
        import ray

        timeout_s, cpus = self._resources.placement_timeout_s, self._resources.cpus_per_worker
        if waited_s >= LOOK_S and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            if (limit := self._node.limit_met()) is not None:
                return f"no process for {name} within {waited_s:.0f} s: {limit}"
        if waited_s < timeout_s or (waited_s <= SLOW_STARTS * timeout_s and places.held()):
            return None
        ranks, total = len(places.each), ray.cluster_resources().get("CPU", 0.0)
        if not total:
            return (
                f"no place for {name} within {waited_s:.0f} s: no machine of Ray is there any more; start them, resume"
            )
        many = f" ({ranks} ranks of {cpus:g}, all or none)" if ranks > 1 else ""
        fewer = f"fewer {name} ranks, " if ranks > 1 else ""
        return (
            f"no place for {name} within {waited_s:.0f} s: it needs {ranks * cpus:g} CPU{many}, {_free_cpus():g} of "
            f"{total:g} are free; {fewer}lower resources.cpus_per_worker, give Ray more nodes, or raise "
            "resources.placement_timeout_s"
        )

    def shutdown(self) -> None:
        import ray

        try:
            ray.shutdown()
        finally:
            if self._forks is not None:
                self._forks.close(FORKS_END_S)

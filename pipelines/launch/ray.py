"""Where workers run: each in a Ray actor of its own, or all in this process. The only import of ray.

Both launchers return handles with the same four verbs, and the coordinator does not distinguish them:

    handle.poll(orders) -> Report | None      None: nothing new yet. Raises Died when the worker is gone.
    handle.ask_to_close()                     at the end of its step; returns at once
    handle.close(wait_s) -> Report | None     lets it commit and leave; None when it did not within wait_s
    handle.kill()
    handle.node
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pipelines.config import Resources
from pipelines.launch.ranks import ADVANCE_S, RankHandle
from pipelines.rules import Died, Gone
from pipelines.run_dir import log_to
from pipelines.workers import Orders, Rendezvous, Report, Worker
from streaming.errors import BadInput

Build = Callable[[Rendezvous], Worker]

SLOW_STARTS = 5
ENVIRONMENT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS", "RAYON_NUM_THREADS")


class Handle(Protocol):
    node: str | None

    def poll(self, orders: Orders) -> Report | None: ...
    def ask_to_close(self) -> None: ...
    def close(self, wait_s: float) -> Report | None: ...
    def kill(self) -> None: ...


class Launcher(Protocol):
    def start(self, name: str, build: Build, log: Path, ranks: int = 1) -> Handle: ...
    def shutdown(self) -> None: ...


# --- in this process ---------------------------------------------------------------------------------------------


class LocalHandle:
    """A worker stepped by whoever polls it."""

    def __init__(self, build: Build) -> None:
        self.node: str | None = "local"
        self._build = build
        self._worker: Worker | None = None

    def poll(self, orders: Orders) -> Report | None:
        try:
            if self._worker is None:
                self._worker = self._build(Rendezvous())
                self._worker.open()
            return self._worker.advance(ADVANCE_S / 5, orders)
        except Exception as error:
            logging.getLogger(__name__).exception("worker failed")
            self.kill()
            raise Died.of(error) from error

    def ask_to_close(self) -> None:
        pass

    def close(self, wait_s: float) -> Report | None:
        if self._worker is None:
            return None
        worker, self._worker = self._worker, None
        worker.close()
        return worker.report()

    def kill(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.abandon()
            except Exception:  # the cause of its death is reported, not this
                logging.getLogger(__name__).exception("abandoning a worker")


class LocalLauncher:
    def start(self, name: str, build: Build, log: Path, ranks: int = 1) -> Handle:
        if ranks > 1:
            raise BadInput(f"{name} is to be {ranks} processes, and this launcher has one: leave --local out")
        return LocalHandle(build)

    def shutdown(self) -> None:
        pass


# --- in Ray actors -----------------------------------------------------------------------------------------------


class _Host:
    """The actor around a worker: builds it in its own process and passes the calls on."""

    def __init__(self, build: Build, log: str, log_mb: float) -> None:
        log_to(Path(log), log_mb)
        logging.getLogger("torchrec").setLevel(logging.WARNING)
        logging.raiseExceptions = False  # a full disk takes no log; the worker's death reports it
        self._build = build

    def place(self) -> str:
        """Answers as soon as the process runs; nothing heavy has been imported yet."""
        import ray

        logging.info("pid %d on %s", os.getpid(), ray.util.get_node_ip_address())
        return ray.util.get_node_ip_address()

    def port(self) -> int:
        """A port of this node that is free: where the ranks of this worker meet."""
        with socket.socket() as free:
            free.bind(("", 0))
            return int(free.getsockname()[1])

    def open(self, rendezvous: Rendezvous) -> None:
        try:
            self._worker = self._build(rendezvous)
            self._worker.open()
        except Exception as error:
            logging.exception("open failed")
            raise Died.of(error) from None  # the chain of causes does not leave this process

    def advance(self, budget_s: float, orders: Orders) -> Report:
        try:
            return self._worker.advance(budget_s, orders)
        except Exception as error:
            logging.exception("step failed")
            raise Died.of(error) from None

    def close(self) -> Report:
        try:
            self._worker.close()
        except Exception:
            logging.exception("close failed")
            raise
        return self._worker.report()


class _RayAnswer:
    """A call that an actor works on."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def here(self) -> bool:
        import ray

        return bool(ray.wait([self._call], timeout=0)[0])

    def get(self, wait_s: float | None = None) -> Any:
        import ray

        try:
            return ray.get(self._call, timeout=wait_s)
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError(f"no answer within {wait_s:.0f} s") from None
        except ray.exceptions.RayTaskError as error:
            died = error.cause if isinstance(error.cause, Died) else Died.of(error)
            raise Died(str(died), died.cause) from None
        except ray.exceptions.RayError as error:  # also of a machine out of memory, whose workers Ray ends
            raise Gone(str(error).strip().splitlines()[0]) from None


class _RayProcess:
    """An actor that holds one rank."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def ask(self, what: str, *values: Any) -> _RayAnswer:
        return _RayAnswer(getattr(self._actor, what).remote(*values))

    def kill(self) -> None:
        import ray

        ray.kill(self._actor, no_restart=True)


class _Places(NamedTuple):
    """Where a worker's ranks are to be started, whether the places are held, and how to release them."""

    each: list[Any]
    held: Callable[[], bool]
    give_back: Callable[[], None]


def _free_cpus() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0.0))


class RayLauncher:
    """A Ray of this run's own (two cores, small object store), or a cluster's by address."""

    def __init__(self, resources: Resources) -> None:
        import ray

        threads = str(resources.threads)
        variables = dict.fromkeys(ENVIRONMENT, threads) | {"OMP_WAIT_POLICY": "passive", "RAY_DEDUP_LOGS": "0"}
        self._resources = resources
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray.init(
            address=resources.address or "local",
            include_dashboard=False if not resources.address else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": variables},
            object_store_memory=None if resources.address else resources.object_store_mb << 20,
        )

    def start(self, name: str, build: Build, log: Path, ranks: int = 1) -> Handle:
        logs = [log, *(log.with_name(f"{log.stem}-rank{rank}{log.suffix}") for rank in range(1, ranks))]
        places = self._reserved(ranks) if ranks > 1 else self._anywhere()
        processes = [self._process(build, own, place) for own, place in zip(logs, places.each, strict=True)]
        return RankHandle(name, processes, unplaced=partial(self._unplaced, name, places), give_back=places.give_back)

    def _process(self, build: Build, log: Path, place: Any) -> _RayProcess:
        import ray

        cpus = self._resources.cpus_per_worker
        host = ray.remote(_Host).options(num_cpus=cpus, max_restarts=0, name=None, scheduling_strategy=place)
        return _RayProcess(host.remote(build, str(log), self._resources.log_mb))

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
        """Why an actor will not be placed, once the timeout has passed. One that has a place may start slowly."""
        import ray

        timeout_s, cpus = self._resources.placement_timeout_s, self._resources.cpus_per_worker
        if waited_s < timeout_s or (waited_s <= SLOW_STARTS * timeout_s and places.held()):
            return None
        ranks, total = len(places.each), ray.cluster_resources().get("CPU", 0.0)
        many = f" ({ranks} ranks of {cpus:g}, all or none)" if ranks > 1 else ""
        fewer = f"fewer {name} ranks, " if ranks > 1 else ""
        return (
            f"no place for {name} within {waited_s:.0f} s: it needs {ranks * cpus:g} CPU{many}, {_free_cpus():g} of "
            f"{total:g} are free; {fewer}lower resources.cpus_per_worker, give Ray more nodes, or raise "
            "resources.placement_timeout_s"
        )

    def shutdown(self) -> None:
        import ray

        ray.shutdown()

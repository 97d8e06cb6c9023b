"""Where workers run: each in a Ray actor of its own, or all in this process. The only import of ray.

Both launchers give out handles with the same four verbs, and the coordinator cannot tell them apart:

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
from pathlib import Path
from typing import Any, Protocol

from pipelines.causes import cause_of
from pipelines.config import Resources
from pipelines.policies import Cause
from pipelines.workers.base import Orders, Report, Worker

Build = Callable[[], Worker]

SLOW_STARTS = 5
ADVANCE_S = 0.5  # how long a worker steps before it reports
ENVIRONMENT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS", "RAYON_NUM_THREADS")


class Died(Exception):
    """A worker is gone, or cannot go on."""

    def __init__(self, reason: str, cause: Cause = Cause.CRASH) -> None:
        super().__init__(reason, cause)  # both, so that it survives the way from one process to another
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[0])

    @staticmethod
    def of(error: Exception) -> Died:
        return Died(f"{type(error).__name__}: {error}", cause_of(error))


class Handle(Protocol):
    node: str | None

    def poll(self, orders: Orders) -> Report | None: ...
    def ask_to_close(self) -> None: ...
    def close(self, wait_s: float) -> Report | None: ...
    def kill(self) -> None: ...


class Launcher(Protocol):
    def start(self, name: str, build: Build, log: Path) -> Handle: ...
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
                self._worker = self._build()
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
            except Exception:  # what it died of is told, not this
                logging.getLogger(__name__).exception("abandoning a worker")


class LocalLauncher:
    def start(self, name: str, build: Build, log: Path) -> Handle:
        return LocalHandle(build)

    def shutdown(self) -> None:
        pass


# --- in Ray actors -----------------------------------------------------------------------------------------------


class _Host:
    """The actor around a worker: builds it in its own process and passes the calls on."""

    def __init__(self, build: Build, log: str) -> None:
        logging.basicConfig(
            filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
        )
        logging.getLogger("torchrec").setLevel(logging.WARNING)
        logging.raiseExceptions = False  # a full disk takes no log, and that is told elsewhere
        self._build = build

    def place(self) -> str:
        """Answers as soon as there is a process; nothing heavy was imported yet."""
        import ray

        logging.info("pid %d on %s", os.getpid(), ray.util.get_node_ip_address())
        return ray.util.get_node_ip_address()

    def open(self) -> None:
        try:
            self._worker = self._build()
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


class RayHandle:
    def __init__(self, name: str, actor: Any, resources: Resources) -> None:
        self.node: str | None = None
        self._name = name
        self._actor = actor
        self._resources = resources
        self._created = time.monotonic()
        self._placing = actor.place.remote()
        self._opening = actor.open.remote()
        self._pending: Any = None
        self._closing: Any = None

    def poll(self, orders: Orders) -> Report | None:
        import ray

        try:
            if self.node is None:
                if not ray.wait([self._placing], timeout=0)[0]:
                    self._check_placed()
                    return None
                self.node = ray.get(self._placing)
            if self._opening is not None:
                if not ray.wait([self._opening], timeout=0)[0]:
                    return None
                ray.get(self._opening)
                self._opening = None
            if self._pending is None:
                self._pending = self._actor.advance.remote(ADVANCE_S, orders)
            if not ray.wait([self._pending], timeout=0)[0]:
                return None
            report: Report = ray.get(self._pending)
            self._pending = self._actor.advance.remote(ADVANCE_S, orders) if not report.done else None
            return report
        except ray.exceptions.RayTaskError as error:
            self.kill()
            died = error.cause if isinstance(error.cause, Died) else Died.of(error)
            raise Died(str(died), died.cause) from None
        except ray.exceptions.RayError as error:  # also of a machine out of memory, whose workers Ray ends
            self.kill()  # one that is only out of reach must not go on beside its successor
            raise Died(str(error).strip().splitlines()[0]) from None

    def _check_placed(self) -> None:
        """Complain when there is no room for the actor; one that has room and is slow to start is waited for."""
        import ray

        waited, needed = time.monotonic() - self._created, self._resources.cpus_per_worker
        if waited < self._resources.placement_timeout_s:
            return
        free, total = ray.available_resources().get("CPU", 0.0), ray.cluster_resources().get("CPU", 0.0)
        if free < needed or waited > SLOW_STARTS * self._resources.placement_timeout_s:
            self.kill()
            raise Died(
                f"no place for {self._name} within {waited:.0f} s: it needs {needed:g} CPU, {free:g} of {total:g} are "
                "free; lower resources.cpus_per_worker, give Ray more nodes, or raise resources.placement_timeout_s",
                Cause.PERMANENT,
            )

    def ask_to_close(self) -> None:
        if self._opening is None and self._closing is None:
            self._closing = self._actor.close.remote()

    def close(self, wait_s: float) -> Report | None:
        """A worker that is not open yet has nothing to commit, and is not waited for."""
        import ray

        self.ask_to_close()
        report: Report | None = None
        if self._closing is not None:
            try:
                report = ray.get(self._closing, timeout=wait_s)
            except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
                logging.getLogger(__name__).warning("%s did not close: %s", self._name, error)
        self.kill()
        return report

    def kill(self) -> None:
        import ray

        ray.kill(self._actor, no_restart=True)


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

    def start(self, name: str, build: Build, log: Path) -> Handle:
        import ray

        host = ray.remote(_Host).options(
            num_cpus=self._resources.cpus_per_worker,
            max_restarts=0,
            name=None,
            scheduling_strategy="SPREAD" if self._resources.address else "DEFAULT",
        )
        return RayHandle(name, host.remote(build, str(log)), self._resources)

    def shutdown(self) -> None:
        import ray

        ray.shutdown()

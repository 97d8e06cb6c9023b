"""A run on a Ray cluster that others started: its machines are examined, and its head is watched.

auto          the cluster that this machine is of
HOST:PORT     its head's, of which this machine is one
ray://H:P     any; this machine need not be one of them
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.launch.machine_look import PACKAGES, PROBE, Expected, MachineReport, expected, instructions, look
from streaming.errors import BadInput
from streaming.store.lock import file_lock
from streaming.store.working_copy import copy_of

BROKER = "broker"
"""The custom resource of machines near a broker: `ray start --resources '{"broker": 1}'`."""

LOOK_S = 120.0
"""For a machine to fetch the source and answer."""
PROBE_EVERY_S, PROBE_S, AWAY_S = 2.0, 3.0, 10.0


class Machine(NamedTuple):
    """A live machine of the cluster."""

    id: str
    name: str
    resources: dict[str, float]


def machines() -> list[Machine]:
    """The cluster's live machines, in the order of their ids."""
    import ray

    return sorted(
        Machine(node["NodeID"], f"{node['NodeManagerHostname']} (node {node['NodeID'][:8]})", node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    )


def shipped_source() -> dict[str, Any]:
    """Part of a `runtime_env` by which every machine gets this source: it needs the pinned packages and nothing
    else."""
    return {"py_modules": list(PACKAGES), "excludes": ["**/__pycache__/**"]}


def not_joined(address: str, error: Exception) -> str:
    """Message for a cluster that answers and does not let this process in.

    >>> print(not_joined("auto", ConnectionError("Could not find any running Ray instance.")))
    Ray at auto was not joined: Could not find any running Ray instance. See `ray status` on a machine of it
    """
    said = str(error).strip().splitlines()[-1].rstrip(".")
    return f"Ray at {address} was not joined: {said}. See `ray status` on a machine of it"


def near_brokers(found: Sequence[Machine]) -> list[str]:
    """The machines that augmentation is to be on: those that offer the resource `broker`.

    >>> near_brokers([Machine("a", "one", {"CPU": 2.0}), Machine("b", "two", {"CPU": 2.0, "broker": 1.0})])
    ['b']
    """
    return [machine.id for machine in found if machine.resources.get(BROKER)]


def require_machines(
    run_dir: RunDir, brokers: Sequence[tuple[str, int]], inputs: Sequence[str], say: Callable[[str], None]
) -> None:
    """Check that every machine with room for workers can take part in the run.

    brokers   (host, port) of each
    inputs    files and folders, beside the run directory, that workers read

    Raises BadInput with what each lacks.
    """
    found = [machine for machine in machines() if machine.resources.get("CPU")]
    if not found:
        raise BadInput(
            "no machine of Ray has a core for workers; start some with `ray start --address=HEAD:PORT`, and look with "
            "`ray status`"
        )
    url = None if (copy := copy_of(run_dir.root)) is None else copy.url
    wanted = expected(run_dir.root.absolute(), brokers, inputs, url)
    with ExitStack() as stack:
        held = stack.enter_context(file_lock(wanted.probe))
        assert held, "the run directory's lock is this coordinator's"
        reports = _look_everywhere(found, wanted)
    wanted.probe.unlink()
    if copy is not None:
        copy.store.delete([PROBE])
    unfit = {name: each.lacks for name, each in reports.items() if each.lacks}
    if unfit:
        raise BadInput(
            f"{len(unfit)} of {len(found)} machines of Ray cannot take part:\n"
            + "\n".join(f"  {name}: {words}" for name, lacks in unfit.items() for words in lacks)
            + f"\nEach needs {'the run directory at the same path (a shared folder)' if url is None else url}, the "
            "brokers, the pinned packages, and what the config names; see docs/operations/cluster.md"
        )
    if len({tuple(each.instructions) for each in reports.values()} | {tuple(instructions())}) > 1:
        say(
            "the machines have processors with different instructions: a worker that moves from one to another "
            "computes the last bits of its sums differently"
        )


def _look_everywhere(found: Sequence[Machine], wanted: Expected) -> dict[str, MachineReport]:
    """Answers by machine; one that does not answer lacks that."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(look)
    asked = {
        machine.name: task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False)
        ).remote(wanted)
        for machine in found
    }
    reports, end = {}, time.monotonic() + LOOK_S
    for name, reference in asked.items():
        try:
            reports[name] = ray.get(reference, timeout=max(0.1, end - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            reports[name] = MachineReport([f"it did not answer within {LOOK_S:.0f} s"], instructions())
        except ray.exceptions.RayError as error:
            words = str(error).strip().splitlines()[-1]
            reports[name] = MachineReport([f"it cannot run a task: {words}"], instructions())
    return reports


class HeadWatch:
    """A watch over the head that this process is connected to.

    Ray ends a process that has not reached its head for a minute, without a word; a run says so before, and is resumed.
    """

    def __init__(self, address: str, head: tuple[str, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._head, self._clock = address, head, clock
        self._next = clock()
        self._silent_since: float | None = None

    @classmethod
    def of(cls, address: str) -> HeadWatch:
        """The watch over the head of the cluster that this process has joined by `address`."""
        import ray

        head = address.removeprefix("ray://") if address.startswith("ray://") else ray.get_runtime_context().gcs_address
        host, _, port = head.rpartition(":")
        return cls(address, (host.strip("[]"), int(port)))

    @property
    def silent(self) -> bool:
        """True if the head did not answer when it was asked last, at most `PROBE_EVERY_S` ago: a call of Ray would wait
        for it."""
        if self._clock() >= self._next:
            self._next = self._clock() + PROBE_EVERY_S
            try:
                socket.create_connection(self._head, timeout=PROBE_S).close()
                self._silent_since = None
            except OSError:
                self._silent_since = self._clock() if self._silent_since is None else self._silent_since
        return self._silent_since is not None

    @property
    def died(self) -> str | None:
        """Message once the head has not answered for `AWAY_S`; None before."""
        if not self.silent or self._clock() - (self._silent_since or 0.0) < AWAY_S:
            return None
        return (
            f"the head of Ray at {self._address} has not answered for {AWAY_S:.0f} s; what was committed is kept: "
            "start it again (`ray start --head`), and its machines, then resume with the same command"
        )

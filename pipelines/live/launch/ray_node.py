"""The node of the run's own Ray: started without unused processes, and watched.

Ray starts, one after the other, a dashboard (also where it is told to include none: it then has no page), an
autoscaler, and a reader of logs, which are not sent to the driver. They take 1.7 s of a core, 280 MB, and a second to
end.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipelines.core.patched import patched
from streaming.errors import BadInput, StreamingError
from streaming.ports import free_port
from streaming.process_limit import met_limit

USED = ("raylet", "gcs_server")
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
NOT_IN_USE = -1  # as Ray's agents say it
ANSWER_S = 10.0
LOG_LINES = 5
LOG_BYTES = 20_000
LATE_S = 60.0


def lean_node() -> LeanNode:
    from ray._private import node, services
    from ray._raylet import persist_port  # type: ignore[attr-defined]

    return LeanNode(node.Node, services.get_node, persist_port)


class LeanNode:
    """Ray's node on this machine, after its start.

    node                               its class, `ray._private.node.Node`
    known(gcs_address, node_id)        raises RuntimeError while the rest of Ray does not know it
    store_port(folder, node, name, n)  the file in which an agent of it would say so
    """

    def __init__(self, node: Any, known: Callable[[str, str], Any], store_port: Callable[[str, str, str, int], None]):
        self._class, self._known, self._store_port = node, known, store_port
        self._node: Any = None

    @contextmanager
    def beginning(self, wait_s: float) -> Iterator[None]:
        """Context for starting a node without unused processes; it gets `wait_s` to come up while its processes live. A
        release of Ray that begins them otherwise has them.

        Raises StreamingError for one that does not come up, with its log's last lines; none of it is left then.
        """
        begin_head, begin = self._class.start_head_processes, self._class.start_ray_processes
        began = time.monotonic()

        def head(node: Any) -> None:
            self._node = node
            begin_head(node)

        def rest(node: Any) -> None:
            self._without_agents()
            begin(node)
            self._wait(began + wait_s)

        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(round(wait_s)))
        os.environ.setdefault("RAY_agent_register_timeout_ms", str(round(1000 * wait_s)))
        own = {"start_api_server": _no_page, "start_monitor": _nothing, "start_log_monitor": _nothing}
        try:
            with patched(self._class, **own, start_head_processes=head, start_ray_processes=rest):
                yield
        except Exception as error:
            raise StreamingError(self._not_up(error, time.monotonic() - began)) from error

    def _without_agents(self) -> None:
        """A raylet gives up 15 s after its start, whatever it is told, where two Python programs have not said yet at
        which ports they listen; a busy machine takes longer to import what they need."""
        self._node._ray_params.runtime_env_agent_port = free_port()
        for unused in AGENT_PORTS:
            self._store_port(self._node.get_session_dir_path(), self._node.node_id, unused, NOT_IN_USE)

    def _wait(self, until: float) -> None:
        """One of whose processes has ended is not waited for."""
        while time.monotonic() < until and self._ended() is None:
            with suppress(RuntimeError):
                self._known(self._node.gcs_address, self._node.node_id)
                return
            time.sleep(0.1)
        raise TimeoutError("its raylet does not register")

    def _not_up(self, error: Exception, waited_s: float) -> str:
        said, ended = str(error).strip().partition("\n")[0] or type(error).__name__, self._ended()
        process, how = ended or (USED[0], said)
        try:
            slow = "a busy machine takes longer: raise resources.placement_timeout_s"
            why = met_limit(error) or self.limit_met() or slow
            words = f"Ray did not come up here within {waited_s:.0f} s ({how}); {why}{self._log_of(process)}"
        finally:
            if self._node is not None:
                with suppress(Exception):
                    self._node.kill_all_processes(check_alive=False, allow_graceful=False)
        return words

    def _ended(self) -> tuple[str, str] | None:
        """The process of it that has ended, and how; None while all live."""
        for kind in USED if self._node is not None else ():
            for each in self._node.all_processes.get(kind, ()):
                if (code := each.process.poll()) is not None:
                    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                    return kind, f"its process {kind} {how}"
        return None

    @property
    def died(self) -> str | None:
        """Message if the node has died; None while it lives."""
        if (ended := self._ended()) is None:
            return None
        process, how = ended
        limit = "" if (met := self.limit_met()) is None else f"; {met}"
        return f"Ray has died on this machine: {how}; what was committed is kept{limit}{self._log_of(process)}"

    def limit_met(self) -> str | None:
        """Remedy if one of its processes or workers recently failed to start a process or thread; None otherwise, or
        if they are on other machines."""
        late = time.time() - LATE_S
        for log in self._logs.glob("*.*"):
            with suppress(OSError):
                if log.stat().st_mtime >= late and (words := met_limit(_end_of(log))) is not None:
                    return words
        return None

    @property
    def _logs(self) -> Path:
        return Path("/nowhere") if self._node is None else Path(self._node.get_logs_dir_path())

    def _log_of(self, process: str) -> str:
        for log in (self._logs / f"{process}.err", self._logs / f"{process}.out"):
            with suppress(OSError):
                if lines := [line for line in _end_of(log).split("\n") if line.strip()][-LOG_LINES:]:
                    return f"; last lines of {log}:\n" + "\n".join(lines)
        return ""


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace")


def require_answer(address: str | None) -> None:
    """Raise BadInput if no cluster answers at the address, on which Ray would wait for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise BadInput(
            f"no Ray answers at {address} ({error}): see whether resources.address is its head's, and whether it runs "
            "(`ray status`); null is a Ray of the run's own"
        ) from None


def _no_page(node: Any, **asked: Any) -> None:
    node._webui_url = ""  # what workers are told of it


def _nothing(node: Any) -> None:
    pass

"""The embedded broker: Apache Kafka in KRaft mode, one node on the loopback address, installed from pip packages only.

It runs as a process of its own, which outlives the one that started it. All its files are in one directory:

    broker.json         its ports, cluster id and process, as last started
    server.properties   written anew at each start
    data/               the topics
    broker.log          rolled at 10 MB; broker.out holds what Java itself had to say
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from streaming.broker.config import LOG4J2_PROPERTIES, BrokerSettings, java, server_properties
from streaming.broker.formatting import format_as_kept, is_formatted, keep, random_id
from streaming.broker.jars import cache_folder
from streaming.errors import BadInput, DiskFull, StreamingError
from streaming.ports import HOST, free_port, occupant
from streaming.process_limit import met_limit
from streaming.store.files import write_text
from streaming.store.lock import file_lock

POLL_S = 0.05
KILLED_S = 30.0
"""How long the system may take to end a process that was killed."""


class RunningBroker(NamedTuple):
    """A broker that answers."""

    bootstrap_servers: str
    pid: int
    port: int


class LocalBroker:
    """The embedded broker with its data in `directory`.

    >>> import tempfile
    >>> LocalBroker(Path(tempfile.mkdtemp())).status() is None
    True
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        port: int | None = None,
        heap_mb: int = 512,
        max_message_bytes: int = 16 * 2**20,
        retention_ms: int = -1,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self.directory = Path(directory).absolute()
        self.settings = BrokerSettings(
            port=port,
            heap_mb=heap_mb,
            max_message_bytes=max_message_bytes,
            retention_ms=retention_ms,
            properties=dict(properties or {}),
            java_options=list(java_options),
        )
        self._state_file = self.directory / "broker.json"

    def status(self) -> RunningBroker | None:
        """The broker if its process runs, else None (also where another process has the pid of a stale broker.json)."""
        state = self._state()
        process = self._process(state)
        if process is None:
            return None
        return RunningBroker(f"{HOST}:{state['port']}", process.pid, state["port"])

    def start(self, wait_s: float = 120.0) -> RunningBroker:
        """Start it, or find it running, and wait until it answers. Data and ports are those of the last start.

        Raises BadInput for an occupied port or a directory that cannot be written; DiskFull; StreamingError when the
        broker dies or does not answer within `wait_s` (with the last lines of its log).
        """
        self._check_directory()
        with file_lock(self.directory / "lock", wait_s=None):  # two starts at once give one broker
            running = self.status()
            if running is None:
                running = self._launch()
            self._wait_until_open(running, wait_s)
            return running

    def check_port(self) -> None:
        """Raise BadInput if another process already listens on the broker's configured port."""
        if self.status() is None:
            self._port(self._state())

    def stop(self, wait_s: float = 20.0) -> bool:
        """Ask the broker to end, and end it after `wait_s`. Returns False when none ran. Its data stay.

        It is gone when this returns: one that is still dying would be found by the next start, and taken for alive."""
        process = self._process(self._state())
        if process is None:
            return False
        for sign, patience_s in ((signal.SIGTERM, wait_s), (signal.SIGKILL, KILLED_S)):
            if self._alive(process):
                process.send_signal(sign)
                deadline = time.monotonic() + patience_s
                while self._alive(process) and time.monotonic() < deadline:
                    time.sleep(POLL_S)
        return True

    def log_tail(self, lines: int = 15) -> str:
        """The last lines that Java and the broker wrote."""
        tail = []
        for name in ("broker.out", "broker.log"):
            path = self.directory / name
            if path.exists():
                tail += path.read_text(errors="replace")[-20_000:].splitlines()[-lines:]
        return "\n".join(tail)

    def _launch(self) -> RunningBroker:
        self._end_unrecorded()
        state = self._state()
        port = self._port(state)
        controller_port = state.get("controller_port")
        if controller_port in (None, port) or occupant(controller_port) is not None:
            controller_port = free_port(but=port)
        properties = self.directory / "server.properties"
        properties.write_text(server_properties(self.settings, port, controller_port))
        (self.directory / "log4j2.properties").write_text(LOG4J2_PROPERTIES)
        output = self.directory / "broker.out"
        (self.directory / "broker.log").unlink(missing_ok=True)
        output.unlink(missing_ok=True)
        with output.open("wb") as out:
            command = java(self.settings, "kafka.Kafka", properties.name)
            if not is_formatted(self.directory / "data"):
                self._format(properties, out)
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        created = psutil.Process(process.pid).create_time()
        process.returncode = 0  # the broker is to outlive this process: its Popen object must not wait for it
        state |= {"port": port, "controller_port": controller_port, "pid": process.pid, "created": created}
        write_text(self._state_file, json.dumps(state))
        return RunningBroker(f"{HOST}:{port}", process.pid, port)

    def _end_unrecorded(self) -> None:
        """End a broker of this directory that broker.json does not know: whoever started it was killed before that was
        written. Two that write the same topics would tear them."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if "kafka.Kafka" in process.cmdline() and Path(process.cwd()) == self.directory:
                    process.kill()
                    process.wait(KILLED_S)

    def _format(self, properties: Path, out: Any) -> None:
        data, jars, as_usual = self.directory / "data", cache_folder(), not self.settings.properties
        if as_usual and format_as_kept(data, jars):
            return
        tool = ("kafka.tools.StorageTool", "format", "-t", random_id(), "-c", properties.name)
        command = java(self.settings, *tool)
        if subprocess.run(command, cwd=self.directory, stdout=out, stderr=out, check=False).returncode != 0:
            raise StreamingError(f"the broker's data directory {data} cannot be formatted; it said:\n{self.log_tail()}")
        if as_usual:
            keep(data, jars)

    def _wait_until_open(self, running: RunningBroker, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        process = psutil.Process(running.pid) if psutil.pid_exists(running.pid) else None
        while True:
            with closing(socket.socket()) as probe:
                if probe.connect_ex((HOST, running.port)) == 0:
                    return
            if process is None or not self._alive(process):
                log_end = self.log_tail()
                limit = "" if (met := met_limit(log_end)) is None else f"{met}; "
                raise StreamingError(
                    f"the broker ended while starting; {limit}its log is {self.directory / 'broker.log'}; last lines:\n"
                    f"{log_end}"
                )
            if time.monotonic() > deadline:
                raise StreamingError(
                    f"the broker (pid {running.pid}) did not open port {running.port} within {wait_s:g} s; it still "
                    f"runs: try again with a longer wait, or stop it; last lines of its log:\n{self.log_tail()}"
                )
            time.sleep(POLL_S)

    def _port(self, state: dict[str, Any]) -> int:
        """The configured port, which must be free, else the one of the last start, else any."""
        wanted = self.settings.port
        if wanted is not None:
            owner = occupant(wanted)
            if owner is not None:
                raise BadInput(
                    f"port {wanted} on {HOST} is occupied by {owner}; stop that process, set the broker's port "
                    "(`kafka.port`) to a free one or leave it out (any free port will do), or set "
                    "`kafka.bootstrap_servers` if that is your Kafka"
                )
            return wanted
        last_port: int | None = state.get("port")
        return last_port if last_port is not None and occupant(last_port) is None else free_port()

    def _check_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / "lock").touch()
        except OSError as error:
            raise BadInput(
                f"the broker's directory {self.directory} cannot be written: {error.strerror}; choose another run "
                "directory, or change its permissions"
            ) from error
        free = shutil.disk_usage(self.directory).free
        if free < self.settings.min_free_bytes:
            raise DiskFull(
                f"the disk of {self.directory} has {free / 2**20:,.0f} MiB free, the broker needs at least "
                f"{self.settings.min_free_bytes / 2**20:,.0f} MiB; free some, or choose a run directory on another disk"
            )

    def _state(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._state_file.read_text()))
        except FileNotFoundError:
            return {}

    def _process(self, state: dict[str, Any]) -> psutil.Process | None:
        """The recorded process, if it is still the one we started."""
        try:
            process = psutil.Process(state["pid"])
            ours = abs(process.create_time() - state["created"]) < 1 and "kafka.Kafka" in process.cmdline()
        except (KeyError, psutil.NoSuchProcess, psutil.ZombieProcess):
            return None
        return process if ours and self._alive(process) else None

    @staticmethod
    def _alive(process: psutil.Process) -> bool:
        with suppress(ChildProcessError):  # a child of ours that has died would stay as a zombie
            os.waitpid(process.pid, os.WNOHANG)
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

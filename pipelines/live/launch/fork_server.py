"""Fork server: processes that begin with everything imported, forked from one that has imported it once.

    owner ──starts──► server: imports, then waits ──fork──► process, with the descriptors, environment and folder of the
    whoever starts a process runs `command SCRIPT …` ──asks──┘   one that asked; it runs SCRIPT as its main module

To import what a worker needs takes seconds of a core and hundreds of megabytes. Forks share both: a page of memory is
copied when one of them writes to it. The server has one thread, so a fork is whole. It ends when its owner does.

The server is a process that begins anew, or a fork of its owner itself, which then shares with it what it has imported;
such an owner has no thread but one when it makes it (jemalloc's, in Arrow and Delta, are made for forks), and has had
the server's environment from its first import on.

Some packages keep what the environment says as they are imported; those of `last` are imported in the environment of
the first process that is asked for, which is taken to hold for all.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import NamedTuple, NoReturn

import psutil

from pipelines.live.launch import forked

STDIN = 0


class ForkServer:
    """A server in a process of its own, with `environment` added, that imports `modules`; and `last` when the first
    process is requested.

    It can be asked at once: who asks waits until all is imported. One that has died is done without: whoever asks
    becomes the process itself, and imports for itself what it needs.
    """

    def __init__(
        self,
        modules: Sequence[str],
        environment: Mapping[str, str],
        last: Sequence[str] = (),
        *,
        of_owner: bool = False,
    ) -> None:
        """`of_owner`: the server is a fork of this process."""
        self.environment = dict(environment)
        self._folder = Path(tempfile.mkdtemp(prefix="exfm-"))  # its owner's alone: what is asked for is run
        path = self._folder / "socket"
        self.command = shlex.join([sys.executable, "-IS", forked.__file__, str(path), sys.executable])
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen(128)
            if of_owner:
                self._process: _Fork | subprocess.Popen[bytes] = _Fork.going_on(listening, last, modules)
                return
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listening.fileno()), ",".join(last), *modules],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self, forks_end_s: float | None = None) -> None:
        """Stop the server in any state. What it forked lives on; for `forks_end_s` at most, where that is given: a
        fork that stands still would for ever. May be called again."""
        forks = [] if forks_end_s is None else self._forks()
        if isinstance(self._process, _Fork):
            self._process.end()
        else:
            assert self._process.stdin is not None
            self._process.kill()  # before its standard input ends: else it may begin to end by itself
            self._process.wait()
            self._process.stdin.close()
        for fork in psutil.wait_procs(forks, forks_end_s)[1]:
            with suppress(psutil.Error):
                fork.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _forks(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []


class _Fork:
    """A server that goes on from where its owner was. `lifeline`: the owner's end of its standard input; the server
    ends when that is closed."""

    def __init__(self, pid: int, lifeline: int) -> None:
        self.pid, self._lifeline, self._ended = pid, lifeline, False

    @classmethod
    def going_on(cls, listening: socket.socket, last: Sequence[str], modules: Sequence[str]) -> _Fork:
        servers_end, lifeline = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(lifeline)
            os.dup2(servers_end, STDIN)
            _run_and_exit(listening, last, modules)
        os.close(servers_end)
        return cls(pid, lifeline)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            os.kill(self.pid, signal.SIGKILL)  # before its lifeline ends: else it may begin to end by itself
            os.waitpid(self.pid, 0)
            os.close(self._lifeline)


def _run_and_exit(listening: socket.socket, last: Sequence[str], modules: Sequence[str]) -> NoReturn:
    """Serve, and end as a process does that has run to its end: what its owner was at is not gone on with."""
    status = 1
    try:
        _main(listening.detach(), last, modules)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing's forks do
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _Asked(NamedTuple):
    """Request for a fork: what it runs, and as what."""

    script: list[str]
    environment: dict[str, str]
    folder: str

    def settle(self) -> None:
        """Take over its environment."""
        os.environ.clear()
        os.environ.update(self.environment)

    def begin(self, descriptors: Sequence[int]) -> None:
        """Make this process the one that was asked for."""
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        self.settle()
        os.chdir(self.folder)
        sys.argv = self.script
        sys.path[0] = str(Path(self.script[0]).parent)
        gc.enable()


def _serve(listening: socket.socket, last: Sequence[str]) -> _Asked | None:
    """Fork for whoever asks, until standard input ends with the owner: None then. In a fork: what it is to run."""
    waiting = list(last)
    with DefaultSelector() as either:
        either.register(listening, EVENT_READ)
        either.register(STDIN, EVENT_READ)
        while STDIN not in {key.fileobj for key, _ in either.select()}:
            connection, _ = listening.accept()
            with connection:
                if (asked := _answer(connection, waiting)) is not None:
                    listening.close()
                    return asked
    shutil.rmtree(Path(listening.getsockname()).parent, ignore_errors=True)
    return None


def _answer(connection: socket.socket, waiting: list[str]) -> _Asked | None:
    """In the fork: what was asked for. In the server: None. What is `waiting` is imported before. Who asks may be ended
    at any moment; others go on asking."""
    descriptors: list[int] = []
    try:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        with connection.makefile("rb") as message:
            asked = _Asked(*json.load(message))
    except (OSError, ValueError):  # ended before it had said for what
        _close(descriptors)
        return None
    if waiting:
        asked.settle()
        _import(waiting)
        waiting.clear()
    try:
        fork = os.fork()
    except OSError as error:  # of a limit on processes: who asks is one already, and becomes what it asked for
        _close(descriptors)
        with suppress(OSError):
            connection.sendall(f"cannot fork: {error}".encode())
        return None
    if fork == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asked.begin(descriptors)
        return asked
    _close(descriptors)
    with suppress(OSError):
        connection.sendall(array.array("i", [fork]).tobytes())
    return None


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # else every fork's first collection would write to all pages


def _main(listening: int, last: Sequence[str], modules: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which ends this
    gc.disable()  # a fifth of the time of importing
    _import(modules)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are not waited for
    with socket.socket(fileno=listening) as at:
        asked = _serve(at, last)
    if asked is not None:
        runpy.run_path(asked.script[0], run_name="__main__")


if __name__ == "__main__":
    _main(int(sys.argv[1]), list(filter(None, sys.argv[2].split(","))), sys.argv[3:])

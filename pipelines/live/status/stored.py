"""Status of another process's run, from its status.json."""

from __future__ import annotations

import os
import platform
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.states import ENDED
from pipelines.live.status.status import EarlierAttempts, EarlierWork
from streaming.errors import BadInput, StreamingError
from streaming.program import command
from streaming.store.files import read_json
from streaming.store.working_copy import GONE_AFTER_S, WorkingCopy, copy_of

Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(allow_inf_nan=False, gt=-1e12, lt=1e12)]
Name = Annotated[str, Field(max_length=200)]


def _a_time(text: str) -> str:
    if datetime.fromisoformat(text).timestamp() < 0:
        raise ValueError("before 1970")
    return text


class StoredWork(BaseModel):
    """Work of a worker so far."""

    rows: Count
    restarts: Count
    busy_s: Seconds
    peak_rss_bytes: Count
    phases_s: dict[Name, Seconds]
    cpu_s: dict[Name, Seconds] = {}


class StoredWorker(StoredWork):
    """Status of a worker, as it is shown."""

    model_config = ConfigDict(extra="allow")

    pid: Annotated[int, Field(gt=0, lt=2**31)] | None
    state: Literal["starting", "running", "restarting", "done", "failed", "retired"]
    reason: str | None
    note: str | None
    rows_per_s: Seconds | None
    lag_rows: Count | None
    lag_known: bool
    alarms: list[str]
    rss_bytes: Count | None
    ne: dict[str, Seconds | None] | None
    lake_seq: int | None = None
    teacher_version: Count | None
    logit_age_s: Seconds | None
    freshness: dict[Name, dict[str, Any]] | None = None
    tables: dict[Name, dict[Name, Count]] = {}
    ranks: list[dict[str, Any]]


class StoredLake(BaseModel):
    model_config = ConfigDict(extra="allow")

    rows: Count
    files: Count
    bytes: Count


class StoredBroker(BaseModel):
    model_config = ConfigDict(extra="allow")

    bootstrap_servers: str | None


class StoredLosses(BaseModel):
    model_config = ConfigDict(extra="allow")

    severity: Literal["fine", "warn", "fail"]
    lines: list[str]
    words: list[str]


class StoredAlarm(BaseModel):
    model_config = ConfigDict(extra="allow")

    state: Name
    severity: Literal["note", "alarm"]
    words: str


class StoredStatus(BaseModel):
    """A status.json; its fields are those that are relied upon."""

    model_config = ConfigDict(extra="allow")

    name: Name
    state: Literal["starting", "running", "draining", "done", "failed", "stopped"]
    reason: str | None
    mistaken: bool = False
    pid: Annotated[int, Field(gt=0, lt=2**31)]
    host: Name | None = None
    updated_at: Annotated[str, AfterValidator(_a_time)]
    wall_s: Seconds
    legs: Count
    started_at: Annotated[str, AfterValidator(_a_time)] | None
    waits_for: str | None
    losses: StoredLosses | None
    alarms: list[StoredAlarm]
    fraction: Seconds | None
    workers: dict[Name, StoredWorker]
    earlier: dict[Name, StoredWork] = {}
    """Work of workers that have not started since the coordinator did."""
    counts: dict[Name, Any] | None = None
    ahead: dict[Name, Any] = {}
    lake: StoredLake
    broker: StoredBroker
    disk: dict[Name, Count]
    _copy: WorkingCopy | None = PrivateAttr(None)
    """The working copy that it was read in."""

    @property
    def lives(self) -> bool:
        """True if the coordinator that wrote this still runs. A pid that another process has by now does not count. On
        another machine than its own, it runs as long as it is heard of: at the store of a run on object storage, which
        may have this file from much earlier; by this file otherwise."""
        written = datetime.fromisoformat(self.updated_at).timestamp()
        if self.elsewhere and self.state not in ENDED and (copy := self._copy) is not None:
            return copy.is_coordinated
        if self.elsewhere:
            return self.state not in ENDED and time.time() - written < GONE_AFTER_S
        try:
            process = psutil.Process(self.pid)
            runs = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            return runs and process.create_time() <= written and self.state not in ENDED
        except psutil.NoSuchProcess:
            return False

    @property
    def elsewhere(self) -> bool:
        """True if the coordinator ran on another machine."""
        return self.host is not None and self.host != platform.node()

    def as_json(self) -> dict[str, Any]:
        """Everything that the file holds."""
        return self.model_dump(mode="json")


def read_status(root: Path) -> StoredStatus:
    """Read status.json. Raises BadInput where the file is absent, or not one that a coordinator wrote."""
    value = read_json(RunDir(root).status)
    if value is None:
        start = command("exfm", "stream", "configs/demo.yaml", "--run-dir", root)
        raise BadInput(f"no run in {root} (no status.json there); start one with `{start}`, or another config")
    try:
        status = StoredStatus.model_validate(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadInput(
            f"{RunDir(root).status} is damaged ({'.'.join(map(str, first['loc']))}: {first['msg']}); a run that lives "
            "writes it anew within two seconds"
        ) from None
    status._copy = copy_of(root)
    return status


def last_status(root: Path) -> StoredStatus | None:
    """`read_status`, or None if no run has started in `root`."""
    return read_status(root) if RunDir(root).status.exists() else None


def run_lives(root: Path) -> bool:
    """True if the coordinator of the run in `root` runs."""
    status = last_status(root)
    return status is not None and status.lives


def earlier_attempts(root: Path) -> EarlierAttempts:
    """Earlier attempts of the run in `root`, from the last status.json, which is whole also after kill -9; empty
    if the run is new, or its status is damaged."""
    try:
        status = read_status(root)
    except StreamingError:
        return EarlierAttempts()
    workers: dict[str, StoredWork] = {**status.earlier, **status.workers}
    return EarlierAttempts(
        status.legs,
        status.wall_s,
        status.started_at,
        {name: _work(worker) for name, worker in workers.items()},
        status.as_json(),
    )


def _work(worker: StoredWork) -> EarlierWork:
    return EarlierWork(
        worker.rows, worker.restarts, worker.busy_s, worker.peak_rss_bytes, worker.phases_s, worker.cpu_s
    )


def stop_run(status: StoredStatus, root: Path, wait_s: float) -> str:
    """Ask the coordinator to end and wait for it. Raises StreamingError when it does not."""
    if not status.lives:
        return f"nothing runs in {root} ({status.state})"
    if status.elsewhere:
        raise BadInput(f"the coordinator of {root} runs on {status.host} (pid {status.pid}); stop it there")
    os.kill(status.pid, signal.SIGTERM)
    end = time.monotonic() + wait_s
    while status.lives:
        if time.monotonic() > end:
            raise StreamingError(
                f"the coordinator (pid {status.pid}) did not end within {wait_s:g} s; see {RunDir(root).logs}, "
                "or wait longer with --wait"
            )
        time.sleep(0.2)
    return f"stopped {status.name}; resume it: {command('exfm', 'stream', RunDir(root).config, '--run-dir', root)}"

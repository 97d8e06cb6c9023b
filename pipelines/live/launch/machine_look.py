"""A look at a run from one of its machines: sees it the same folder, locks, files, broker, packages and source?

    coordinator: locks a probe in the run directory ──► `look` on every machine ──► what differs there, in words

Whatever a machine lacks is found before a worker is placed there, which would die of it again and again.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from uuid import uuid4

import exfm
import pipelines
import streaming
from exfm.machine import cpu_flags
from pipelines.live.launch.worker_copies import worker_folder
from streaming.errors import StreamingError
from streaming.store.files import write_text
from streaming.store.lock import file_lock
from streaming.store.objects import store_at

PACKAGES = tuple(str(Path(str(package.__file__)).parent) for package in (exfm, streaming, pipelines))
"""Folders that this process imports; on another machine each was shipped to a place of its own."""

PROBE = ".machines"
CONNECT_S = 5.0
PINNED = (
    "ray", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "numba", "pyarrow", "deltalake",
    "kafka-python", "pydantic",
)  # fmt: skip
ROUNDING = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")
"""Instructions that kernels choose by: two machines that have the same ones round alike."""


@dataclass(frozen=True)
class Expected:
    """The run as its coordinator has it.

    token      the content of the probe in `root`, which the coordinator holds the lock of
    brokers    (host, port) of each; empty: the run reads no topic
    inputs     further files and folders that workers read
    url        of a run on object storage: the probe is there, and `root` the coordinator's alone
    """

    root: str
    token: str
    brokers: Sequence[tuple[str, int]]
    inputs: Sequence[str]
    versions: Mapping[str, str]
    source: str
    url: str | None = None

    @property
    def probe(self) -> Path:
        return Path(self.root) / PROBE


@dataclass(frozen=True)
class MachineReport:
    """Lacks of a machine, in words, and its instructions."""

    lacks: Sequence[str]
    instructions: Sequence[str]


def expected(root: Path, brokers: Sequence[tuple[str, int]], inputs: Sequence[str], url: str | None = None) -> Expected:
    """Write the probe into the run directory, and to the store that it lies at."""
    token = uuid4().hex
    write_text(root / PROBE, token)
    if url is not None:
        store_at(url).put(PROBE, token.encode())
    return Expected(str(root), token, brokers, inputs, versions(), source_digest(PACKAGES), url)


def look(expected: Expected) -> MachineReport:
    """Compare this machine with what the coordinator expects. It is to hold the probe's lock meanwhile."""
    place = _folder(expected) if expected.url is None else _store(expected.url, expected.token)
    lacks = [*place, *_brokers(expected), *_software(expected)]
    lacks += [f"it has no {path}, which the config names" for path in expected.inputs if not Path(path).exists()]
    return MachineReport(lacks, instructions())


def instructions() -> list[str]:
    return sorted(cpu_flags() & set(ROUNDING))


def _folder(expected: Expected) -> list[str]:
    try:
        found = expected.probe.read_text()
    except OSError as error:
        return [f"it does not see the run directory {expected.root} ({error.strerror})"]
    if found != expected.token:
        return [f"its {expected.root} is another folder than the coordinator's"]
    if not os.access(expected.root, os.W_OK):
        return [f"it may not write into {expected.root} (as user {os.getuid()})"]
    with file_lock(expected.probe) as mine:
        if mine:
            return [
                f"locks on {expected.root} do not reach it, so two workers of one name could write there: mount it "
                "without nolock or local_lock"
            ]
    return []


def _store(url: str, token: str) -> list[str]:
    """Lacks of a machine on which workers are to have working copies; by its own credentials."""
    lacks = []
    try:
        store = store_at(url)
        if store.read(PROBE).decode() != token:
            lacks.append(f"its {url} is another store than the coordinator's")
        else:
            own = f"{PROBE}-{uuid4().hex}"
            store.put(own, token.encode())
            store.delete([own])
    except FileNotFoundError:
        lacks.append(f"its {url} is another store than the coordinator's")
    except StreamingError as error:
        lacks.append(f"it does not reach the store: {error}")
    try:
        (folder := worker_folder(url)).mkdir(parents=True, exist_ok=True)
        (probe := folder / f"{PROBE}-{os.getpid()}").write_text(token)
        probe.unlink()
    except OSError as error:
        lacks.append(f"it cannot write a working copy into {folder} ({error.strerror}): set XDG_CACHE_HOME there")
    return lacks


def _brokers(expected: Expected) -> list[str]:
    for host, port in expected.brokers:
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
            return []
        except OSError:
            continue
    named = ", ".join(f"{host}:{port}" for host, port in expected.brokers)
    return [f"it reaches no broker at {named}"] if expected.brokers else []


def _software(expected: Expected) -> list[str]:
    own = versions()
    differ = [
        f"{name} {own.get(name, 'is absent')} (the coordinator has {expected.versions.get(name, 'none')})"
        for name in PINNED
        if own.get(name) != expected.versions.get(name)
    ]
    words = [f"other packages: {', '.join(differ)}"] if differ else []
    if source_digest(PACKAGES) != expected.source:
        words.append(f"its workers import another source, {PACKAGES[-1]}: remove that, or bring it up to date")
    return words


def versions() -> dict[str, str]:
    """Versions of the installed packages that a worker computes with."""
    return {name: metadata.version(name) for name in PINNED if any(metadata.distributions(name=name))}


def source_digest(packages: Sequence[str]) -> str:
    """Digest of the modules in these folders."""
    digest = hashlib.sha256()
    for package in map(Path, packages):
        for path in sorted(path for path in package.rglob("*.py") if (path.parent / "__init__.py").exists()):
            digest.update(f"{path.relative_to(package.parent)}\n".encode() + path.read_bytes())
    return digest.hexdigest()

"""Checks of the installation: Python, the pinned packages, the embedding stack in action, threads, checksums."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from pipelines.core.shipped.files import pinned_list
from pipelines.data.doctor import requirements
from pipelines.data.doctor.scope import Check, Scope, works
from pipelines.data.findings import Finding, Rules, Severity
from streaming.program import command

RULES = Rules("""
stop  doctor.python-version  python
    {name}; the pinned packages are for CPython {lowest} to {highest}
    -> install one of them, then: make clean && make setup PYTHON=python{lowest}
warn|stop  doctor.packages-differ  packages
    {count} of {pins} packages differ: {packages}
    -> make clean setup (downloads are kept), or {install}
stop  doctor.package-missing  {part}
    {package} is missing: {loss}
    -> make clean setup, or {install}
stop  doctor.fbgemm-absent  fbgemm
    fbgemm is not installed; tables cannot be trained
    -> make clean setup
warn|stop  doctor.fbgemm-wrong  fbgemm
    {problem}
    -> make setup VARIANT={variant} (it removes both builds, then installs the right one)
stop  doctor.embeddings-broken  embeddings
    {problem}
    -> the versions must belong together; make clean setup, and see the findings `fbgemm` and `packages`
warn  doctor.threads-unmeasured  threads
    not measured, since the embedding stack does not run
    -> see the finding `embeddings`
warn  doctor.threads-contended  threads
    {seen}; the cores are shared
    -> export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
stop  doctor.codec-missing  compression
    {codecs}; a topic that uses it ends the run
    -> install the packages of the pinned list again: make clean setup
""")

SUPPORTED = ((3, 11), (3, 13))  # the pinned lists were installed and run on these
CONTENTION_RATIO = 1.5


def python(scope: Scope) -> Finding:
    """CPython of a supported version."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    lowest, highest = (".".join(map(str, version)) for version in SUPPORTED)
    if SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        return works("python", f"{name}, {platform.machine()}")
    return RULES("doctor.python-version", name=name, lowest=lowest, highest=highest)


def has_driver() -> bool:
    """True where NVIDIA's management library loads, which the CUDA build of fbgemm links against."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def fbgemm(scope: Scope) -> Finding:
    """Exactly one build of fbgemm is installed, the one that this machine can load."""
    installed = requirements.installed_fbgemm()
    driver = has_driver()
    right = "cuda" if driver else "cpu"
    if not installed:
        return RULES("doctor.fbgemm-absent")
    if len(installed) > 1:
        problem = f"{' and '.join(installed)} are both installed; they share a folder and break each other"
        return RULES("doctor.fbgemm-wrong", Severity.STOP, problem=problem, variant=right)
    name = installed[0]
    version = requirements.installed_version(name)
    if requirements.FBGEMM[name] == "cuda" and not driver:
        problem = f"{name} {version} is the CUDA build and needs libnvidia-ml.so.1, which no driver provides here"
        return RULES("doctor.fbgemm-wrong", Severity.STOP, problem=problem, variant="cpu")
    if requirements.FBGEMM[name] == "cpu" and driver:
        problem = f"{name} {version} is the CPU build, and this machine has an NVIDIA driver: the GPU will not be used"
        return RULES("doctor.fbgemm-wrong", Severity.WARN, problem=problem, variant="cuda")
    return works("fbgemm", f"{name} {version}, NVIDIA driver {'found' if driver else 'absent'}")


def packages(scope: Scope) -> Finding:
    """The installed versions against the pinned list."""
    installed = requirements.installed_fbgemm()
    variant = requirements.FBGEMM[installed[0]] if len(installed) == 1 else "cpu"
    pins = requirements.read(variant)
    needed = requirements.required(pins)
    wrong = {name: pair for name, pair in requirements.differences(pins).items() if pair[1] or name in needed}
    if not wrong:
        return works("packages", f"all {len(pins)} packages are as in requirements/{variant}.txt")
    differing = ", ".join(f"{name} {have or 'absent'} (pinned {pin})" for name, (pin, have) in list(wrong.items())[:5])
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    severity = Severity.STOP if any(have is None for _, have in wrong.values()) else Severity.WARN
    install = command("python", "-m", "pip", "install", "--no-deps", "-r", pinned_list(variant))
    about = {"count": len(wrong), "pins": len(pins), "packages": differing + more, "install": install}
    return RULES("doctor.packages-differ", severity, **about)


class ProbeFailed(Exception):
    """The embedding stack did not run; the message is its last line of output."""


@functools.cache
def embedding_probe() -> dict[str, Any]:
    """Run `embedding_probe.py` in a separate process, with this process's settings. Raises ProbeFailed."""
    command = [sys.executable, "-m", "pipelines.data.doctor.embedding_probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        raise ProbeFailed("it did not end within 180 s") from None
    if done.returncode < 0:
        raise ProbeFailed(f"the process died of {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise ProbeFailed((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])


def embeddings(scope: Scope) -> Finding:
    """torch, torchrec and fbgemm load together, and a fused row-wise AdaGrad step moves weights."""
    try:
        seen = embedding_probe()
    except ProbeFailed as failure:
        problem = f"torch, torchrec and fbgemm do not run together: {failure}"
        return RULES("doctor.embeddings-broken", problem=problem)
    if not seen["moved"]:
        return RULES("doctor.embeddings-broken", problem="a fused step left the embedding weights as they were")
    where = "with CUDA" if seen["cuda"] else "on the CPU"
    return works("embeddings", f"torch {seen['torch']} and torchrec {seen['torchrec']} run a fused step {where}")


def threads(scope: Scope) -> Finding:
    """A fused step with the configured threads, against one thread: kernels busy-wait where cores are shared."""
    try:
        seen = embedding_probe()
    except ProbeFailed:
        return RULES("doctor.threads-unmeasured")
    cores = len(os.sched_getaffinity(0))
    setting = os.environ.get("OMP_NUM_THREADS")
    text = f"{seen['threads']} threads on {cores} cores: {seen['as_set_ms']:g} ms a step, {seen['one_ms']:g} with one"
    if seen["as_set_ms"] > CONTENTION_RATIO * seen["one_ms"]:
        return RULES("doctor.threads-contended", seen=text)
    if setting is None:
        return works("threads", f"{text}; OMP_NUM_THREADS is unset, workers set their own before they import torch")
    return works("threads", f"{text}; OMP_NUM_THREADS={setting}")


def checksums(scope: Scope) -> Finding:
    """`crc32c`, without which the Kafka client computes checksums in Python."""
    if importlib.util.find_spec("crc32c") is None:
        return _missing("checksums", "crc32c", "the Kafka client would read at 10 MB/s instead of 366")
    return works("checksums", f"crc32c {requirements.installed_version('crc32c')}")


def _missing(part: str, package: str, loss: str) -> Finding:
    install = command("python", "-m", "pip", "install", package)
    return RULES("doctor.package-missing", part=part, package=package, loss=loss, install=install)


def compression(scope: Scope) -> Finding:
    """Every codec of Kafka packs and unpacks: gzip, snappy, lz4, zstd."""
    from streaming.kafka.client import codecs_missing

    missing = codecs_missing()
    if missing:
        codecs = "; ".join(f"{codec} cannot be read: {package}" for codec, package in missing.items())
        return RULES("doctor.codec-missing", codecs=codecs)
    return works("compression", "gzip, snappy, lz4 and zstd")


def _package(name: str, use: str) -> Check:
    def check(scope: Scope) -> Finding:
        version = requirements.installed_version(name)
        if version is None or importlib.util.find_spec(name) is None:
            return _missing(name, name, f"no {use}")
        return works(name, f"{name} {version}")

    return check


CHECKS: Mapping[str, Check] = {
    "python": python,
    "packages": packages,
    "fbgemm": fbgemm,
    "embeddings": embeddings,
    "threads": threads,
    "checksums": checksums,
    "compression": compression,
    "ray": _package("ray", "processes besides `--local`"),
    "mlflow": _package("mlflow", "tracking"),
    "deltalake": _package("deltalake", "lake"),
}

"""Checks of what is installed: Python, the pinned packages, the embedding stack really run, threads, checksums."""

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
from pipelines.data.doctor.verdict import Check, Scope, Status, Verdict
from streaming.program import command

SUPPORTED = ((3, 11), (3, 13))  # the pinned lists were installed and run on these
CONTENTION_RATIO = 1.5
SET_UP = "make clean setup"


def python(scope: Scope) -> Verdict:
    """CPython of a supported version."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    lowest, highest = (".".join(map(str, version)) for version in SUPPORTED)
    if SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        return Verdict("ok", f"{name}, {platform.machine()}")
    remedy = f"install one of them, then: make clean && make setup PYTHON=python{lowest}"
    return Verdict("fail", f"{name}; the pinned packages are for CPython {lowest} to {highest}", remedy)


def has_driver() -> bool:
    """True where NVIDIA's management library loads, which the CUDA build of fbgemm links against."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _switch(variant: str) -> str:
    return f"make setup VARIANT={variant} (it removes both builds, then installs the right one)"


def fbgemm(scope: Scope) -> Verdict:
    """Exactly one build of fbgemm is installed, the one that this machine can load."""
    installed = requirements.installed_fbgemm()
    driver = has_driver()
    right = "cuda" if driver else "cpu"
    if not installed:
        return Verdict("fail", "fbgemm is not installed; tables cannot be trained", SET_UP)
    if len(installed) > 1:
        both = " and ".join(installed)
        return Verdict("fail", f"{both} are both installed; they share a folder and break each other", _switch(right))
    name = installed[0]
    version = requirements.installed_version(name)
    if requirements.FBGEMM[name] == "cuda" and not driver:
        said = f"{name} {version} is the CUDA build and needs libnvidia-ml.so.1, which no driver provides here"
        return Verdict("fail", said, _switch("cpu"))
    if requirements.FBGEMM[name] == "cpu" and driver:
        said = f"{name} {version} is the CPU build, and this machine has an NVIDIA driver: the GPU will not be used"
        return Verdict("warn", said, _switch("cuda"))
    return Verdict("ok", f"{name} {version}, NVIDIA driver {'found' if driver else 'absent'}")


def packages(scope: Scope) -> Verdict:
    """The installed versions against the pinned list."""
    installed = requirements.installed_fbgemm()
    variant = requirements.FBGEMM[installed[0]] if len(installed) == 1 else "cpu"
    pins = requirements.read(variant)
    needed = requirements.required(pins)
    wrong = {name: pair for name, pair in requirements.differences(pins).items() if pair[1] or name in needed}
    if not wrong:
        return Verdict("ok", f"all {len(pins)} packages are as in requirements/{variant}.txt")
    differing = ", ".join(f"{name} {have or 'absent'} (pinned {pin})" for name, (pin, have) in list(wrong.items())[:5])
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    status: Status = "fail" if any(have is None for _, have in wrong.values()) else "warn"
    install = command("python", "-m", "pip", "install", "--no-deps", "-r", pinned_list(variant))
    remedy = f"{SET_UP} (downloads are kept), or {install}"
    return Verdict(status, f"{len(wrong)} of {len(pins)} packages differ: {differing}{more}", remedy)


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


def embeddings(scope: Scope) -> Verdict:
    """torch, torchrec and fbgemm load together, and a fused row-wise AdaGrad step moves weights."""
    remedy = f"the versions must belong together; {SET_UP}, and see the findings `fbgemm` and `packages`"
    try:
        seen = embedding_probe()
    except ProbeFailed as failure:
        return Verdict("fail", f"torch, torchrec and fbgemm do not run together: {failure}", remedy)
    if not seen["moved"]:
        return Verdict("fail", "a fused step left the embedding weights as they were", remedy)
    where = "with CUDA" if seen["cuda"] else "on the CPU"
    return Verdict("ok", f"torch {seen['torch']} and torchrec {seen['torchrec']} run a fused step {where}")


def threads(scope: Scope) -> Verdict:
    """A fused step with the configured threads, against one thread: kernels busy-wait where cores are shared."""
    try:
        seen = embedding_probe()
    except ProbeFailed:
        return Verdict("warn", "not measured, since the embedding stack does not run", "see the finding `embeddings`")
    cores = len(os.sched_getaffinity(0))
    setting = os.environ.get("OMP_NUM_THREADS")
    said = f"{seen['threads']} threads on {cores} cores: {seen['as_set_ms']:g} ms a step, {seen['one_ms']:g} with one"
    if seen["as_set_ms"] > CONTENTION_RATIO * seen["one_ms"]:
        return Verdict("warn", f"{said}; the cores are shared", "export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive")
    if setting is None:
        return Verdict("ok", f"{said}; OMP_NUM_THREADS is unset, workers set their own before they import torch")
    return Verdict("ok", f"{said}; OMP_NUM_THREADS={setting}")


def checksums(scope: Scope) -> Verdict:
    """`crc32c`, without which the Kafka client computes checksums in Python."""
    if importlib.util.find_spec("crc32c") is None:
        said = "crc32c is missing: the Kafka client would read at 10 MB/s instead of 366"
        return Verdict("fail", said, f"{SET_UP}, or {command('python', '-m', 'pip', 'install', 'crc32c')}")
    return Verdict("ok", f"crc32c {requirements.installed_version('crc32c')}")


def compression(scope: Scope) -> Verdict:
    """Every codec of Kafka packs and unpacks: gzip, snappy, lz4, zstd."""
    from streaming.kafka.client import codecs_missing

    missing = codecs_missing()
    if missing:
        said = "; ".join(f"{codec} cannot be read: {package}" for codec, package in missing.items())
        return Verdict("fail", f"{said}; a topic that uses it ends the run", SET_UP)
    return Verdict("ok", "gzip, snappy, lz4 and zstd")


def _package(name: str, use: str) -> Check:
    def check(scope: Scope) -> Verdict:
        version = requirements.installed_version(name)
        if version is None or importlib.util.find_spec(name) is None:
            return Verdict("fail", f"{name} is missing: no {use}", SET_UP)
        return Verdict("ok", f"{name} {version}")

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

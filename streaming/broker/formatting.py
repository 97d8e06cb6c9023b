"""A data folder that a broker can begin in, as Kafka's own tool formats it: which features its log of metadata begins
with, and the ids of cluster, folder and node.

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
    """Format the folder, unless nothing is kept; False then. A folder without ids is not formatted: they come last."""
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
    """Keep what Kafka's tool wrote, where the folder of the jars takes it."""
    with suppress(OSError, DiskFull):  # of another user, or full: the tool formats the next folder, too
        write_bytes(jars / FEATURES, (data / FEATURES).read_bytes())


def random_id() -> str:
    """One in 64 would begin with a hyphen, and Kafka's tool takes that for an option."""
    while True:
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not identity.startswith("-"):
            return identity

"""What a worker goes on from."""

from __future__ import annotations

from pathlib import Path

from exfm.checkpoint import Stored, latest, load
from streaming.errors import StreamingError


def last_checkpoint(root: Path, config_hash: str) -> Stored | None:
    """The newest checkpoint under `root`, None where there is none yet.

    Raises StreamingError when it was written under another config, ModelError when it is damaged.
    """
    found = latest(root)
    if found is None:
        return None
    stored = load(found)
    if stored.meta["config_hash"] != config_hash:
        raise StreamingError(
            f"{found} was written under config {stored.meta['config_hash']}, this run has {config_hash}; "
            "resume with the config it was started with, or give another --run-dir"
        )
    return stored

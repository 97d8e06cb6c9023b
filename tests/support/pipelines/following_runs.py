"""Runs that follow the lake of another, for tests: their config, beside that of the run that leads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipelines.core.config.settings import Config, load
from pipelines.core.run_dir.paths import RunDir

OWN = ("seed", "metrics", "tracking", "resources", "registry")
"""Sections that a run which follows has of its own; tests take them from the run that leads, to compare the two."""


def following_settings(leader: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a run that follows `leader` with the same students; `changes` replace whole sections."""
    theirs = yaml.safe_load(RunDir(leader).config.read_text())
    own = {name: theirs[name] for name in (*OWN, "students")}
    return {"name": "team", "source": {"lake": str(leader)}, **own, **changes}


def following_file(leader: Path, path: Path, **changes: Any) -> Path:
    """`following_settings`, written to `path`."""
    path.write_text(yaml.safe_dump(following_settings(leader, **changes), sort_keys=False))
    return path


def following(leader: Path, path: Path, **changes: Any) -> Config:
    """The config of `following_settings`; its file is `path`."""
    return load(following_file(leader, path, **changes))

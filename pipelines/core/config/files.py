"""Absolute paths of the files that a config names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from streaming.kafka.secrets import SECRET_KEYS


def place_files(
    settings: dict[str, Any], folder: Path, overridden: Collection[str] = (), overridden_in: Path = Path()
) -> None:
    """Make the paths of a source's files, and of password files, absolute. One that is relative lies in `folder`; where
    it, or what holds it, is among the `overridden` settings, in `overridden_in`. A source's is kept as `written_path`,
    by which the run is known.

    >>> settings = {"source": {"path": "clicks.parquet", "feedback": {"path": "/data/events.parquet"}}}
    >>> place_files(settings, Path("/ads"))
    >>> settings["source"]["path"], settings["source"]["written_path"], settings["source"]["feedback"]
    ('/ads/clicks.parquet', 'clicks.parquet', {'path': '/data/events.parquet'})
    """
    _place_secrets(settings, folder, overridden, overridden_in)
    source = settings.get("source")
    feedback = source.get("feedback") if isinstance(source, dict) else None
    for setting, named in (("source.path", source), ("source.feedback.path", feedback)):
        if not isinstance(named, dict) or not isinstance(path := named.get("path"), str):
            continue
        again = any(f"{setting}.".startswith(f"{name}.") for name in overridden)
        if again:
            named.pop("written_path", None)
        if not Path(path).is_absolute():
            named |= {"path": str((overridden_in if again else folder).absolute() / path), "written_path": path}
    if isinstance(source, dict) and isinstance(copies := source.get("copies"), str):
        again = any("source.copies.".startswith(f"{name}.") for name in overridden)
        source["copies"] = str((overridden_in if again else folder).absolute() / copies)


def _place_secrets(
    settings: dict[str, Any], folder: Path, overridden: Collection[str] = (), overridden_in: Path = Path()
) -> None:
    kafka = settings.get("kafka")
    security = kafka.get("security") if isinstance(kafka, dict) else None
    if not isinstance(security, dict):
        return
    for name in SECRET_KEYS:
        value = security.get(name)
        if isinstance(value, dict) and isinstance(path := value.get("file"), str):
            again = any(f"kafka.security.{name}.file.".startswith(f"{setting}.") for setting in overridden)
            value["file"] = str((overridden_in if again else folder).absolute() / path)

"""Logs of processes in a run's `logs/`, as text or as one JSON object a line, rotated to bound their size."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Literal, NamedTuple

OLDER_LOGS = 3
"""`name.log.1` is the newest of the older ones."""

LogFormat = Literal["text", "json"]


class LogPosition(NamedTuple):
    """Position of a worker in its stream, for lines of its log: the last row of the lake that it has behind it, the
    block it works on, and the trace of that block (32 hexadecimal digits)."""

    lake_seq: int | None = None
    block: int | None = None
    trace_id: str | None = None


class LogForm(NamedTuple):
    """Form of a run's logs: the size in MiB at which one is rotated, the format of its lines, and the run's name."""

    max_mb: float
    format: LogFormat = "text"
    run: str = ""

    def handler(self, path: Path, position: Callable[[], LogPosition] = LogPosition) -> logging.Handler:
        """A handler for the log of the process or worker that `path` is named after; `position`: where that is."""
        handler = _LogFile(path, maxBytes=round(self.max_mb * 2**20), backupCount=OLDER_LOGS)
        handler.setFormatter(formatter(self.format, self.run, path.stem, position))
        return handler

    def take_all(self, path: Path) -> None:
        """Log this process to `path` only."""
        logging.basicConfig(handlers=[self.handler(path)], level=logging.INFO, force=True)


def formatter(
    form: LogFormat, run: str, worker: str, position: Callable[[], LogPosition] = LogPosition
) -> logging.Formatter:
    """A formatter of lines of that form."""
    if form == "text":
        return logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    return _JsonLines({"run": run, "worker": worker}, position)


class _JsonLines(logging.Formatter):
    def __init__(self, of: dict[str, str], position: Callable[[], LogPosition]) -> None:
        super().__init__()
        self._of, self._position = of, position

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._of,
        }
        line |= {key: value for key, value in self._position()._asdict().items() if value is not None}
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def as_text(line: str) -> str:
    r"""A line of either form, as people read it.

    >>> as_text("2026-11-29 12:00:00,000 INFO a said")
    '2026-11-29 12:00:00,000 INFO a said'
    >>> as_text('{"time": "2026-11-29T12:00:00.000Z", "level": "INFO", "logger": "a", "message": "said", "block": 3}')
    '2026-11-29T12:00:00.000Z INFO a said (block 3)'
    """
    if not line.startswith("{"):
        return line
    try:
        told = json.loads(line)
        text = " ".join(str(told[key]) for key in ("time", "level", "logger", "message"))
    except (ValueError, KeyError):  # a line that is being written, or another's
        return line
    position = ", ".join(f"{key} {told[key]}" for key in ("lake_seq", "block") if key in told)
    return text + (f" ({position})" if position else "") + (f"\n{told['exc']}" if "exc" in told else "")


class _LogFile(RotatingFileHandler):
    """Lines that the disk does not take are left out: whoever needs the disk says so in words, once."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

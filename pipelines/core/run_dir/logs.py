"""Logs of processes in a run's `logs/`, rotated to bound their size."""

from __future__ import annotations

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

OLDER_LOGS = 3
"""`name.log.1` is the newest of the older ones."""


def log_to(path: Path, max_mb: float) -> None:
    """Log this process to `path` only, rotated at `max_mb`."""
    logging.basicConfig(handlers=[log_file(path, max_mb)], level=logging.INFO, force=True)


def log_file(path: Path, max_mb: float) -> logging.Handler:
    """A log handler that rotates at `max_mb`."""
    handler = _LogFile(path, maxBytes=round(max_mb * 2**20), backupCount=OLDER_LOGS)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    return handler


class _LogFile(RotatingFileHandler):
    """Lines that the disk does not take are left out: whoever needs the disk says so in words, once."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

"""Ledger of a student's versions: champions over time, with reasons. One JSON object a line, only ever added to.

    <run>/registry/<student>.jsonl      the ledger
    <run>/registry/<student>/v…         the versions themselves, what is served of them
    <run>/registry/<student>.lock       held while an entry is added

The run directory is the truth; MLflow mirrors it. Whoever decides adds its entry under the lock: the student's worker
what its policy says, `exfm promote` and `exfm rollback` what a person says, and the end of a run. An entry is on the
disk before its lock is let go; half a line, which a crash may leave, was never an entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.core.run_dir.paths import RunDir
from pipelines.track.registry.aliases import Action, Aliases
from streaming.errors import StreamingError
from streaming.store.files import append_line, make_folder, remove_folder
from streaming.store.lock import file_lock

POLICY, HAND, CONCLUSION = "policy", "hand", "conclusion"
"""Who decides: the policy in a student's worker; a person; the end of the run."""

LOCK_WAIT_S = 30.0

Entry = dict[str, Any]


class Ledger:
    """The ledger of one student. Reading takes no lock."""

    def __init__(self, run_dir: RunDir, student: str) -> None:
        self.student = student
        self.path = run_dir.ledger(student)
        self.versions = run_dir.versions(student)

    @property
    def size(self) -> int:
        """Size in bytes; a change means new entries."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def entries(self) -> list[Entry]:
        """All entries, oldest first. Raises StreamingError where a line is not what this wrote."""
        return [self._read(line) for line in self._lines()]

    def aliases(self) -> Aliases:
        """Aliases after the last entry, which is the only one read. Raises StreamingError as `entries` does."""
        lines = self._lines()
        return aliases_after(self._read(lines[-1])) if lines else Aliases()

    def published(self, version: str) -> Entry:
        """The publication entry of a version, without parsing others'; empty if there is none. Raises StreamingError
        as `entries` does."""
        name = json.dumps(version).encode()
        named = (self._read(line) for line in self._lines() if name in line)
        return next((e for e in named if e["version"] == version and e["action"] == Action.PUBLISHED), {})

    def _lines(self) -> list[bytes]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        return content[: content.rfind(b"\n") + 1].splitlines()

    def _read(self, line: bytes) -> Entry:
        try:
            entry: Entry = json.loads(line)
        except ValueError as error:
            raise StreamingError(f"{self.path} is damaged ({error}); put it back from a copy") from None
        return entry

    def folder(self, version: str) -> Path:
        """Folder of a version's served files."""
        return self.versions / version

    @contextmanager
    def writing(self) -> Iterator[LedgerWriter]:
        """Lock the ledger and add entries. Raises StreamingError where another process holds the lock for
        `LOCK_WAIT_S`."""
        make_folder(self.path.parent)
        with file_lock(self.path.with_suffix(".lock"), wait_s=LOCK_WAIT_S) as mine:
            if not mine:
                raise StreamingError(
                    f"another process has been writing {self.path} for {LOCK_WAIT_S:g} s; try again when it has ended"
                )
            yield LedgerWriter(self)


class LedgerWriter:
    """Adds entries to a locked ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._path, self._versions = ledger.path, ledger.versions
        self.entries = ledger.entries()

    @property
    def aliases(self) -> Aliases:
        return aliases_after(self.entries[-1]) if self.entries else Aliases()

    def add(self, action: Action, version: str | None, *, by: str, reason: str, **more: Any) -> Entry:
        """Add an entry with the resulting aliases; durable on return. Raises DiskFull."""
        entry = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "action": str(action),
            "version": version,
            "by": by,
            "reason": reason,
            **self.aliases.after(action, version).as_json(),
            **more,
        }
        append_line(self._path, json.dumps(entry, allow_nan=False))
        self.entries.append(entry)
        return entry

    def prune(self, keep: int) -> None:
        """Delete all versions but the newest `keep` and those with an alias."""
        for folder in sorted(self._versions.glob("v*"))[:-keep]:
            if folder.name not in self.aliases:
                remove_folder(folder)


def aliases_after(entry: Mapping[str, Any]) -> Aliases:
    """Aliases after an entry."""
    return Aliases(*(entry[name] for name in Aliases._fields))

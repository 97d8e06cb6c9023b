"""A table as a reader sees it: its files, identifiers and metadata, followed from entry to entry of the log.

To load a handle, or to have deltalake bring one up to date, costs milliseconds, and readers look after every commit. An
entry is a few lines of JSON that say what changed, so it is read here. A handle is loaded only where entries are no
longer there (a checkpoint has what they held), or where one changes more than files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from streaming.lake.delta.files import DataFile, data_file
from streaming.lake.delta.log import checkpointed, entry
from streaming.lake.delta.table import METADATA_KEY, last_metadata


class TableView:
    """The table at `path` as of the last `refresh`; `load` opens a new handle on its newest version."""

    def __init__(self, path: Path, load: Callable[[], DeltaTable]) -> None:
        self._path, self._load = path, load
        self.reload()
        self._said = self.version

    def reload(self) -> None:
        """Load the newest version from scratch."""
        self._handle = self._load()
        self.version: int = self._handle.version()
        actions = pa.table(self._handle.get_add_actions()).to_pylist()
        self._files = {action["path"]: data_file(action) for action in actions}
        self._identifiers: dict[str, int | None] = {}
        self._metadata: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """The table's unique id."""
        return str(self._handle.metadata().id)

    @property
    def files(self) -> list[DataFile]:
        return list(self._files.values())

    def identifier(self, name: str) -> int | None:
        """Its number as of the last look; None where it was never committed."""
        if name not in self._identifiers:  # no entry since the handle was loaded has it
            self._identifiers[name] = self._handle.transaction_version(name)
        return self._identifiers[name]

    def metadata(self) -> dict[str, Any] | None:
        """That of the newest commit that carries some, as of the last look; None where the log no longer has it."""
        return last_metadata(self._handle) if self._metadata is None else self._metadata

    def refresh(self) -> bool:
        """Look for new commits; True when there were any since the last look that did not fail."""
        while (actions := entry(self._path, self.version + 1)) is not None:
            if any("metaData" in action or "protocol" in action for action in actions):
                self.reload()
                continue
            for action in actions:
                self._apply(action)
            self.version += 1
        if checkpointed(self._path) > self.version:  # the next entry was deleted before it was read
            self.reload()
        before, self._said = self._said, self.version
        return self.version != before

    def _apply(self, action: Mapping[str, Any]) -> None:
        if (added := action.get("add")) is not None:
            self._files[added["path"]] = _of_entry(added)
        elif (removed := action.get("remove")) is not None:
            self._files.pop(removed["path"], None)
        elif (transaction := action.get("txn")) is not None:
            self._identifiers[transaction["appId"]] = transaction["version"]
        elif METADATA_KEY in (info := action.get("commitInfo") or {}):
            self._metadata = json.loads(info[METADATA_KEY])


def _of_entry(added: Mapping[str, Any]) -> DataFile:
    statistics = json.loads(added.get("stats") or "{}")
    bounds: Sequence[Mapping[str, Any]] = [
        statistics.get(name) or {} for name in ("minValues", "maxValues", "nullCount")
    ]
    return DataFile(
        unquote(added["path"]),
        tuple(added["partitionValues"].items()),
        added["size"],
        statistics.get("numRecords") or 0,
        added["modificationTime"] / 1000,
        *bounds,
    )

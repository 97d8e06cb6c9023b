"""A student's ledger (pipelines/track/registry) in MLflow's registry: a model version for each that was published,
aliases for `candidate`, `champion` and `previous`, and every decision as a tag of the version that it was about.

The ledger is the truth. MLflow is brought up to it by the tracker's thread, whenever it has grown, and again where that
failed: doing it twice changes nothing. A version that is no longer on the disk by then is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from pipelines.track.deleted import still_registered
from pipelines.track.registration import Interface, interface_of
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import Entry, Ledger, aliases_after
from streaming.store.files import read_json, write_json

RETRY_S = 30.0


@dataclass(frozen=True)
class Mirror:
    """Mirror of one ledger as MLflow's registered model `model`. `interface` is asked for where a version is new."""

    model: str
    ledger: Ledger
    interface: Callable[[], Interface]

    @property
    def file(self) -> Path:
        """File with the mirrored state: `{"bytes", "entries", "numbers": {version: its number in MLflow}}`."""
        return self.ledger.path.with_suffix(".mlflow.json")

    def known(self) -> dict[str, Any]:
        return {"bytes": 0, "entries": 0, "numbers": {}} | (read_json(self.file) or {})

    def note(self, version: str, number: int | str) -> None:
        """Record the MLflow number of a version."""
        known = self.known()
        self.store(known | {"numbers": known["numbers"] | {version: number}})

    def store(self, known: Mapping[str, Any]) -> None:
        write_json(self.file, dict(known))


class Mirrors:
    """Mirrors of a run's students: `look`, about every second, hands those with new ledger entries to `put`."""

    def __init__(self, run_dir: RunDir, put: Callable[[str, Mirror], None], clock: Callable[[], float]) -> None:
        self._run_dir, self._put, self._clock = run_dir, put, clock
        self._done: dict[str, int] = {}
        self._next_s: dict[str, float] = {}

    def look(self, config: Config, *, at_once: bool = False) -> None:
        for student in config.students:
            name, mirror = student.name, mirror_of(config, self._run_dir, student.name)
            size = mirror.ledger.size
            if size == self._done.get(name, 0):
                continue
            if mirror.known()["bytes"] == size:
                self._done[name] = size
            elif at_once or self._clock() >= self._next_s.get(name, 0.0):
                self._next_s[name] = self._clock() + RETRY_S
                self._put(STUDENT + name, mirror)


def mirror_of(config: Config, run_dir: RunDir, student: str) -> Mirror:
    (settings,) = (each for each in config.students if each.name == student)
    return Mirror(f"{config.name}-{student}", Ledger(run_dir, student), lambda: interface_of(config, run_dir, settings))


def unpublished(mirror: Mirror, entries: list[Entry], numbers: Mapping[str, str]) -> list[Entry]:
    """Entries of versions that MLflow lacks and whose files still exist."""
    return [
        entry
        for entry in entries
        if entry["action"] == Action.PUBLISHED
        and entry["version"] not in numbers
        and mirror.ledger.folder(entry["version"]).is_dir()
    ]


def state_decisions(
    client: Any, mirror: Mirror, entries: list[Entry], since: int, numbers: Mapping[str, str]
) -> str | None:
    """Write the decisions since an entry to MLflow, and the current aliases. In words: which of these versions it no
    longer has; None where it has all."""
    there, lost = still_registered(client, mirror.model, numbers), None
    for number, entry in enumerate(entries[since:], since):
        if entry["version"] in there:
            client.set_model_version_tag(mirror.model, there[entry["version"]], *decision_tag(number, entry))
    aliases = client.get_registered_model(mirror.model).aliases
    for alias, version in aliases_after(entries[-1]).as_json().items():
        if version in there:
            client.set_registered_model_alias(mirror.model, alias, there[version])
        elif alias in aliases:
            client.delete_registered_model_alias(mirror.model, alias)
        if version in numbers and version not in there:
            lost = (
                f"version {version} of `{mirror.model}` was deleted there, so @{alias} names none until the run has "
                "another (exfm promote, exfm rollback); the run itself keeps that version"
            )
    return lost


def lineage_tags(entry: Entry) -> dict[str, str]:
    """Lineage of a version, as tags.

    >>> tags = lineage_tags({"version": "v7", "rows": 9, "lineage": {"lake_range": [0, 8], "teacher_versions": None}})
    >>> tags
    {'position': 'v7', 'role': 'student', 'lake_range': '0 to 8', 'rows': '9'}
    """
    flat = {"position": entry["version"], "role": entry.get("role", "student"), **entry.get("lineage", {})}
    flat |= {key: entry[key] for key in ("rows", "bytes", "event_time_ms") if key in entry}
    flat |= entry.get("figures", {})
    for kind in ("int8", "int4") if "tables" in entry else ():
        changes = entry["tables"][kind]["ne_change"].items()
        flat |= {f"tables/{kind}/ne_change/{task}": change for task, change in changes}
    flat |= {f"parity/{key}": value for key, value in entry.get("parity", {}).items()}
    ranges = {key: " to ".join(map(str, value)) for key, value in flat.items() if isinstance(value, list | tuple)}
    return {key: str(value) for key, value in (flat | ranges).items() if value is not None}


def tables_stated(tags: Mapping[str, str]) -> dict[str, Any] | None:
    """Stated cost of quantised tables from a registered version's tags, in the ledger's form; None without any.

    >>> tables_stated({"role": "student", "tables/int8/ne_change/ctr": "0.0002"})
    {'int8': {'ne_change': {'ctr': 0.0002}}}
    """
    found: dict[str, Any] = {}
    for tag, value in tags.items():
        parts = tag.split("/", 3)
        if len(parts) == 4 and (parts[0], parts[2]) == ("tables", "ne_change"):
            found.setdefault(parts[1], {"ne_change": {}})["ne_change"][parts[3]] = float(value)
    return found or None


def decision_tag(number: int, entry: Entry) -> tuple[str, str]:
    """A decision as a tag of its version; the tags' names sort in the ledger's order.

    >>> decision_tag(4, {"at": "2026-11-23T12:00", "action": "promoted", "by": "hand", "reason": "seen live"})
    ('ledger/000004', '2026-11-23T12:00 promoted by hand: seen live')
    """
    return f"ledger/{number:06d}", f"{entry['at']} {entry['action']} by {entry['by']}: {entry['reason']}"

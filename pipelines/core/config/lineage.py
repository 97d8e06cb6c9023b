"""Earlier configs of a run, and the checkpoints that its workers accept because of them.

    lineage.json    [{"from": config hash, "to": config hash, "changes": [what was announced],
                      "workers": {worker: [identity before, identity now]}}, …]

An identity is null where the worker did not exist, or begins anew. A worker takes up checkpoints of its own identity
and of those it came from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipelines.core.config.hash import hash_of
from pipelines.core.config.identity import identity_of, workers_of
from pipelines.core.config.settings import Config
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import StreamingError
from streaming.store.files import read_json, write_json


def remember(
    run_dir: RunDir, before: Mapping[str, Any], now: Config, lines: Sequence[str], anew: Collection[str] = ()
) -> None:
    """Record a change of config; call before the run directory's config is replaced. `before`: the settings as they
    were written; `anew`: workers that take nothing over although both configs have them."""
    settings = now.model_dump(mode="json")
    was, has = workers_of(before), workers_of(settings)
    workers = {
        worker: [
            identity_of(before, worker) if worker in was and worker not in anew else None,
            identity_of(settings, worker) if worker in has else None,
        ]
        for worker in dict.fromkeys([*was, *has])
    }
    entry = {"from": hash_of(before), "to": now.hash, "changes": list(lines), "workers": workers}
    entries = _lineage(run_dir)
    if entry not in entries[-1:]:
        write_json(run_dir.lineage, [*entries, entry])


def accepted_identities(run_dir: RunDir, config: Config, worker: str) -> list[str]:
    """Identities of checkpoints from which `worker` resumes: its own first, then its predecessors'."""
    identities = [config.identity(worker)]
    for entry in reversed(_lineage(run_dir)):
        was, has = entry["workers"].get(worker, (None, None))
        if was is not None and has in identities:
            identities.append(was)
    return list(dict.fromkeys(identities))


def hashes_of_run(run_dir: RunDir, config: Config) -> list[str]:
    """Hashes of the configs, this one first, under which the run had the same workers: a summary of any of them
    means that this run is finished."""
    hashes = [config.hash]
    for entry in reversed(_lineage(run_dir)):
        if entry["to"] == hashes[-1] and all(None not in pair for pair in entry["workers"].values()):
            hashes.append(entry["from"])
    return hashes


def _lineage(run_dir: RunDir) -> list[dict[str, Any]]:
    entries = read_json(run_dir.lineage) or []
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and {"from", "to", "workers"} <= e.keys() for e in entries
    ):
        raise StreamingError(f"{run_dir.lineage} is damaged (no list of configs); put it back from a copy")
    return entries

"""Models that have learned of a person: what of them goes, and what stays.

A model's weights are of all rows together. What is kept by id, the rows of embedding tables, counts and histories, is
forgotten at the next row that each model learns (`exfm forget --table`). Until then its newest checkpoint, from which
it goes on, and what is served of it hold it; everything older goes now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models.engine import TEACHER
from exfm.snapshots.checkpoint import checkpoint_names, unneeded_checkpoints
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import FurtherTeacher
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.forgetting import ids_of
from pipelines.track.registry.ledger import Ledger
from streaming.errors import BadInput
from streaming.lake.readers import Readers


def older_models(run_dir: RunDir, config: Config, *, ended: bool) -> list[Path]:
    """Folders of checkpoints, snapshots and versions that hold what was learned of the person, but for the newest of
    each, those that a run which goes on scores its next blocks with, and versions with an alias."""
    root = run_dir.root
    live, starts = root / "snapshots" / "live", root / "students"
    lag = config.pace.lag if config.pace.mode == "lockstep" and not ended else 1
    found = [path for path in (live, *sorted((root / "teachers").glob("[0-9]*"))) if path.exists()]
    saved = {path.parent.parent for path in root.rglob("manifest.json")}
    for folder in sorted(saved):
        if any(folder.is_relative_to(other) for other in (*found, starts, run_dir.registry, run_dir.artifacts)):
            continue
        keep = max(1, lag) if folder.name == TEACHER else 1
        found += [folder / name for name in unneeded_checkpoints(folder, keep)]
        found += sorted(path for path in folder.glob(".damaged-*") if path.is_dir())
    for ledger in _ledgers(run_dir):
        versions, aliases = sorted(ledger.versions.glob("v*")), ledger.aliases()
        found += [version for version in versions[:-1] if version.name not in aliases]
    return found


def _ledgers(run_dir: RunDir) -> Iterator[Ledger]:
    for path in sorted(run_dir.registry.glob("*.jsonl")):
        yield Ledger(run_dir, path.stem)


def pins(run_dir: RunDir, seq: np.ndarray) -> list[str]:
    """Names of pins whose ranges have one of these rows, (N,) int64 ascending."""
    return [
        reader.name
        for reader in Readers(run_dir.readers).all()
        if (last := reader.last) is not None
        and np.searchsorted(seq, reader.position + 1) < np.searchsorted(seq, last, side="right")
    ]


def learned(run_dir: RunDir) -> dict[str, int]:
    """By worker, the last row that its newest checkpoint has learned."""
    found = {}
    for folder in sorted((run_dir.root / "checkpoints").glob("*/")):
        if (folder.name == TEACHER or folder.name.startswith(STUDENT)) and (names := checkpoint_names(folder)):
            found[folder.name] = int(read_manifest(folder / names[-1])["meta"]["lake_seq"])
    return found


def models_of(config: Config) -> dict[str, FeatureSet]:
    """Features of the models that forget ids, by worker."""
    teachers = [] if config.follows is not None else [TEACHER, *further_teachers(config)]
    found = dict.fromkeys(teachers, config.teacher_features)
    return found | {f"{STUDENT}{student.name}": config.student_features(student) for student in config.students}


def further_teachers(config: Config) -> dict[str, FurtherTeacher]:
    """Further teachers by worker."""
    return {f"{TEACHER}-{each.name}": each for each in config.teachers}


def tables_of(config: Config, values: Mapping[str, Sequence[Any]]) -> tuple[dict[str, dict[str, list[int]]], list[str]]:
    """By table, and by worker, the ids that these values of columns have there; and crosses and other tables that are
    made of these columns, whose rows cannot be told apart."""
    tables: dict[str, dict[str, list[int]]] = {}
    others = []
    histories = {f"{of.name}_{item}": item for of in config.rows.asof.features for item in of.of or ()}
    values = {**values, **{column: values[item] for column, item in histories.items() if item in values}}
    for worker, features in models_of(config).items():
        for feature in features.tabled:
            of = [name for name in feature.reads if name in values]
            if not of:
                continue
            crossed = isinstance(feature, SparseFeature) and bool(feature.columns)
            try:
                ids = [i for each in values[of[0]] for i in ids_of(features, config.rows, feature.name, str(each))]
            except BadInput:
                crossed, ids = True, []
            if crossed:
                others.append(f"table `{feature.name}` of {worker}")
            else:
                tables.setdefault(feature.name, {})[worker] = ids
    return tables, list(dict.fromkeys(others))

"""Registration of a student at the end of a run: the student and its twin as versions of one model, and the champion.

models:/RUN-STUDENT@champion    the one to serve (`champion_of`)
models:/RUN-STUDENT@student     the student, distilled from its teacher
models:/RUN-STUDENT@twin        the same student without a teacher
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.training.predictions import count_predictions
from pipelines.report.results.champion import Champion, champion_of, gain_tags, outcomes_of
from pipelines.report.results.figures import TaskFigures, clustered_by
from pipelines.report.results.verdict import verdict_on
from pipelines.served_rows import ROWS, serving_rules
from pipelines.track.registry.aliases import twin_version
from streaming.lake.reader import LakeReader

EXAMPLE_ROWS = 5


@dataclass(frozen=True)
class Version:
    """One version of a registered model. `role`: student or twin; `aliases` point to it from then on."""

    role: str
    export: Path
    tags: dict[str, str]
    aliases: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the version in the ledger."""
        return twin_version(self.export.name) if self.role == Champion.TWIN else self.export.name


@dataclass(frozen=True)
class Interface:
    """Interface of a model, with the fields of `Registration`."""

    inputs: pa.Schema
    tasks: tuple[str, ...]
    example: list[dict[str, Any]]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Registration:
    """Versions of one model, in the order of their numbers, and their common fields.

    `inputs`: the columns that a caller gives, nullable ones may be left out. `example`: real rows. `settings`: what the
    model is loaded with. `why`: the verdict that the champion follows from.
    """

    model: str
    versions: tuple[Version, ...]
    inputs: pa.Schema
    tasks: tuple[str, ...]
    example: list[dict[str, Any]]
    settings: dict[str, Any]
    champion: Champion
    why: str

    def without_champion(self) -> Registration:
        """The same without a champion."""
        left = tuple(replace(v, aliases=tuple(a for a in v.aliases if a != "champion")) for v in self.versions)
        return replace(self, versions=left)


def registration_of(
    config: Config, run_dir: RunDir, student: StudentSettings, tasks: Mapping[str, TaskFigures]
) -> Registration | None:
    """Registration of a student with these figures by task; None if it learned no row."""
    exports = sorted(run_dir.served(student.name).glob("v*"))
    if not exports or not count_predictions(run_dir.predictions(student.name)):
        return None
    newest, model = exports[-1], f"{config.name}-{student.name}"
    of_twin = run_dir.served_twin(student.name) / newest.name
    champion = champion_of(outcomes_of(tasks), twin=of_twin.exists())
    why = verdict_on(tasks)
    lineage = {"config_hash": config.hash, "lake": str(run_dir.lake), "position": newest.name}
    lineage["intervals_clustered_by"] = clustered_by(config.metrics.clusters)
    tags = {**lineage, "champion": str(champion), "why": why, **gain_tags(tasks)}
    how = interface_of(config, run_dir, student)
    return Registration(
        model=model,
        versions=tuple(
            Version(str(role), export, {"role": str(role), **tags}, (role, "champion") if champion == role else (role,))
            for role, export in ((Champion.TWIN, of_twin), (Champion.STUDENT, newest))
            if export.exists()
        ),
        inputs=how.inputs,
        tasks=how.tasks,
        example=how.example,
        settings=how.settings,
        champion=champion,
        why=why,
    )


def interface_of(config: Config, run_dir: RunDir, student: StudentSettings) -> Interface:
    """Interface of a student of the run, with rows of its lake as an example."""
    inputs = serving_rules(config.rows, config.student_features(student)).schema
    example, tasks = _example(config, run_dir, student, inputs), tuple(config.student_tasks(student))
    return Interface(inputs, tasks, example, {ROWS: config.rows.model_dump(mode="json")})


def champion_lines(registered: Sequence[Registration]) -> list[str]:
    """Describe the champions for the screen: the usual case in one line, every other with its reason."""
    usual = [each.model for each in registered if each.champion is Champion.STUDENT]
    lines = [f"@champion is the student itself in {', '.join(usual)}"] if usual else []
    for each in registered:
        if each.champion is Champion.TWIN:
            lines.append(f"models:/{each.model}@champion is the twin: {each.why}")
        elif each.champion is Champion.NONE:
            twin = any(version.role == Champion.TWIN for version in each.versions)
            instead = "choose @student or @twin" if twin else "no twin was exported that could take its place"
            lines.append(f"models:/{each.model} gets no @champion from this run, {instead}: {each.why}")
    return lines


def _example(config: Config, run_dir: RunDir, student: StudentSettings, inputs: pa.Schema) -> list[dict[str, Any]]:
    """The first rows of the student that the lake holds. A column that one of them lacks is left out: as an example of
    an integer, MLflow takes no null."""
    lake = LakeReader(run_dir.lake, config.rows)
    own = config.own_rows(student)
    verticals = set(own.verticals) or None
    rows = lake.read(limit_rows=EXAMPLE_ROWS, columns=inputs.names, verticals=verticals, filter=own.condition).table
    whole: list[dict[str, Any]] = rows.select([name for name in inputs.names if not rows[name].null_count]).to_pylist()
    return whole

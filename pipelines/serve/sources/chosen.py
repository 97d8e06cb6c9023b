"""Choice of sources by user-facing names: students of a run, or registered models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.text import choices
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.reconciler import with_roster
from pipelines.serve.sources.live import LiveSource
from pipelines.serve.sources.model_source import ModelSource
from pipelines.serve.sources.run import RunSource
from streaming.errors import BadInput
from streaming.schema import RowSchema

Follow = Literal["champion", "candidate", "newest", "live"]


def students_to_serve(run_dir: RunDir, students: Sequence[str]) -> tuple[RowSchema, list[str]]:
    """The run's row schema, and these students; all if none are named. Raises BadInput where there is no such run,
    or student."""
    config = with_roster(config_of(run_dir), run_dir.roster)
    known = [student.name for student in config.students]
    for name in students:
        if name not in known:
            raise BadInput(f"no student of {run_dir.root} is named `{name}`; {choices(name, set(known))}")
    return config.rows, list(students) or known


def model_sources(
    names: Sequence[str], run_dir: Path | None, follow: Follow = "champion", tracking_uri: str | None = None
) -> list[ModelSource]:
    """Sources for students of a run by name (all if none), or for `models:/…` of MLflow's registry.

    Raises BadInput where one of them is not there, both kinds are named, or two have one name.
    """
    registered = [name for name in names if name.startswith("models:")]
    if not registered:
        if run_dir is None:
            raise BadInput("which run's students? Give --run-dir; or name registered models, models:/NAME@champion")
        schema, students = students_to_serve(RunDir(run_dir), names)
        if follow == "live":
            return [LiveSource(RunDir(run_dir), schema, student) for student in students]
        return [RunSource(RunDir(run_dir), schema, student, follow) for student in students]
    if len(registered) < len(names) or run_dir is not None:
        raise BadInput("students of a run (--run-dir) and registered models (models:/…) need a server each")
    if follow != "champion":
        other = "" if follow == "live" else f"; an alias says it of registered models: models:/NAME@{follow}"
        raise BadInput(f"--follow {follow} is of runs (--run-dir){other}")
    from pipelines.serve.sources.registered import RegisteredSource  # a run's server starts without them
    from pipelines.track.mlflow import RegisteredModels

    models = RegisteredModels(tracking_uri)
    origins = [RegisteredSource(models, uri) for uri in registered]
    if twice := [o.model for n, o in enumerate(origins) if o.model in [other.model for other in origins[:n]]]:
        raise BadInput(f"`{twice[0]}` is named twice; a server has one version of a model")
    return list(origins)

"""Deletions by people in MLflow during a run: runs, experiments, versions of a registered model.

A run that is gone is begun anew. An experiment that was deleted stays so, with its name, until it is restored: what
would be written meanwhile is lost, in words. A version that was deleted is neither registered again nor pointed to.
`client` is MLflow's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.track.registry.aliases import twin_version
from streaming.errors import StreamingError
from streaming.program import command

GONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # MLflow's codes for a run purged, and for one deleted
DELETED = "deleted"  # MLflow's lifecycle stage


def is_gone(error: Exception) -> bool:
    """True if MLflow reports a missing or deleted object."""
    return getattr(error, "error_code", None) in GONE


def experiment_id(client: Any, name: str, artifacts: Path) -> str:
    """Id of the experiment, created on demand. Raises StreamingError for one that was deleted."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return str(client.create_experiment(name, artifact_location=artifacts.as_uri()))
    if experiment.lifecycle_stage == DELETED:
        restore = command("mlflow", "experiments", "restore", "--experiment-id", experiment.experiment_id)
        raise StreamingError(
            f"its experiment `{name}` was deleted, and takes nothing; to go on in it: "
            f"MLFLOW_TRACKING_URI={client.tracking_uri} {restore}"
        )
    return str(experiment.experiment_id)


def still_there(client: Any, run_ids: Mapping[str, str]) -> dict[str, str]:
    """MLflow runs of workers that still exist."""
    return {worker: run_id for worker, run_id in run_ids.items() if _lives(client, run_id)}


def _lives(client: Any, run_id: str) -> bool:
    try:
        return bool(client.get_run(run_id).info.lifecycle_stage != DELETED)
    except Exception as error:
        if not is_gone(error):
            raise
        return False


def still_registered(client: Any, model: str, numbers: Mapping[str, str]) -> dict[str, str]:
    """Versions that the model still has; a recreated model counts from 1 again."""
    tags = {str(version.version): version.tags for version in client.search_model_versions(f"name='{model}'")}
    return {name: number for name, number in numbers.items() if _is_of(name, tags.get(str(number)))}


def _is_of(name: str, tags: Mapping[str, str] | None) -> bool:
    if tags is None:
        return False
    position = tags.get("position", name)
    return name in (position, twin_version(position))

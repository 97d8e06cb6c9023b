"""Empty stores of MLflow's: its tables are made once, which takes seconds, and copied; and the lines of its series."""

import re
from pathlib import Path

import mlflow

from pipelines.track.catalogue import MLFLOW, Tracked
from pipelines.track.mlflow import begin_store


def make(uri: str) -> None:
    mlflow.MlflowClient(uri).search_experiments()


def empty_store(folder: Path) -> str:
    """The URI of one in `folder`."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    begin_store(uri, mlflow.__version__, make)
    return uri


def lines_of(name: str) -> list[Tracked]:
    """The lines of the catalogue that a series of MLflow may be of."""
    return [line for line in MLFLOW if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", line.name), name)]

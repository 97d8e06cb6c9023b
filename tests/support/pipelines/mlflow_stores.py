"""Empty stores of MLflow's: its tables are made once, which takes seconds, and copied."""

from pathlib import Path

import mlflow

from pipelines.track.mlflow import begin_store


def make(uri: str) -> None:
    mlflow.MlflowClient(uri).search_experiments()


def empty_store(folder: Path) -> str:
    """The URI of one in `folder`."""
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    begin_store(uri, mlflow.__version__, make)
    return uri

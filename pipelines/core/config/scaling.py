"""Number of augmentation workers that a run was asked for while it ran (`exfm scale-workers`).

    scaling.json    the last request, and its outcome, which the run alone writes

A config that says the number which the run had at first (`was`) means the one that was asked for (`now`): nobody has to
change the file that the run was started with. One that says a third number is a later word than the request.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.core.config.settings import Config, parse
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput
from streaming.store.files import read_json, write_json


class WorkersRequest(BaseModel):
    """A request for another number of workers. `words`: its outcome; None: it has none yet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1, description="of the run's requests, in order")
    was: int = Field(ge=1, description="augmentation.workers of the config")
    now: int = Field(ge=1, description="the number asked for")
    asked_at: str = Field(description="UTC, ISO 8601")
    words: str | None = None
    refused: bool = False

    def answered(self, words: str, *, refused: bool = False) -> WorkersRequest:
        return self.model_copy(update={"words": words, "refused": refused})


def scaling_of(run_dir: RunDir) -> WorkersRequest | None:
    """The last request. Raises BadInput where its record is damaged."""
    value = read_json(run_dir.scaling)
    if value is None:
        return None
    try:
        return WorkersRequest.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadInput(f"{run_dir.scaling} is damaged ({first['msg']}); delete it, and ask again") from None


def ask_for_workers(run_dir: RunDir, config: Config, workers: int) -> WorkersRequest:
    """Request `workers` of the run, durable on return. `config`: the run's, with what was asked for before.

    Raises BadInput where the config cannot have so many.
    """
    with_workers(config, workers)
    before = scaling_of(run_dir)
    had = config.augmentation.workers
    was = before.was if before is not None and not before.refused and before.now == had else had
    number = 1 if before is None else before.number + 1
    asked = WorkersRequest(
        number=number, was=was, now=workers, asked_at=datetime.now(UTC).isoformat(timespec="seconds")
    )
    record(run_dir, asked)
    return asked


def record(run_dir: RunDir, scaling: WorkersRequest) -> None:
    write_json(run_dir.scaling, scaling.model_dump(mode="json"))


def with_scaling(config: Config, run_dir: RunDir) -> Config:
    """The config with the number of workers that was asked for."""
    scaling = scaling_of(run_dir)
    if scaling is None or scaling.refused or config.augmentation.workers != scaling.was:
        return config
    return with_workers(config, scaling.now)


def with_workers(config: Config, workers: int) -> Config:
    """The config with so many augmentation workers. Raises BadInput where it cannot have them."""
    settings = config.model_dump(mode="json")
    settings["augmentation"] = settings["augmentation"] | {"workers": workers}
    return parse(settings).model_copy(update={"kafka": config.kafka})

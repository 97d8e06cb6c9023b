"""Number of augmentation workers that a run was asked for while it ran (`exfm scale-workers`).

    scaling.json    the last request, and its outcome, which the run alone writes

A config that says what the run's own file said (`was`), or what it had last (`before`), means the number that stands:
nobody has to change the file that the run was started with. One that says a third number is a later word than the
request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.core.config.settings import Config, parse
from pipelines.core.run_dir.paths import RunDir
from streaming.errors import BadInput, StreamingError
from streaming.store.files import read_json, write_json
from streaming.store.lock import file_lock

LOCK_WAIT_S = 10.0


class WorkersRequest(BaseModel):
    """A request for another number of workers. `words`: its outcome; None: it has none yet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=1, description="of the run's requests, in order")
    was: int = Field(ge=1, description="augmentation.workers of the file that the run was started with")
    before: int = Field(ge=1, description="the number that stood before")
    asked: int = Field(ge=1, description="the number asked for")
    asked_at: str = Field(description="UTC, ISO 8601")
    words: str | None = None
    refused: bool = False

    @property
    def stands(self) -> int:
        """The number that the run is to have."""
        return self.before if self.refused else self.asked


def workers_request(run_dir: RunDir) -> WorkersRequest | None:
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
    """Request `workers` of the run, durable on return. `config`: the run's own.

    Raises BadInput where the config cannot have so many.
    """
    with _alone(run_dir):
        last = workers_request(run_dir)
        had = with_scaling(config, run_dir).augmentation.workers
        with_workers(config, workers)
        request = WorkersRequest(
            number=1 if last is None else last.number + 1,
            was=last.was if last is not None and last.stands == had else had,
            before=had,
            asked=workers,
            asked_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        write_json(run_dir.scaling, request.model_dump(mode="json"))
    return request


def answer_request(run_dir: RunDir, request: WorkersRequest, words: str, *, refused: bool = False) -> None:
    """Record the outcome of a request; nothing where another has come meanwhile. Only the run does."""
    with _alone(run_dir):
        last = workers_request(run_dir)
        if last is not None and last.number == request.number:
            answered = request.model_copy(update={"words": words, "refused": refused})
            write_json(run_dir.scaling, answered.model_dump(mode="json"))


def answer_at_start(config: Config, run_dir: RunDir) -> None:
    """Answer a request that is open when the run starts with `config`, of which `with_scaling` has taken account."""
    request, workers = workers_request(run_dir), config.augmentation.workers
    if request is None or request.words is not None:
        return
    if workers == request.asked:
        answer_request(run_dir, request, f"augmentation has {workers} since the run's start")
    else:
        words = f"the config that the run was started with says augmentation.workers: {workers}, a later word"
        answer_request(run_dir, request, words, refused=True)


def with_scaling(config: Config, run_dir: RunDir) -> Config:
    """The config with the number of workers that was asked for."""
    request = workers_request(run_dir)
    if request is None or config.augmentation.workers not in (request.was, request.before):
        return config
    return with_workers(config, request.stands)


def with_workers(config: Config, workers: int) -> Config:
    """The config with so many augmentation workers. Raises BadInput where it cannot have them."""
    if workers == config.augmentation.workers:
        return config
    settings = config.model_dump(mode="json")
    settings["augmentation"] = settings["augmentation"] | {"workers": workers}
    return parse(settings).model_copy(update={"kafka": config.kafka})


@contextmanager
def _alone(run_dir: RunDir) -> Iterator[None]:
    """Hold the lock of requests. Raises StreamingError where others held it for too long."""
    with file_lock(run_dir.scaling.with_suffix(".lock"), wait_s=LOCK_WAIT_S) as held:
        if not held:
            raise StreamingError(f"another process has held {run_dir.scaling.name}'s lock for {LOCK_WAIT_S:g} s")
        yield

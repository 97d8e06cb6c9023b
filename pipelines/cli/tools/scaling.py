"""Request for another number of workers of a run, and its outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.scaling import WorkersRequest, ask_for_workers, workers_request
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import run_lives
from streaming.errors import BadInput, StreamingError

LOOK_EVERY_S = 0.2


def workers_asked(counts: Sequence[str]) -> int:
    """The number of augmentation workers of `augmentation=N`. Raises BadInput for anything else.

    >>> workers_asked(["augmentation=3"])
    3
    """
    if len(counts) != 1:
        raise BadInput(f"{len(counts)} numbers of workers are given; one is needed: augmentation=3")
    name, _, number = counts[0].partition("=")
    if name != "augmentation" or not number.isdigit() or not int(number):
        raise BadInput(
            f"`{counts[0]}` names no number of workers; augmentation=3 does. Students are spawned (`exfm spawn`), and "
            "teacher.ranks is a setting of the next start"
        )
    return int(number)


def scale_workers(run_dir: RunDir, counts: Sequence[str], wait_s: float) -> str:
    """Ask the run for the workers that `counts` name (`workers_asked`); gives the outcome in words.

    Raises BadInput where it cannot have them, StreamingError where a run that lives does not answer within `wait_s`.
    """
    config = config_of(run_dir)
    workers = workers_asked(counts)
    request, deadline = ask_for_workers(run_dir, config, workers), time.monotonic() + wait_s
    while (words := _outcome(run_dir, request)) is None and run_lives(run_dir.root):
        if time.monotonic() > deadline:
            raise StreamingError(f"the run has not answered for {wait_s:g} s; it is written down, and will be")
        time.sleep(LOOK_EVERY_S)
    words = words or _outcome(run_dir, request)  # the last thing that a run does may be to answer
    return words or f"the run does not run; augmentation will have {workers} when it starts"


def _outcome(run_dir: RunDir, request: WorkersRequest) -> str | None:
    """The run's answer; None before it. Raises BadInput where the request was refused, or another followed."""
    last = workers_request(run_dir)
    if last is None or last.number < request.number:
        return None
    if last.number > request.number:
        raise BadInput(f"another request came before this one was answered, and holds: augmentation={last.asked}")
    if last.refused:
        raise BadInput(last.words or "refused")
    return last.words

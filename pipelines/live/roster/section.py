"""Config section of a new student, from a request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.config.settings import Config
from pipelines.core.config.text import choices, mapping, merged, override, read_settings
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from streaming.lake.times import first_row_at, length_ms, newest_time_ms

OF_ITS_OWN = ("name", "verticals", "where", "first_seq", "starts_from", "joins_at_rows")
"""What a student does not take from the one that it is like."""


@dataclass(frozen=True)
class SpawnRequest:
    """A request for a new student.

    verticals   whose rows it is for; ("all",): those of every vertical; empty: the one of its name
    where       a condition on these rows
    tasks       empty: those of the student that it is like
    like        the student whose settings it has; None: the run's first one, unless there is a `model`
    start       the student whose weights it starts with
    since       rows of so much event time before the newest are learned: "7d", "12h", "30m", "90s"
    since_seq   the first row that is learned
    live        rows that are in the lake already are not learned
    model       a YAML file with a student's section, or a part of it
    overrides   `path=value`, within the section
    twin        whether a copy without the teacher learns the same rows; None: as the student that it is like
    """

    name: str
    verticals: tuple[str, ...] = ()
    where: str | None = None
    tasks: tuple[str, ...] = ()
    like: str | None = None
    start: str | None = None
    since: str | None = None
    since_seq: int | None = None
    live: bool = False
    model: Path | None = None
    overrides: tuple[str, ...] = ()
    twin: bool | None = None


def section_of(request: SpawnRequest, config: Config, lake: LakeReader) -> dict[str, Any]:
    """Build the section with every setting written out. Raises BadInput, in words, for what cannot be."""
    like = _like(request, config)
    settings = {} if like is None else {k: v for k, v in like.items() if k not in OF_ITS_OWN}
    if request.model is not None:
        model_settings = read_settings(request.model, "section of a student")
        settings = merged(settings, mapping(model_settings, str(request.model)))
    settings["name"] = request.name
    if request.verticals:
        settings["verticals"] = "all" if request.verticals == ("all",) else list(request.verticals)
    if request.where is not None:
        settings["where"] = request.where
    if request.tasks:
        settings["tasks"] = list(request.tasks)
        settings["negative_rate"] = {t: r for t, r in settings.get("negative_rate", {}).items() if t in request.tasks}
    if request.twin is not None:
        settings["twin"] = request.twin
    if request.start is not None:
        settings["starts_from"] = request.start
    settings["first_seq"] = _first_seq(request, lake)
    for text in request.overrides:
        override(settings, text)
    whole = config.having([*others_than(request.name, config), settings], f"student `{request.name}`")
    section: dict[str, Any] = whole.student(request.name).model_dump(mode="json")
    return section


def others_than(name: str, config: Config) -> list[dict[str, Any]]:
    """The sections of all students but this one."""
    return [student.model_dump(mode="json") for student in config.students if student.name != name]


def _like(request: SpawnRequest, config: Config) -> dict[str, Any] | None:
    """The section of the student whose settings it takes; None: the defaults."""
    names = {student.name for student in config.students}
    for option, name in (("--like", request.like), ("--from", request.start)):
        if name is not None and name not in names:
            raise BadInput(f"{option} {name}: no student of the run has that name; {choices(name, names)}")
    named = request.like or request.start
    if named is None and request.model is None and config.students:
        named = config.students[0].name
    return None if named is None else config.student(named).model_dump(mode="json")


def _first_seq(request: SpawnRequest, lake: LakeReader) -> int:
    """The row at which it begins: the first that there is, unless something else is asked for."""
    if sum((request.since is not None, request.since_seq is not None, request.live)) > 1:
        raise BadInput("--since, --since-seq and --live each say where a student begins; give one of them")
    if request.live:
        return lake.last_lake_seq + 1
    if request.since_seq is not None:
        if not lake.first_lake_seq <= request.since_seq <= lake.last_lake_seq + 1:
            raise BadInput(
                f"--since-seq {request.since_seq}: the lake has rows {lake.first_lake_seq:,} to {lake.last_lake_seq:,}"
            )
        return request.since_seq
    if request.since is None:
        return lake.first_lake_seq
    length = length_ms(request.since)
    if length is None:
        raise BadInput(f"--since {request.since} is no length of time; write 7d, 12h, 30m or 90s")
    newest = newest_time_ms(lake)
    return lake.first_lake_seq if newest is None else first_row_at(lake, newest - length)

"""The config that `exfm init` writes, section by section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pipelines.data.profile.finding import Finding, Severity
from pipelines.data.propose.features import Feature, LeftOut
from pipelines.data.propose.labels import Label
from pipelines.data.propose.prepared import Prepared
from pipelines.data.propose.roles import FEW_POSITIVES, MOST_STUDENTS, Roles
from pipelines.data.propose.sizes import Sizes, hashed_rows
from pipelines.data.propose.text import flow, line, remarks, scalar
from pipelines.data.propose.times import EventTime

DAY_MS = 86_400_000


@dataclass
class Draft:
    """All that was found out. `path`: the file as the config names it. `memory`: in words, once the config is known.
    `kafka`: the section of live topics, instead of a file. `made`: the file is a copy."""

    name: str
    origin: str
    path: str
    rows: int
    prepared: Prepared
    time: EventTime
    labels: list[Label]
    roles: Roles
    id_type: str
    features: list[Feature]
    left_out: list[LeftOut]
    findings: list[Finding]
    sizes: Sizes
    memory: str = ""
    made: bool = False
    header: bool | None = None
    encoding: str | None = None
    kafka: dict[str, Any] = field(default_factory=dict)
    made_with: list[str] = field(default_factory=list)


def config_text(draft: Draft) -> str:
    parts = (
        _head(draft),
        _kafka(draft) if draft.kafka else _source(draft),
        _rows(draft),
        _features(draft),
        _sizes(draft),
        _students(draft),
    )
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(draft: Draft) -> Iterator[str]:
    made = " ".join(["exfm init", draft.origin, *draft.made_with])
    yield f"# Written by `{made}`. Behind every guess stands what it was made of, and what else it could be."
    for text in draft.prepared.said:
        yield from remarks([f"{draft.path}: {text}"])
    grave = [finding for finding in draft.findings if finding.severity is not Severity.NOTE]
    if grave:
        yield "#"
        for finding in grave:
            yield from remarks([f"{finding.where}: {finding.seen}; {finding.remedy}".rstrip(".; ") + "."])
    yield f"name: {scalar(draft.name)}"
    yield "seed: 1"


def _source(draft: Draft) -> Iterator[str]:
    time, roles = draft.time, draft.roles
    yield "source:"
    yield "  kind: recorded"
    yield line(f"  path: {scalar(draft.path)}", f"{draft.rows:,} rows")
    yield line(f"  event_time: {scalar(draft.prepared.event_time)}", time.guess.words)
    if draft.prepared.form is not None:
        yield f"  event_time_form: {scalar(draft.prepared.form)}"
    elif draft.prepared.event_time is not None:
        yield f"  event_time_unit: {draft.prepared.unit}"
    if draft.header is not None:
        yield f"  header: {scalar(draft.header)}"
    if draft.encoding is not None:
        yield f"  encoding: {scalar(draft.encoding)}"
    if roles.id.column is not None:
        yield line(f"  impression_id: {scalar(roles.id.column)}", roles.id.words)
    else:
        yield line("  impression_id: null", roles.id.words)
    if roles.vertical.column is None:
        yield line("  vertical_value: all", roles.vertical.words)
    else:
        yield line(f"  vertical: {scalar(roles.vertical.column)}", roles.vertical.words)
    renamed = {feature.name: feature.source for feature in draft.features if feature.name != feature.source}
    if renamed:
        yield line(f"  columns: {flow(renamed)}", "names that rows cannot have")
    yield "  labels:"
    for label in draft.labels:
        yield line(f"    {scalar(label.task)}: {flow(label.setting)}", label.guess.words)


def _kafka(draft: Draft) -> Iterator[str]:
    time, roles = draft.time, draft.roles
    yield line("source: null", f"live topics: about {draft.rows:,} impressions by now")
    yield from remarks(
        [
            f"event_time_ms: {time.guess.words}",
            f"impression_id: {roles.id.words}",
            f"vertical: {roles.vertical.words}",
            *(f"task {label.task}: {label.guess.words}" for label in draft.labels),
        ]
    )
    yield "kafka:"
    for key, value in draft.kafka.items():
        yield f"  {key}: {flow(value)}"


def _rows(draft: Draft) -> Iterator[str]:
    yield "rows:"
    yield f"  impression_id: {draft.id_type}"
    yield "  columns:" if draft.features else "  columns: []"
    for feature in draft.features:
        why = f"logged, read by no model: {feature.why}" if feature.kind is None else ""
        yield line(f"    - {flow(feature.column)}", why)
    for out in draft.left_out:
        yield from remarks([f"left out: {out.name}: {out.why}"], "    ")
    yield "  tasks:"
    for label in draft.labels:
        task: dict[str, Any] = {"name": label.task, "window_s": label.window_s}
        if label.given is not None:
            task["given"] = label.given
        yield line(f"    - {flow(task)}", "; ".join(filter(None, (label.window_why, label.given_why))))
    roles = draft.roles
    clusters = [_named(draft, guess.column) for guess in (roles.user, roles.item)]
    able = [name for name in clusters if name is not None]
    worth = next((f.name for f in draft.features if f.source == roles.value.column), None)
    if able or worth is not None:
        yield ""
        settings: dict[str, Any] = {"group_by": able[0]} if clusters[0] is not None else {}
        if len(able) > 1 or (able and not settings):
            settings["cluster_by"] = able
        if worth is not None:
            settings["value"] = worth
        users = f"user: {roles.user.words}" if clusters[0] is not None else ""
        items = f"item: {roles.item.words}" if clusters[1] is not None else ""
        values = f"value of a click: {roles.value.words}" if worth is not None else ""
        yield line(f"metrics: {flow(settings)}", ". ".join(filter(None, (users, items, values))))


def _named(draft: Draft, column: str | None) -> str | None:
    """The column's name in rows, where predictions can be grouped by it."""
    for feature in draft.features:
        if (
            feature.source == column
            and not feature.column.get("nullable")
            and feature.column.get("type") in (None, "string")
        ):
            return feature.name
    return None


def _features(draft: Draft) -> Iterator[str]:
    yield "features:"
    lists = {kind: [f for f in draft.features if f.kind == kind] for kind in ("sparse", "dense", "sequence")}
    yield "  sparse:"
    for feature in lists["sparse"]:
        yield line(f"    - {flow(feature.setting)}", feature.why)
    verticals = len(draft.roles.of_vertical)
    if verticals > 1:
        yield line(f"    - {{name: vertical, rows: {hashed_rows(verticals)}}}", f"{verticals} verticals")
    elif not lists["sparse"]:
        yield line("    - {name: vertical, rows: 64}", "no column holds ids, and a model needs a table: of one row")
    if draft.time.guess.column is not None and draft.time.high_ms - draft.time.low_ms > 2 * DAY_MS:
        yield line(
            "    # - {name: hour, transform: hour_of_day}",
            "of the event's time, in UTC; try it in a replay",
        )
    for kind in ("dense", "sequence"):
        if lists[kind]:
            yield f"  {kind}:"
            for feature in lists[kind]:
                yield line(f"    - {flow(feature.setting)}", feature.why)


def _sizes(draft: Draft) -> Iterator[str]:
    sizes = draft.sizes
    yield line(f"pace: {flow(sizes.pace)}", sizes.why_pace)
    yield ""
    yield line("teacher:", draft.memory)
    for key, value in sizes.teacher.items():
        why = {"batch_rows": sizes.why_batches, "model": f"width by {sizes.why_width}"}.get(key, "")
        yield line(f"  {key}: {flow(value)}", why)
    yield ""
    yield line("student_defaults:", "twin: the same student without a teacher, to compare")
    for key, value in sizes.student.items():
        yield f"  {key}: {flow(value)}"


def _students(draft: Draft) -> Iterator[str]:
    yield "students:"
    enough = [v for v, (_, positives) in draft.roles.of_vertical.items() if positives >= FEW_POSITIVES]
    own = enough[:MOST_STUDENTS] if draft.roles.vertical.column is not None else []
    if len(own) < 2:
        yield line("  - {name: all, verticals: all}", "one for all rows")
        return
    taken = {"others"}
    for vertical in own:
        rows, positives = draft.roles.of_vertical[vertical]
        name = student_name(vertical, taken)
        taken.add(name)
        student: dict[str, Any] = {"name": name} if name == vertical else {"name": name, "verticals": [vertical]}
        yield line(f"  - {flow(student)}", f"{rows:,} rows, {positives:,} positives")
    others = [vertical for vertical in draft.roles.of_vertical if vertical not in own]
    if others:
        rows, positives = (sum(draft.roles.of_vertical[v][place] for v in others) for place in (0, 1))
        yield line(f"  - {flow({'name': 'others', 'verticals': others})}", f"{rows:,} rows, {positives:,} positives")


def student_name(vertical: str, taken: set[str]) -> str:
    """
    >>> student_name("8", set()), student_name("Sci-Fi & more", set()), student_name("服饰", {"v"})
    ('v8', 'Sci-Fi_more', 'v_')
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", vertical).strip("_.-")
    name = f"v{name}" if not name or name[0].isdigit() else name
    while name in taken:
        name += "_"
    return name

"""The config that `exfm init` writes, section by section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import CommentedMap

from pipelines.data.findings import Finding, Severity
from pipelines.data.propose.asof import ProposedAsOf
from pipelines.data.propose.features import Feature, SkippedColumn
from pipelines.data.propose.labels import Label
from pipelines.data.propose.prepared import PreparedSource
from pipelines.data.propose.roles import FEW_POSITIVES, MOST_STUDENTS, Roles
from pipelines.data.propose.sizes import Sizes, hashed_rows
from pipelines.data.propose.times import EventTimeColumn
from pipelines.data.propose.yaml_text import before, block, dumped, items

DAY_MS = 86_400_000
HOUR = "- {name: hour, transform: hour_of_day} # of the event's time, in UTC; try it in a replay"


@dataclass
class Proposal:
    """A config, and all that was found out for it, findings the gravest first. `path`: the file as the config names it.
    `memory`: in words, once the config is known. `kafka`: the section of live topics, instead of a file. `made`: the
    file is a copy."""

    config: Path
    name: str
    origin: str
    path: str
    rows: int
    columns: int
    prepared: PreparedSource
    time: EventTimeColumn
    labels: list[Label]
    roles: Roles
    id_type: str
    features: list[Feature]
    asof: ProposedAsOf
    left_out: list[SkippedColumn]
    findings: list[Finding]
    sizes: Sizes
    memory: str = ""
    made: bool = False
    header: bool | None = None
    encoding: str | None = None
    kafka: dict[str, Any] = field(default_factory=dict)
    made_with: list[str] = field(default_factory=list)

    @property
    def said(self) -> tuple[str, ...]:
        return self.prepared.said


def config_text(proposal: Proposal) -> str:
    sizes = proposal.sizes
    why = {"batch_rows": sizes.why_batches, "model": f"width by {sizes.why_width}"}
    teacher = block(*((key, value, why.get(key, "")) for key, value in sizes.teacher.items()))
    students = list(_students(proposal))
    defaults = block(*_rows_of_all(students), *proposal.sizes.student.items())
    of_topics = f"live topics: about {proposal.rows:,} impressions by now"
    config = block(
        ("name", proposal.name),
        ("seed", 1),
        ("source", None, of_topics) if proposal.kafka else ("source", _source(proposal)),
        *([("kafka", block(*proposal.kafka.items()))] if proposal.kafka else []),
        ("rows", _rows(proposal)),
        *_metrics(proposal),
        ("features", _features(proposal)),
        ("pace", sizes.pace, sizes.why_pace),
        ("teacher", teacher, proposal.memory),
        ("student_defaults", defaults, "twin: the same without a teacher; where it does as well, you need no teacher"),
        ("students", items(students)),
    )
    before(config, "name", _head(proposal))
    for section in ("source", "rows", "metrics", "features", "pace", "teacher", "student_defaults", "students"):
        if section in config:
            before(config, section, [""])
    if proposal.kafka:
        before(config, "kafka", _of_topics(proposal))
    return dumped(config).lstrip()


def _head(proposal: Proposal) -> Iterator[str]:
    made = " ".join(["exfm init", proposal.origin, *proposal.made_with])
    yield f"Written by `{made}`. Behind every guess stands what it was made of, and what else it could be."
    yield from (f"{proposal.path}: {text}" for text in proposal.said)
    for finding in proposal.findings:
        if finding.severity is not Severity.NOTE:
            yield f"{finding.where}: {finding.seen}; {finding.remedy}".rstrip(".; ") + "."


def _source(proposal: Proposal) -> CommentedMap:
    time, roles, prepared = proposal.time, proposal.roles, proposal.prepared
    unit = [("event_time_unit", prepared.unit)] if prepared.event_time is not None else []
    vertical = ("vertical_value", "all") if roles.vertical.column is None else ("vertical", roles.vertical.column)
    source = block(
        ("kind", "recorded"),
        ("path", proposal.path, f"{proposal.rows:,} rows"),
        ("event_time", prepared.event_time, time.guess.words),
        *([("event_time_form", prepared.form)] if prepared.form is not None else unit),
        *([("header", proposal.header)] if proposal.header is not None else []),
        *([("encoding", proposal.encoding)] if proposal.encoding is not None else []),
        ("impression_id", roles.id.column, roles.id.words),
        (*vertical, roles.vertical.words),
    )
    renamed = {feature.name: feature.source for feature in proposal.features if feature.name != feature.source}
    columns = block(("columns", renamed, "names that rows cannot have")) if renamed else CommentedMap()
    labels = block(*((label.task, label.setting, label.guess.words) for label in proposal.labels))
    return _joined(source, columns, block(("labels", labels)))


def _joined(*parts: CommentedMap) -> CommentedMap:
    """Mappings one after the other, with their comments."""
    whole = CommentedMap()
    for part in parts:
        whole.update(part)
        whole.ca.items.update(part.ca.items)
    return whole


def _of_topics(proposal: Proposal) -> list[str]:
    guesses = {
        "event_time_ms": proposal.time.guess,
        "impression_id": proposal.roles.id,
        "vertical": proposal.roles.vertical,
    }
    guesses |= {f"task {label.task}": label.guess for label in proposal.labels}
    return [f"{name}: {guess.words}" for name, guess in guesses.items()]


def _rows(proposal: Proposal) -> CommentedMap:
    columns = [
        (feature.column, f"logged, read by no model: {feature.why}" if feature.kind is None else "")
        for feature in proposal.features
    ]
    tasks = [
        (
            {"name": label.task, "window_s": label.window_s} | ({"given": label.given} if label.given else {}),
            "; ".join(filter(None, (label.window_why, label.given_why))),
        )
        for label in proposal.labels
    ]
    rows = block(
        ("impression_id", proposal.id_type), ("columns", items(columns) if columns else []), ("tasks", items(tasks))
    )
    if proposal.left_out:
        before(rows, "tasks", [f"left out: {out.name}: {out.why}" for out in proposal.left_out], indent=4)
    return rows


def _metrics(proposal: Proposal) -> Iterator[tuple[str, Any, str]]:
    """Section of the columns by which figures are grouped, where one is known."""
    roles = proposal.roles
    user, item = _named(proposal, roles.user.column), _named(proposal, roles.item.column)
    worth = next((f.name for f in proposal.features if f.source == roles.value.column), None)
    settings: dict[str, Any] = {"group_by": user} if user is not None else {}
    if item is not None:
        settings["cluster_by"] = [name for name in (user, item) if name is not None]
    if worth is not None:
        settings["value"] = worth
    told = (("user", user, roles.user), ("item", item, roles.item), ("value of a click", worth, roles.value))
    if settings:
        yield "metrics", settings, ". ".join(f"{what}: {guess.words}" for what, name, guess in told if name is not None)


def _named(proposal: Proposal, column: str | None) -> str | None:
    """The column's name in rows, where predictions can be grouped by it."""
    able = (f for f in proposal.features if not f.column.get("nullable") and f.column.get("type") in (None, "string"))
    return next((feature.name for feature in able if feature.source == column), None)


def _features(proposal: Proposal) -> CommentedMap:
    lists = {kind: [(f.setting, f.why) for f in proposal.features if f.kind == kind] for kind in ("dense", "sequence")}
    sparse = [(f.setting, f.why) for f in proposal.features if f.kind == "sparse"]
    verticals = len(proposal.roles.of_vertical)
    if verticals > 1:
        sparse.append(({"name": "vertical", "rows": hashed_rows(verticals)}, f"{verticals} verticals"))
    elif not sparse:
        why = "no column holds ids, and a model needs a table: of one row"
        sparse.append(({"name": "vertical", "rows": 64}, why))
    tables = items(sparse)
    if (
        proposal.time.guess.column is not None
        and proposal.time.reading.high_ms - proposal.time.reading.low_ms > 2 * DAY_MS
    ):
        before(tables, len(tables) - 1, [HOUR], indent=4)
    lists["asof"] = proposal.asof.items
    return block(("sparse", tables), *((kind, items(each)) for kind, each in lists.items() if each))


def _students(proposal: Proposal) -> Iterator[tuple[dict[str, Any], str]]:
    of_vertical = proposal.roles.of_vertical
    enough = [v for v, (_, positives) in of_vertical.items() if positives >= FEW_POSITIVES]
    own = enough[:MOST_STUDENTS] if proposal.roles.vertical.column is not None else []
    if len(own) < 2:
        yield {"name": "all", "verticals": "all"}, "one for all rows"
        return
    taken = {"others"}
    for vertical in own:
        rows, positives = of_vertical[vertical]
        name = student_name(vertical, taken)
        taken.add(name)
        verticals = {} if name == vertical else {"verticals": [vertical]}
        yield {"name": name} | verticals, f"{rows:,} rows, {positives:,} positives"
    if others := [vertical for vertical in of_vertical if vertical not in own]:
        rows, positives = (sum(of_vertical[v][place] for v in others) for place in (0, 1))
        yield {"name": "others", "verticals": others}, f"{rows:,} rows, {positives:,} positives"


def _rows_of_all(students: list[tuple[dict[str, Any], str]]) -> Iterator[tuple[str, str, str]]:
    """Settings of whose rows are learned, where verticals are shared out among students; each reads `vertical`."""
    if len(students) > 1:
        yield "label_rows", "all", "labels of every vertical; a student is judged on its own"
        yield "distillation_rows", "all", "and logits"


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

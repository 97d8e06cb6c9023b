"""Place of as-of features in a config: what is written under `features` belongs to `rows.asof`, and each number
is a dense input, too.

features:                                            rows: {asof: {tick_s: 10, features: [...]}}
  asof: [{name: user_rate, by: user_id, rate: ctr}]  features: {dense: [{name: user_rate, transform: logit, …},
asof: {tick_s: 10}                                                      {name: user_rate_shown, transform: log1p, …}]}
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.features.sparse import AGE, EventFeature
from exfm.interactions.hstu import SequenceModel
from streaming.schema import AsOfFeature, RowSchema

INPUTS = {"rate": "logit", "count": "log1p", "residual": "standardise", "since": "log1p", "last": None}
"""Transform of the number that a feature of each kind is; a list is read by features of its own."""


def inputs_of(feature: AsOfFeature) -> list[dict[str, Any]]:
    """Dense features that read the numbers of an as-of feature.

    >>> [each["transform"] for each in inputs_of(AsOfFeature(name="user_rate", by="user_id", rate="ctr"))]
    ['logit', 'log1p']
    """
    transforms = (INPUTS[feature.kind], "log1p")
    if transforms[0] is None:
        return []
    columns = zip(feature.columns, transforms, strict=False)
    return [{"name": column.name, "transform": each, "statistics": "online"} for column, each in columns]


def events_name(of: str) -> str:
    """Name of the as-of feature that holds the events of a column's values."""
    return f"{of}_events"


def event_feature(sequence: SequenceModel, features: FeatureSet, rows: RowSchema) -> EventFeature:
    """The events that a teacher's sequence model reads. Raises ConfigError."""
    by_column = {f.reads[0]: f for f in reversed(features.sparse) if len(f.reads) == 1 and not f.of_time}
    for column in sequence.events:
        if column not in by_column:
            raise ConfigError(
                f"teacher.model.sequence: events name `{column}`, which no sparse feature reads; columns that one "
                f"does: {', '.join(sorted(by_column))}"
            )
    return EventFeature(
        name=events_name(sequence.of),
        items=tuple(by_column[column] for column in sequence.events),
        tasks=tuple(task.name for task in rows.tasks),
        windows_s=tuple(0.0 if sequence.privileged else task.window_s for task in rows.tasks),
        length=sequence.length,
    )


def _with_events(asof: list[Any], settings: dict[str, Any], rows: dict[str, Any]) -> list[Any]:
    """Append to as-of features the list of events that the teacher's sequence model reads. Raises ValueError."""
    teacher = settings.get("teacher")
    model = teacher.get("model") if isinstance(teacher, dict) else None
    written = model.get("sequence") if isinstance(model, dict) else None
    if written is None:
        return asof
    try:
        sequence = SequenceModel.model_validate(written)
    except (ValidationError, ConfigError):  # it is refused where the teacher is read, with its place
        return asof
    name = events_name(sequence.of)
    if any(isinstance(each, dict) and each.get("name") == name for each in asof):
        return asof
    columns = {c.get("name"): c.get("type", "int64") for c in rows.get("columns") or [] if isinstance(c, dict)}
    for key, asked, possible in (
        ("of", [sequence.of], [str(name) for name, kind in columns.items() if not str(kind).startswith("list")]),
        ("events", list(sequence.events), [str(name) for name, kind in columns.items() if kind == "int64"]),
    ):
        if other := [column for column in asked if column not in possible]:
            kind = "int64 columns" if key == "events" else "columns"
            raise ValueError(
                f"teacher.model.sequence: `{key}` names `{other[0]}`; it can name {kind} of the rows: "
                f"{', '.join(possible)}"
            )
    tasks = [task["name"] for task in rows.get("tasks") or [] if isinstance(task, dict) and "name" in task]
    if sequence.having not in (None, *tasks):
        raise ValueError(f"teacher.model.sequence: `having` names `{sequence.having}`; tasks are {', '.join(tasks)}")
    last = {"last": sequence.length, "of": [*sequence.events, *tasks, AGE], "having": sequence.having}
    return [*asof, {"name": name, "by": [sequence.of]} | last]


def as_written(problem: str) -> str:
    """A line about `rows.asof` with the place where a config has it.

    >>> as_written("  rows.asof.features.0.prior: a number is wanted")
    '  features.asof.0.prior: a number is wanted'
    """
    return problem.replace("  rows.asof.features", "  features.asof", 1).replace("  rows.asof", "  asof", 1)


def place_asof(settings: dict[str, Any]) -> dict[str, Any]:
    """Move `features.asof` and the section `asof` of a config's settings to `rows.asof`, and add dense features that
    read them, where none of the name is there. Raises ValueError.

    >>> rate = {"name": "user_rate", "by": "user_id", "rate": "ctr"}
    >>> placed = place_asof({"rows": {"columns": []}, "features": {"asof": [rate]}, "asof": {"tick_s": 5}})
    >>> placed["rows"]["asof"]["tick_s"], [feature["name"] for feature in placed["features"]["dense"]]
    (5, ['user_rate', 'user_rate_shown'])
    """
    features, rows = settings.get("features"), settings.get("rows")
    if not isinstance(features, dict) or not isinstance(rows, dict):
        return settings
    if not isinstance(listed := features.get("asof", []), list) or not isinstance(settings.get("asof", {}), dict):
        raise ValueError("`features.asof` is a list of features, and `asof` a section such as {tick_s: 10}")
    if features.get("events"):
        raise ValueError("`features.events` is made of `teacher.model.sequence`; write that, and leave it out")
    if ("asof" in features or "asof" in settings) and "asof" in rows:
        raise ValueError("`rows.asof` is what `features.asof` and `asof` become; write those, and leave it out")
    if "asof" in features or "asof" in settings:
        rows = rows | {"asof": settings.get("asof", {}) | {"features": listed}}
    asof = rows.get("asof", {})
    if isinstance(asof, dict) and (more := _with_events(asof.get("features", []), settings, rows)):
        rows = rows | {"asof": asof | {"features": more}}
    dense = list(features.get("dense") or [])
    names = {feature.get("name") for feature in dense if isinstance(feature, dict)}
    for written in rows.get("asof", {}).get("features", []) if isinstance(rows.get("asof", {}), dict) else []:
        with suppress(ValidationError):  # it is refused where rows are read, with its place
            dense += [each for each in inputs_of(AsOfFeature.model_validate(written)) if each["name"] not in names]
    placed = {key: value for key, value in settings.items() if key != "asof"}
    rest = {key: value for key, value in features.items() if key != "asof"}
    return placed | {"rows": rows, "features": rest | ({"dense": dense} if dense else {})}

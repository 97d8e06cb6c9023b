"""The JSON schema of a config's file, by which editors complete and check settings."""

from __future__ import annotations

from typing import Any

from pipelines.core.config.settings import Config

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema_of_files() -> dict[str, Any]:
    """JSON schema of a config's file: students inherit from `student_defaults`, and need only a name; a run that
    follows another's lake has its rows and features from there.

    What no section can check alone (columns that features read, say) is for `exfm check`.

    >>> schema = json_schema_of_files()
    >>> sorted(schema["required"]), "student_defaults" in schema["properties"]
    (['name', 'students'], True)
    """
    schema = Config.model_json_schema()
    parts = schema["$defs"]
    student = parts["StudentSettings"]
    defaults = {key: value for key, value in student.items() if key != "required"}
    parts["StudentDefaults"] = defaults | {
        "title": "StudentDefaults",
        "description": "Settings of every student that does not have its own.",
        "properties": {key: value for key, value in student["properties"].items() if key != "name"},
    }
    asof = parts["AsOf"]
    parts["AsOfSettings"] = asof | {"properties": {k: v for k, v in asof["properties"].items() if k != "features"}}
    schema["properties"]["asof"] = {"$ref": "#/$defs/AsOfSettings"}
    parts["FeatureSet"]["properties"]["asof"] = asof["properties"]["features"]
    schema["properties"]["student_defaults"] = {"$ref": "#/$defs/StudentDefaults"}
    follows = {"properties": {"source": {"type": "object", "required": ["lake"]}}, "required": ["source"]}
    own = ["rows", "features"]
    schema |= {"required": [name for name in schema["required"] if name not in own]}
    schema |= {"if": follows, "else": {"required": own}}
    _loosen(parts)
    return {"$schema": DRAFT, **schema}


def _loosen(parts: dict[str, Any]) -> None:
    """Allow the shorter forms that may be written beside those of the models."""
    by = parts["AsOfFeature"]["properties"]["by"]
    parts["AsOfFeature"]["properties"]["by"] = {"anyOf": [{"type": "string", "description": "a column"}, by]}
    arm = parts["Arm"]
    preset = {"preset": {"type": "string", "description": "settings by a name, to which others are added"}}
    written = {**arm, "properties": {**arm["properties"], **preset}}
    parts["Arm"] = {"anyOf": [{"type": "string", "description": "a preset by its name"}, written]}
    for topic in ("Topic", "SparseFeature"):  # a topic keeps its name; buckets say how many rows they make
        optional = {"Topic": "topic", "SparseFeature": "rows"}[topic]
        needed = [name for name in parts[topic].get("required", []) if name != optional]
        parts[topic] = {key: value for key, value in parts[topic].items() if key != "required"}
        parts[topic] |= {"required": needed} if needed else {}

"""The interface of a server as an OpenAPI document: its paths, and the columns that each model reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pipelines.serve.model_store import ModelStore
from pipelines.serve.prediction_request import ARROW, JSON

TEXT = "text/plain"
ERROR = "#/components/schemas/Error"
CODES = {
    "401": "no token, or a wrong one; where the server has one",
    "400": "the body cannot be read, or has too many rows",
    "404": "no such model, or path",
    "405": "another method",
    "408": "the body came too slowly",
    "413": "the body is too long",
    "422": "rows that ingestion would refuse; `?on_bad_rows=null` has null for them",
    "500": "the server failed on this request",
    "503": "no version is published yet; or as many connections as there may be (then in plain text)",
}


def openapi(model_store: ModelStore, *, with_token: bool = False) -> dict[str, Any]:
    """OpenAPI 3.1, with the models that answer now."""
    paths: dict[str, Any] = {
        "/v1/models": _get("The models, their versions, lineage and age", {"200": _models()}),
        "/healthz": _get("Whether the process lives", {"200": {TEXT: {"type": "string"}}}),
        "/readyz": _get(
            "Whether every model has a version", {code: {TEXT: {"type": "string"}} for code in ("200", "503")}
        ),
        "/metrics": _get("Counters for Prometheus", {"200": {TEXT: {"type": "string"}}}),
        "/openapi.json": _get("This document", {"200": {JSON: {"type": "object"}}}),
    }
    for model in model_store.models:
        if (version := model_store.version(model)) is not None:
            paths[f"/v1/models/{model}:predict"] = {"post": _predict(version.inputs, version.tasks)}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "ExFM students", "version": "1"},
        "paths": paths,
        "components": {"schemas": {"Error": _object({"error": {"type": "string"}, "refused": REFUSED}, ["error"])}},
    }
    if with_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in ("/healthz", "/readyz"):
            paths[path]["get"]["security"] = []
    return document


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


REFUSED = {
    "type": "array",
    "items": _object({"row": {"type": "integer", "minimum": 0}, "why": {"type": "string"}}, ["row", "why"]),
}
"""At most so many of the refused rows as a server lists."""


def _content(by_kind: dict[str, Any]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in by_kind.items()}


def _get(summary: str, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    responses = {code: {"description": summary, "content": _content(by_kind)} for code, by_kind in answers.items()}
    return {"get": {"summary": summary, "responses": responses}}


def _models() -> dict[str, Any]:
    column = _object({"type": {"type": "string"}, "nullable": {"type": "boolean"}}, ["type", "nullable"])
    model = {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "version": {"type": ["string", "null"]},
            "tasks": {"type": "array", "items": {"type": "string"}},
            "inputs": {"type": "object", "additionalProperties": column},
            "loaded_at": {"type": "number", "description": "seconds since 1970"},
            "age_s": {"type": "number"},
            "follows": {"type": "string"},
            "published": {"type": "object", "description": "what the registry says of the version"},
            "tables": {
                "type": "object",
                "description": "kind, bytes; where not fp32, the change of NE by task (0.001: a thousandth worse), on "
                "so many labelled rows; null: as it was stated when the version was published",
                "required": ["kind", "bytes"],
            },
            "compiled": {"type": "boolean", "description": "whether it is served as compiled code"},
            "refused": {"type": "string", "description": "which version is not served, and why"},
        },
        "required": ["model", "version"],
    }
    return {JSON: _object({"models": {"type": "array", "items": model}}, ["models"])}


def _predict(inputs: pa.Schema, tasks: tuple[str, ...]) -> dict[str, Any]:
    columns = {field.name: _of(field.type, nullable=field.nullable) for field in inputs}
    lists = {name: {"type": "array", "items": column} for name, column in columns.items()}
    shared = {"type": "object", "properties": columns, "description": "the value of each column that all rows share"}
    rows = {"type": "array", "items": {"type": "object", "properties": columns}}
    body = {
        "oneOf": [
            _object({"rows": rows, "context": shared}, ["rows"]),
            _object({"columns": {"type": "object", "properties": lists}, "context": shared}, ["columns"]),
        ],
        "description": "Each column that may not be null is in the rows or in the context: "
        + ", ".join(field.name for field in inputs if not field.nullable and field.name != "event_time_ms")
        + ("; event_time_ms: left out, the rows are shown now" if "event_time_ms" in inputs.names else ""),
    }
    row_said = _object({task: {"type": "number", "minimum": 0, "maximum": 1} for task in tasks}, list(tasks))
    answer = _object(
        {
            "model": {"type": "string"},
            "version": {"type": "string"},
            "predictions": {"type": "array", "items": {"oneOf": [row_said, {"type": "null"}]}},
            "refused": REFUSED,
        },
        ["model", "version", "predictions"],
    )
    binary = {"type": "string", "format": "binary"}
    header = {"description": "the version that answered", "schema": {"type": "string"}}
    answers: dict[str, Any] = {
        "200": {
            "description": "a probability for each row and task",
            "headers": {"x-exfm-version": header},
            "content": _content({JSON: answer, ARROW: binary}),
        }
    }
    for code, why in CODES.items():
        answers[code] = {"description": why, "content": _content({JSON: {"$ref": ERROR}})}
    parameter = {"name": "on_bad_rows", "in": "query", "schema": {"enum": ["null"]}, "description": CODES["422"]}
    return {
        "summary": "A probability for each row and task",
        "parameters": [parameter],
        "requestBody": {"required": True, "content": _content({JSON: body, ARROW: binary})},
        "responses": answers,
    }


def _of(kind: pa.DataType, *, nullable: bool) -> dict[str, Any]:
    """
    >>> _of(pa.int64(), nullable=True), _of(pa.list_(pa.int64()), nullable=False)["items"]
    ({'type': ['integer', 'null']}, {'type': 'integer'})
    """
    if pa.types.is_list(kind):
        schema: dict[str, Any] = {"type": "array", "items": _of(kind.value_type, nullable=False)}
    elif pa.types.is_integer(kind):
        schema = {"type": "integer"}
    elif pa.types.is_floating(kind):
        schema = {"type": "number"}
    else:
        schema = {"type": "string"}
    return schema | ({"type": [schema["type"], "null"]} if nullable else {})

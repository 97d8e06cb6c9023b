"""Malformed messages of common kinds: each is one message with one record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from streaming.messages.dead_letters import Kind
from streaming.schema import RowSchema

Encoding = Literal["arrow", "json"]
KINDS = (
    "nan",
    "infinity",
    "out_of_range",
    "wrong_type",
    "missing_column",
    "garbage",
    "bad_vertical",
    "unknown_impression",
    "unknown_task",
    "garbage_feedback",
)


class Malformed:
    """Corrupts good impressions in the ways of `KINDS`, in the topics' encoding.

    `unknown_impression` is well-formed feedback whose impression never was; all others are undecodable or invalid.
    A way that the schema leaves no room for (no float column, no bounded one) is passed over.

    >>> from streaming.schema import Column, Task
    >>> schema = RowSchema(columns=[Column(name="bid", type="float32")], tasks=[Task(name="ctr", window_s=60)])
    >>> good = {"impression_id": 1, "event_time_ms": 2, "vertical": "feed", "bid": 0.5}
    >>> Malformed(schema, "json").make("missing_column", good)
    ('impression', b'{"impression_id": 1, "event_time_ms": 2, "vertical": "feed"}')
    """

    def __init__(self, schema: RowSchema, encoding: Encoding) -> None:
        self._schema = schema
        self._encode: Callable[[dict[str, Any], pa.Schema], bytes] = _arrow if encoding == "arrow" else _json
        self._floats = [c.name for c in schema.columns if c.type == "float32"]
        self._bounded = [(c.name, c.minimum) for c in schema.columns if c.minimum is not None]
        self._integers = [c.name for c in schema.columns if c.type == "int64"]
        needs = {"nan": self._floats, "infinity": self._floats, "out_of_range": self._bounded}
        needs |= {"wrong_type": self._integers, "missing_column": schema.columns}
        self.kinds = tuple(kind for kind in KINDS if needs.get(kind, True))

    def draw(self, impressions: pa.RecordBatch, count: int, rng: np.random.Generator) -> list[tuple[Kind, bytes]]:
        """`count` broken records, made from rows of `impressions`."""
        chosen = zip(rng.integers(0, len(self.kinds), count), rng.integers(0, impressions.num_rows, count), strict=True)
        return [self.make(self.kinds[way], impressions.slice(row, 1).to_pylist()[0]) for way, row in chosen]

    def make(self, way: str, good: dict[str, Any]) -> tuple[Kind, bytes]:
        row, schema = dict(good), self._schema.impression
        if way == "garbage":
            return "impression", b"\x00\xffnot a record"
        if way == "garbage_feedback":
            return "feedback", b"{"
        if way in ("unknown_impression", "unknown_task"):
            absent = good["impression_id"] if way == "unknown_task" else -1 - good["impression_id"]
            task = "teleport" if way == "unknown_task" else self._schema.tasks[0].name
            event = {"impression_id": absent, "event_time_ms": good["event_time_ms"], "task": task}
            return "feedback", self._encode(event, self._schema.feedback)
        if way == "nan":
            row[self._floats[0]] = float("nan")
        elif way == "infinity":
            row[self._floats[-1]] = float("inf")
        elif way == "out_of_range":
            name, minimum = self._bounded[0]
            row[name] = minimum - 1
        elif way == "bad_vertical":
            row["vertical"] = ""
        else:
            name = self._integers[0] if way == "wrong_type" else self._schema.columns[-1].name
            place = schema.get_field_index(name)
            schema = schema.remove(place)
            del row[name]
            if way == "wrong_type":
                row[name] = "not a number"
                schema = schema.insert(place, pa.field(name, pa.string()))
        return "impression", self._encode(row, schema)


def _arrow(row: dict[str, Any], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist([row], schema))
    return sink.getvalue().to_pybytes()


def _json(row: dict[str, Any], schema: pa.Schema) -> bytes:
    return json.dumps(row).encode()

"""An immutable served version of a student, so that each request is answered by a single version."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exfm.models.compiled import Packages
from exfm.models.served import load_served
from exfm.snapshots.increments.follower import ServedState
from pipelines.serve.asof import TIME, AsOfInputs, AsOfSource
from pipelines.serve.prediction_request import PredictionRequest
from pipelines.serve.tables import JUDGED_ROWS, TableSettings, refuse_stated, take_tables
from pipelines.served_model import ServedModel
from pipelines.served_rows import checked_columns
from streaming.messages.validation import Refusals, RowRules
from streaming.schema import RowSchema


class Answer(NamedTuple):
    """`probabilities` (n, T) float64 of n rows, NaN where a row is refused, and why."""

    probabilities: np.ndarray
    refusals: Refusals


class Signature(NamedTuple):
    """Name, tasks and inputs of a version, without the model, so that holding it holds no tables."""

    model: str
    name: str
    tasks: tuple[str, ...]
    inputs: pa.Schema
    schema: RowSchema

    def impressions(self, asked: PredictionRequest, at_ms: int) -> pa.RecordBatch:
        """The impression's columns of a request, in the schema's types; `at_ms` is the default event time."""
        there = {*asked.columns, *asked.context, *self.inputs.names, "event_time_ms"}
        rules = RowRules("impression", self.schema, only=there)
        context = dict(asked.context)
        if "event_time_ms" not in asked.columns:
            context.setdefault("event_time_ms", at_ms)
        return checked_columns(asked.columns, context, asked.size, rules)[0]


class ServedVersion:
    """A version on the disk, loaded. `name` is its name in the registry, or that of an export."""

    def __init__(
        self,
        model: str,
        name: str,
        path: Path,
        schema: RowSchema,
        about: dict[str, Any],
        tables: TableSettings = TableSettings(),
        labelled: Callable[[list[str], int], pa.Table] | None = None,
        value: ServedState | None = None,
        packages: Packages | None = None,
        before: ServedVersion | None = None,
        asof: AsOfSource | None = None,
    ) -> None:
        """`labelled`: rows to judge other `tables` than those of fp32 on. `value`: the version, where it is in memory
        already, to be served as it is. `packages`: compiled code; None: not compiled. `before`: a version of the model;
        what depends on its shape alone is shared, so that little is computed while that one answers. `asof`: where
        as-of features are looked up that a request does not give.

        Raises ModelError where the files are damaged or hold something else, such tables predict worse than they may,
        or it cannot be compiled.
        """
        like: ServedModel | None = None if before is None else before._model
        served = load_served(path, None if like is None else like.served) if value is None else value.served
        rows, stated = None, about.get("published", {}).get("tables")
        refuse_stated(tables, stated)
        if tables.kind != "fp32" and labelled is not None:
            from pipelines.live.workers.student.tables import columns_to_judge

            rows = labelled(columns_to_judge(served), JUDGED_ROWS)
        self.model, self.name, self.about = model, name, about | {"tables": take_tables(served, tables, rows, stated)}
        if packages is not None:
            packages.compile(served)
            self.about |= {"compiled": True}
        self.asof = AsOfInputs(schema, served.features.serving_columns(), asof)
        self._model: ServedModel = ServedModel(served, schema, like, self.asof.keys)
        assert self._model.rules is not None
        self._rules = self._model.rules
        self._inputs = self.asof.inputs(self._rules.schema)
        self.value = value  # it stays as it is while it is kept
        self.signature = Signature(model, name, served.tasks, self._rules.schema, schema)
        self.loaded_at = time.time()

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._model.tasks

    @property
    def inputs(self) -> pa.Schema:
        """The raw columns that it reads, or looks up as-of features by; nullable ones may be left out."""
        return self._inputs

    def completed(self, asked: PredictionRequest, now_ms: int) -> PredictionRequest:
        """The request with what it may leave out: event times, and as-of features as of these. Once for each request:
        what is logged says what was answered for."""
        if TIME in self._rules.schema.names:
            asked = asked.at(now_ms)
        return self.asof.completed(asked, now_ms)

    def answer(self, asked: PredictionRequest) -> Answer:
        """A probability for each row and task. Rows that ingestion would refuse are refused with its words."""
        batch, refusals = checked_columns(asked.columns, asked.context, asked.size, self._rules)
        refusals = self.asof.explained(refusals) if refusals else refusals
        return Answer(self._model.answer(batch, refusals), refusals)

    def as_json(self) -> dict[str, Any]:
        columns = {field.name: {"type": str(field.type), "nullable": field.nullable} for field in self.inputs}
        return {
            "model": self.model,
            "version": self.name,
            "tasks": list(self.tasks),
            "inputs": columns,
            "loaded_at": self.loaded_at,
            **self.about,
        }

"""Spans of a block's life, by OpenTelemetry: read, settle, score, commit, publish, and learn, once for each model.

    trace    of a block: its id follows from the lake and the block's number, so that the processes of a run, and runs
             that follow its lake, need not tell each other
    block    the root span, from the worker that commits it; its id follows from the trace's
    steps    its children, made of the phases of the worker's stopwatch: from the first start of one to its last end,
             with `busy_s`, since phases alternate

Only where `tracking.spans` is true. A thread exports them; what it cannot pass on is dropped, and no worker waits.
The exporter is the one that OTEL_TRACES_EXPORTER names; without one it is a file, in OTLP's JSON.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.core.config.settings import Config
from pipelines.core.run_dir.logs import LogForm, LogPosition
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.workers.stopwatch import Stopwatch
from streaming.errors import BadInput

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORTER = "OTEL_TRACES_EXPORTER"
NO_EXPORTER = "none"
STEPS = {
    "poll": "read",
    "wait for messages": "read",
    "decode": "read",
    "merge": "read",
    "settle": "settle",
    "load": "load",
    "wait for teacher": "wait for teacher",
    "score": "score",
    "save state": "commit",
    "write": "commit",
    "commit": "commit",
    "deliver": "deliver",
    "publish": "publish",
    "train": "learn",
    "train twin": "learn",
}
"""The step that a phase belongs to. Others are no part of a block's life."""
FLUSH_S = 2.0
"""Time for what is not exported yet when a worker ends."""


def trace_id(lake: str, block: int) -> str:
    """The trace of a block of the lake of this id: 32 hexadecimal digits.

    >>> trace_id("a lake", 7) == trace_id("a lake", 7) != trace_id("a lake", 8)
    True
    >>> len(trace_id("a lake", 7))
    32
    """
    return sha256(f"{lake}/{block}".encode()).hexdigest()[:32]


def position_in(lake: str, lake_seq: int, block: int) -> LogPosition:
    """Position at a block, for the log."""
    return LogPosition(lake_seq, block, trace_id(lake, block))


class BlockRows(NamedTuple):
    """Rows of one block that a worker had: their number, the first and the last `lake_seq`."""

    block: int
    rows: int
    first: int
    last: int


def blocks_in(rows: pa.Table) -> list[BlockRows]:
    """Blocks in rows of the lake, which are in its order.

    >>> blocks_in(pa.table({"block": [4, 4, 5], "lake_seq": [7, 9, 10]}))
    [BlockRows(block=4, rows=2, first=7, last=9), BlockRows(block=5, rows=1, first=10, last=10)]
    """
    blocks, seqs = rows["block"].to_numpy(), rows["lake_seq"].to_numpy()
    starts = np.flatnonzero(np.diff(blocks, prepend=-1)).tolist()
    return [
        BlockRows(int(blocks[start]), stop - start, int(seqs[start]), int(seqs[stop - 1]))
        for start, stop in zip(starts, [*starts[1:], len(blocks)], strict=True)
    ]


def check_spans(config: Config) -> None:
    """Raise BadInput where spans are asked for, and the exporter that is named is not installed."""
    if config.tracking.spans:
        _named_exporters()


def _named_exporters() -> list[EntryPoint] | None:
    """Exporters that OTEL_TRACES_EXPORTER names; None without it. Raises BadInput for what is not installed."""
    names = [name.strip() for name in os.environ.get(EXPORTER, "").split(",") if name.strip()]
    known = {found.name: found for found in entry_points(group="opentelemetry_traces_exporter")}
    for name in names:
        if name not in (NO_EXPORTER, *known):
            raise BadInput(
                f"{EXPORTER} is `{name}`, and no package installed here has that exporter; choose from "
                f"{', '.join(sorted([NO_EXPORTER, *known]))}, or install the package (otlp_proto_http: "
                "opentelemetry-exporter-otlp-proto-http); without the variable spans go to the run's `logs/`"
            )
    return [known[name] for name in names if name != NO_EXPORTER] if names else None


class BlockSpans:
    """Spans of one worker's steps with the blocks of the lake of this id."""

    def __init__(self, run: str, worker: str, lake: str, watch: Stopwatch, to: Sequence[SpanExporter]) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import IdGenerator

        class Ids(IdGenerator):
            trace = 0
            root: int | None = None
            """Id of the span that is made next; None: any."""

            def generate_trace_id(self) -> int:
                return self.trace

            def generate_span_id(self) -> int:
                return self.root or secrets.randbits(63) + 1  # not of `random`, whose state is the run's

        self._of = {"exfm.run": run, "exfm.worker": worker}
        self._lake, self._watch, self._ids = lake, watch, Ids()
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "exfm"}
        self._provider = TracerProvider(resource=Resource.create(named), id_generator=self._ids, shutdown_on_exit=False)
        for exporter in to:
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("exfm")
        self._zero_ns = time.time_ns() - time.perf_counter_ns()  # of the stopwatch's clock
        watch.mark()

    def note(self, blocks: Sequence[BlockRows], *, root: bool = False) -> None:
        """Make the spans of these blocks, of all that the stopwatch measured since the last call. `root`: they begin
        and end here, so their root spans are made, too."""
        steps: dict[str, tuple[float, float, float]] = {}
        for phase, mark in self._watch.mark().items():
            if (step := STEPS.get(phase)) is not None:
                first, last, busy = steps.get(step, mark)
                steps[step] = min(first, mark[0]), max(last, mark[1]), mark[2] + (busy if step in steps else 0.0)
        if not steps:
            return
        whole = min(first for first, _, _ in steps.values()), max(last for _, last, _ in steps.values())
        for block in blocks:
            self._make(block, steps, whole if root else None)

    def _make(
        self, block: BlockRows, steps: Mapping[str, tuple[float, float, float]], whole: tuple[float, float] | None
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        trace = int(trace_id(self._lake, block.block), 16)
        root = trace % (1 << 63) + 1
        of = self._of | {
            "exfm.block": block.block,
            "exfm.rows": block.rows,
            "exfm.lake_seq.first": block.first,
            "exfm.lake_seq.last": block.last,
        }
        # Every process decides alike whether a trace is sampled: by its id.
        sampled = self._provider.sampler.should_sample(None, trace, "block").decision.is_sampled()
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        parent = set_span_in_context(NonRecordingSpan(SpanContext(trace, root, is_remote=True, trace_flags=flags)))
        if whole is not None:
            with self._ids_of_root(trace, root):
                span = self._tracer.start_span("block", Context(), attributes=of, start_time=self._ns(whole[0]))
            span.end(self._ns(whole[1]))
        for step, (first, last, busy_s) in steps.items():
            own = of | {"exfm.busy_s": round(busy_s, 6)}
            self._tracer.start_span(step, parent, attributes=own, start_time=self._ns(first)).end(self._ns(last))

    @contextmanager
    def _ids_of_root(self, trace: int, root: int) -> Iterator[None]:
        self._ids.trace, self._ids.root = trace, root
        try:
            yield
        finally:
            self._ids.root = None

    def _ns(self, at_s: float) -> int:
        return self._zero_ns + round(at_s * 1e9)

    def close(self) -> None:
        """Export what is left, for FLUSH_S at most: a collector that does not answer keeps no worker."""
        ending = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        ending.start()
        ending.join(FLUSH_S)


def spans_of(config: Config, run_dir: RunDir, worker: str, lake: str, watch: Stopwatch) -> BlockSpans | None:
    """Spans of a worker, where the config asks for them. Raises BadInput as `check_spans` does."""
    if not config.tracking.spans:
        return None
    check_spans(config)
    if (named := _named_exporters()) is None:
        log_file = LogForm(config.resources.log_mb).handler(run_dir.logs / f"{worker}.spans.jsonl")
        return BlockSpans(config.name, worker, lake, watch, [file_exporter(log_file)])
    return BlockSpans(config.name, worker, lake, watch, [each.load()() for each in named])


def file_exporter(handler: logging.Handler) -> SpanExporter:
    """An exporter that writes spans by a log's handler, so that the file is rotated: a request of OTLP a line, in JSON,
    as the collector's `otlpjsonfile` receiver reads it."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    handler.setFormatter(logging.Formatter())

    class File(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            record = logging.LogRecord("", logging.INFO, "", 0, json.dumps(otlp(spans)), None, None)
            handler.handle(record)
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            handler.close()

    return File()


def otlp(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Spans of one resource as a request of OTLP, in its JSON: ids in hexadecimal, 64-bit integers as texts."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(spans[0].resource.attributes)},
                "scopeSpans": [{"scope": {"name": "exfm"}, "spans": [_span(span) for span in spans]}],
            }
        ]
    }


def _span(span: ReadableSpan) -> dict[str, Any]:
    parent = {} if span.parent is None else {"parentSpanId": f"{span.parent.span_id:016x}"}
    return {
        "traceId": f"{span.context.trace_id:032x}",
        "spanId": f"{span.context.span_id:016x}",
        **parent,
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """
    >>> _attributes({"rows": 5, "run": "demo"})
    [{'key': 'rows', 'value': {'intValue': '5'}}, {'key': 'run', 'value': {'stringValue': 'demo'}}]
    """

    def typed(value: Any) -> dict[str, Any]:
        if isinstance(value, float):
            return {"doubleValue": value}
        return {"intValue" if isinstance(value, int) else "stringValue": str(value)}

    return [{"key": key, "value": typed(value)} for key, value in values.items()]

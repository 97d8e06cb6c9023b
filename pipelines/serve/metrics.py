"""Metrics of a server for Prometheus.

A server of several processes answers each question from one of them: the label `process` keeps their counts apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pipelines.serve.logged import ServedLog
from pipelines.serve.model_store import ModelStore

BUCKETS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
OF_MODEL = ("process", "model")


class ServingMetrics:
    """Counters of requests, and what the shelf and the log of served rows say when they are asked."""

    def __init__(self, model_store: ModelStore, served_log: ServedLog | None = None) -> None:
        disable_created_metrics()
        self._registry = CollectorRegistry()
        self._requests = Counter("exfm_requests", "Requests by HTTP code", (*OF_MODEL, "code"), registry=self._registry)
        self._rows = Counter("exfm_rows", "Rows predicted", OF_MODEL, registry=self._registry)
        self._refused = Counter("exfm_refused_rows", "Rows refused", OF_MODEL, registry=self._registry)
        self._seconds = Histogram(
            "exfm_request_seconds", "Time of a request", OF_MODEL, buckets=BUCKETS_S, registry=self._registry
        )
        self._registry.register(_Served(model_store, served_log))

    def note(self, model: str, code: int, seconds: float, rows: int = 0, refused: int = 0) -> None:
        """Count a request."""
        me = str(os.getpid())
        self._requests.labels(me, model, str(code)).inc()
        self._rows.labels(me, model).inc(rows)
        self._refused.labels(me, model).inc(refused)
        self._seconds.labels(me, model).observe(seconds)

    def text(self) -> str:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry).decode()


class _Served(Collector):
    """Collector of what is served, and of the state of its log, at the moment of the question."""

    def __init__(self, model_store: ModelStore, served_log: ServedLog | None) -> None:
        self._model_store, self._log = model_store, served_log

    def collect(self) -> Iterator[Metric]:
        me, now_s = str(os.getpid()), time.time()
        info = GaugeMetricFamily("exfm_version_info", "The version that answers", labels=(*OF_MODEL, "version"))
        age = GaugeMetricFamily("exfm_version_age_seconds", "Since the version was loaded", labels=OF_MODEL)
        for model in self._model_store.models:
            if (version := self._model_store.version(model)) is not None:
                info.add_metric((me, model, version.name), 1)
                age.add_metric((me, model), now_s - version.loaded_at)
        answered = HistogramMetricFamily("exfm_freshness_seconds", "From a step to its first answer", labels=OF_MODEL)
        served = HistogramMetricFamily("exfm_step_to_served_seconds", "From a step to its version", labels=OF_MODEL)
        for model, fresh in self._model_store.freshness.items():
            answered.add_metric((me, model), *fresh.answers.histogram())
            served.add_metric((me, model), *fresh.served.histogram())
        yield from (info, age, answered, served)
        if (written_s := self._model_store.asof_written_s) is not None:
            asof = GaugeMetricFamily("exfm_asof_age_seconds", "Since as-of state was written", labels=("process",))
            asof.add_metric((me,), now_s - written_s)
            yield asof
        counts = {
            "exfm_swaps": ("Versions taken up", self._model_store.swaps),
            "exfm_refused_versions": ("Versions refused", self._model_store.refusals),
        }
        if self._log is not None:
            for fate in ("written", "dropped", "unidentified"):
                counts[f"exfm_log_{fate}_rows"] = (f"Served rows {fate}", getattr(self._log, fate))
        for name, (words, count) in counts.items():
            counter = CounterMetricFamily(name, words, labels=("process",))
            counter.add_metric((me,), count)
            yield counter

"""Metrics of a server for Prometheus: its figures as one value, of which the catalogue makes the text.

A server of several processes answers each question from one of them: the label `process` keeps their counts apart.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from typing import Any

from pipelines.serve.logged import ServedLog
from pipelines.serve.model_store import Ages, ModelStore
from pipelines.track.catalogue import SERVER, exposition

REQUEST_BUCKETS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
FATES = ("written", "dropped", "unidentified")


class ServingMetrics:
    """Counters of requests, and what the shelf and the log of served rows say when they are asked."""

    def __init__(self, model_store: ModelStore, served_log: ServedLog | None = None) -> None:
        self._model_store, self._log = model_store, served_log
        self._lock = threading.Lock()
        self._requests: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._rows: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._seconds: defaultdict[str, Ages] = defaultdict(lambda: Ages(REQUEST_BUCKETS_S))

    def note(self, model: str, code: int, seconds: float, rows: int = 0, refused: int = 0) -> None:
        """Count a request."""
        with self._lock:
            self._requests[model][code] += 1
            self._rows[model] += rows
            self._refused[model] += refused
            self._seconds[model].add(seconds)

    def as_json(self) -> dict[str, Any]:
        """All figures, as the catalogue reads them (`SERVER`)."""
        store, now_s = self._model_store, time.time()
        with self._lock:
            models: dict[str, dict[str, Any]] = {
                model: {
                    "requests": dict(codes),
                    "rows": self._rows[model],
                    "refused_rows": self._refused[model],
                    "seconds": self._seconds[model].histogram(),
                }
                for model, codes in self._requests.items()
            }
        for model in store.models:
            if (version := store.version(model)) is not None:
                shown = {"version": version.name, "version_age_s": now_s - version.loaded_at}
                models[model] = models.get(model, {}) | shown
        for model, fresh in store.freshness.items():
            shown = {"answered_s": fresh.answers.histogram(), "served_s": fresh.served.histogram()}
            models[model] = models.get(model, {}) | shown
        written_s = store.asof_written_s
        return {
            "models": models,
            "swaps": store.swaps,
            "refused_versions": store.refusals,
            "asof_age_s": None if written_s is None else now_s - written_s,
            "log": {} if self._log is None else {fate: getattr(self._log, fate) for fate in FATES},
        }

    def text(self) -> str:
        """All of them in Prometheus' text format."""
        return exposition(SERVER, self.as_json(), {"process": str(os.getpid())})[0].decode()

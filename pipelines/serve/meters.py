"""What a server has done, as Prometheus reads it (text exposition format 0.0.4)."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import accumulate

from pipelines.serve.logged import ServedLog
from pipelines.serve.shelf import Shelf

BUCKETS_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)


class Meters:
    """Counted by model; one thread counts."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._rows: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._seconds: dict[str, list[int]] = {}
        self._sums: defaultdict[str, float] = defaultdict(float)

    def note(self, model: str, code: int, seconds: float, rows: int = 0, refused: int = 0) -> None:
        self._requests[model, code] += 1
        self._rows[model] += rows
        self._refused[model] += refused
        buckets = self._seconds.setdefault(model, [0] * (len(BUCKETS_S) + 1))
        buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self._sums[model] += seconds

    def text(self, shelf: Shelf, now_s: float, served_log: ServedLog | None = None) -> str:
        """All of them, and what is served. A server of several processes answers each question from one of them: the
        label `process` keeps their counters apart."""
        me = f'process="{os.getpid()}"'
        lines = ["# TYPE exfm_requests_total counter"]
        lines += [
            f'exfm_requests_total{{{me},model="{model}",code="{code}"}} {count}'
            for (model, code), count in sorted(self._requests.items())
        ]
        for name, counts in (("rows", self._rows), ("refused_rows", self._refused)):
            lines.append(f"# TYPE exfm_{name}_total counter")
            lines += [f'exfm_{name}_total{{{me},model="{model}"}} {count}' for model, count in sorted(counts.items())]
        lines.append("# TYPE exfm_request_seconds histogram")
        for model, buckets in sorted(self._seconds.items()):
            upto = [*map(str, BUCKETS_S), "+Inf"]
            counted = list(accumulate(buckets))
            for bound, count in zip(upto, counted, strict=True):
                lines.append(f'exfm_request_seconds_bucket{{{me},model="{model}",le="{bound}"}} {count}')
            lines.append(f'exfm_request_seconds_sum{{{me},model="{model}"}} {self._sums[model]:.6f}')
            lines.append(f'exfm_request_seconds_count{{{me},model="{model}"}} {counted[-1]}')
        lines.append("# TYPE exfm_version_info gauge")
        ages = []
        for model in shelf.models:
            if (version := shelf.version(model)) is not None:
                lines.append(f'exfm_version_info{{{me},model="{model}",version="{version.name}"}} 1')
                ages.append(f'exfm_version_age_seconds{{{me},model="{model}"}} {now_s - version.loaded_at:.1f}')
        lines += ["# TYPE exfm_version_age_seconds gauge", *ages]
        for name in ("freshness", "step_to_served"):
            lines.append(f"# TYPE exfm_{name}_seconds histogram")
            for model, fresh in shelf.freshness.items():
                seconds = fresh.answers if name == "freshness" else fresh.served
                lines += seconds.lines(f"exfm_{name}_seconds", f'{me},model="{model}"')
        lines += ["# TYPE exfm_swaps_total counter", f"exfm_swaps_total{{{me}}} {shelf.swaps}"]
        if served_log is not None:
            for fate in ("written", "dropped", "unidentified"):
                name = f"exfm_log_{fate}_rows_total"
                lines += [f"# TYPE {name} counter", f"{name}{{{me}}} {getattr(served_log, fate)}"]
        lines += [
            "# TYPE exfm_refused_versions_total counter",
            f"exfm_refused_versions_total{{{me}}} {shelf.refusals}",
            "",
        ]
        return "\n".join(lines)

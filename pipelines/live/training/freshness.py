"""Freshness of the teacher: how long what it learned takes to reach a logit, and how far it was behind each row.

teacher        ─► PublishedVersions: a line per snapshot: its last row, and when it learned which share of its rows
augmentation   ─► `learned_to_logit_s`: from learned to the first logit that knows it, over learned rows
each student   ─► `behind_rows`, `behind_s`: from the last row that a logit's teacher had learned to the logit's own
                  row, in rows of the lake and in event time, over rows with logits
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streaming.store.files import write_text
from streaming.store.working_copy import put_shared

PER_DOUBLING = 4
"""Buckets of a histogram for each factor of two: a quantile is at most 19 % above the true one."""

LEARNED_SPANS = 32
"""How many spans of learning a published version names; neighbours are joined beyond it."""

LOG_BYTES = 16 * 2**20
"""The log of versions forgets its older half beyond this size."""


class LogHistogram:
    """Distribution of values ≥ 0 in buckets of equal width on a log scale.

    >>> spread = LogHistogram()
    >>> spread.add(np.array([0.0, 1.0, 2.0, 2.0, 100.0]))
    >>> spread.rows, spread.quantile(0.5), spread.quantile(1.0)
    (5, 2.0, 100.0)
    >>> LogHistogram(spread.state()).quantile(0.5)
    2.0
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._counts: dict[int | None, int] = {k: n for k, n in state["counts"]} if state else {}  # None: of zeros
        self._largest: float = state["largest"] if state else 0.0

    def add(self, values: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Add values (N,), each `counts` (N,) times; negative ones as 0."""
        values = np.maximum(values, 0.0)
        if not len(values):
            return
        self._largest = max(self._largest, float(values.max()))
        with np.errstate(divide="ignore"):
            buckets = np.ceil(PER_DOUBLING * np.log2(values))
        distinct, places = np.unique(buckets, return_inverse=True)
        for bucket, count in zip(distinct.tolist(), np.bincount(places, counts).tolist(), strict=True):
            key = None if math.isinf(bucket) else int(bucket)
            self._counts[key] = self._counts.get(key, 0) + int(count)

    @property
    def rows(self) -> int:
        return sum(self._counts.values())

    def quantile(self, q: float) -> float | None:
        """Upper bound of the bucket that has the quantile, at most the largest value; None without values."""
        left = q * self.rows
        for bound, count in self._bounds():
            left -= count
            if left <= 0:
                return bound
        return None

    def _bounds(self) -> list[tuple[float, int]]:
        """Upper bound and count of every bucket, in order."""
        ordered = sorted(self._counts.items(), key=lambda each: -math.inf if each[0] is None else each[0])
        bounds = [(0.0 if k is None else 2 ** (k / PER_DOUBLING), count) for k, count in ordered]
        return [(min(bound, self._largest), count) for bound, count in bounds]

    def as_json(self) -> dict[str, Any]:
        """The distribution for status and summary; `histogram`: [upper bound, rows] of every bucket."""
        return {
            "rows": self.rows,
            "p50": self._rounded(0.5),
            "p95": self._rounded(0.95),
            "largest": round(self._largest, 3),
            "histogram": [[round(bound, 3), count] for bound, count in self._bounds()],
        }

    def _rounded(self, q: float) -> float | None:
        value = self.quantile(q)
        return None if value is None else round(value, 3)

    def state(self) -> dict[str, Any]:
        return {"counts": [[bucket, count] for bucket, count in self._counts.items()], "largest": self._largest}


class PublishedVersion(NamedTuple):
    """A snapshot of the teacher: the last row that it has learned, that row's event time (None: not known), and
    [milliseconds of the wall clock, rows]: when it learned how many of the rows since the version before."""

    version: int
    lake_seq: int
    event_time_ms: int | None
    learned: list[list[int]]


class LearnedSpans:
    """Times at which rows were learned, since the last `take`."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._spans: list[list[int]] = []

    def note(self, rows: int) -> None:
        self._spans.append([self._now_ms(), rows])
        if len(self._spans) > 2 * LEARNED_SPANS:  # the earlier time of two counts for both
            pairs = zip(self._spans[::2], self._spans[1::2], strict=False)
            odd = self._spans[len(self._spans) // 2 * 2 :]
            self._spans = [[first[0], first[1] + second[1]] for first, second in pairs] + odd

    def take(self) -> list[list[int]]:
        spans, self._spans = self._spans, []
        return spans


class PublishedVersions:
    """Log of published versions, a line of JSON each, written by the teacher before a snapshot can be seen.

    A reader looks at what was appended since its last look. Of a version that was published again the last line counts.
    """

    def __init__(self, path: Path, *, spans: bool = False) -> None:
        """`spans`: whether `learned` is read, too."""
        self._path, self._spans = path, spans
        self._at = 0
        self._inode: int | None = None
        self._known: dict[int, PublishedVersion] = {}

    def append(self, published: PublishedVersion) -> None:
        """Append one version. One process writes."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size > LOG_BYTES:
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            write_text(self._path, "".join(lines[len(lines) // 2 :]))
        with self._path.open("a+b") as file:
            if file.tell() and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                file.write(b"\n")  # a crash tore the line before
            file.write(json.dumps(published).encode() + b"\n")
        put_shared(self._path)

    def refresh(self) -> None:
        """Read what was appended."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self._inode, self._at, self._known = inode, 0, {}
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):  # being written
                    break
                self._at += len(line)
                try:
                    published = PublishedVersion(*json.loads(line))
                except (ValueError, TypeError):
                    continue  # torn by a crash
                self._known[published.version] = published if self._spans else published._replace(learned=[])

    def get(self, version: int) -> PublishedVersion | None:
        """A version, if the log knows it."""
        if version not in self._known:
            self.refresh()
        return self._known.get(version)

    def between(self, after: int, upto: int) -> list[PublishedVersion]:
        """Versions behind `after` and up to `upto`, in order."""
        self.refresh()
        return [self._known[version] for version in sorted(self._known) if after < version <= upto]


class LearnedToLogit:
    """Time from learned to the first logit that knows it, over learned rows. `state` is stored by the worker."""

    def __init__(self, versions: PublishedVersions, now_ms: Callable[[], int]) -> None:
        self._versions, self._now_ms = versions, now_ms
        self.delays_s = LogHistogram()
        self._upto: int | None = None

    def note(self, version: int) -> None:
        """Note that a version has scored."""
        if self._upto is not None and version <= self._upto:
            return
        now_ms = self._now_ms()
        after = version - 1 if self._upto is None else self._upto  # what came before a first look was never waited for
        spans = [span for each in self._versions.between(after, version) for span in each.learned]
        self._upto = version
        if spans:
            learned_ms, rows = np.array(spans, np.int64).T
            self.delays_s.add((now_ms - learned_ms) / 1000, rows)

    def state(self) -> dict[str, Any]:
        return {"upto": self._upto, "delays_s": self.delays_s.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._upto, self.delays_s = state["upto"], LogHistogram(state["delays_s"])


class TeacherBehind:
    """Distance from the last row that a logit's teacher had learned to the logit's own row."""

    def __init__(self, versions: PublishedVersions, state: Mapping[str, Any] | None = None) -> None:
        self._versions = versions
        self.rows = LogHistogram(state and state["rows"])
        self.seconds = LogHistogram(state and state["seconds"])

    def note(self, versions: np.ndarray, lake_seqs: np.ndarray, event_times_ms: np.ndarray) -> None:
        """Note rows (N,) with logits of these versions."""
        for version in np.unique(versions).tolist():
            published = self._versions.get(version)
            if published is None:
                continue
            mine = versions == version
            self.rows.add(lake_seqs[mine] - published.lake_seq)
            if published.event_time_ms is not None:
                self.seconds.add((event_times_ms[mine] - published.event_time_ms) / 1000)

    def as_json(self) -> dict[str, Any]:
        return {"behind_rows": self.rows.as_json(), "behind_s": self.seconds.as_json()}

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows.state(), "seconds": self.seconds.state()}


def figures_of(freshness: Mapping[str, Any] | None) -> list[tuple[str, float]]:
    """Figures of a worker's freshness as metrics.

    >>> spread = LogHistogram()
    >>> spread.add(np.array([1.0, 1.0, 4.0]))
    >>> figures_of({"behind_rows": spread.as_json()})
    [('freshness/behind_rows_p50', 1.0), ('freshness/behind_rows_p95', 4.0)]
    """
    figures: list[tuple[str, float]] = []
    for name, spread in (freshness or {}).items():
        figures += [(f"freshness/{name}_{q}", spread[q]) for q in ("p50", "p95") if spread[q] is not None]
    return figures

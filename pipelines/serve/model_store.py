"""Model store: the served versions, kept up to date with their registries.

    look() ──► the registry says another champion? ──► loaded beside the old one ──► one pointer is stored

A request holds the version that it began with, so none is answered by two. A version that cannot be loaded is refused:
the old one stays, and the store says so.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from exfm.errors import ModelError
from exfm.models.compiled import Packages
from exfm.snapshots.increments.follower import ServedState
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.sources import DesiredVersion, Follow, ModelSource, model_sources
from pipelines.serve.tables import TableSettings
from pipelines.serve.version import ServedVersion

BUCKETS_S = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 60.0)
KEPT = 1000
"""So many of the newest increments have the quantiles that people are shown, and wait for an answer."""

log = logging.getLogger(__name__)


class ModelStore:
    """Served versions by model name."""

    def __init__(
        self, sources: Sequence[ModelSource], tables: TableSettings = TableSettings(), packages: Packages | None = None
    ) -> None:
        """`packages`: versions are served compiled."""
        self._tables, self._packages = tables, packages
        self._sources = {source.model: source for source in sources}
        self.asof_sources = {source.asof for source in sources if source.asof is not None}
        self._versions: dict[str, ServedVersion | None] = dict.fromkeys(self._sources)
        self.freshness = {model: Freshness() for model in self._sources}
        self._refused: dict[str, tuple[str, str]] = {}
        self._damaged: set[tuple[str, str]] = set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.swaps = 0
        self.refusals = 0

    def __contains__(self, model: str) -> bool:
        return model in self._versions

    @property
    def models(self) -> list[str]:
        return list(self._versions)

    def version(self, model: str) -> ServedVersion | None:
        """The version that answers now; None while there is none."""
        return self._versions[model]

    def refused(self, model: str) -> str | None:
        """Reason why the desired version is not served."""
        refusal = self._refused.get(model)
        return None if refusal is None else f"{refusal[0]} is not served: {refusal[1]}"

    @property
    def asof_written_s(self) -> float | None:
        """When the state that as-of features are looked up in was written; None if none is looked up."""
        return next((asof.written_s for asof in self.asof_sources), None)

    @property
    def missing(self) -> list[str]:
        """Students without a served version."""
        return [model for model, version in self._versions.items() if version is None]

    def look(self) -> None:
        """Update to the registry's current versions."""
        for asof in self.asof_sources:
            asof.refresh()
        for model in self._versions:
            try:
                self._follow_one(model)
            except Exception as error:  # one student's trouble is its own; what answers now goes on
                self._refuse(model, "the registry's version", f"{type(error).__name__}: {error}")

    def _follow_one(self, model: str) -> None:
        wanted, before = self._sources[model].wanted(), self._versions[model]
        if wanted is None or (before is not None and before.name == wanted.name):
            self._answers(model, wanted)
        elif (model, wanted.name) not in self._damaged:
            self._take(model, wanted, before)

    def _take(self, model: str, wanted: DesiredVersion, before: ServedVersion | None) -> None:
        try:
            version = ServedVersion(
                model, wanted.name, wanted.path, wanted.schema, wanted.about, self._tables, wanted.labelled,
                wanted.value, self._packages, before, self._sources[model].asof,
            )  # fmt: skip
        except ModelError as error:
            if wanted.path.exists():
                self._damaged.add((model, wanted.name))  # not tried again
            self._refuse(model, wanted.name, str(error))
            return
        if wanted.value is not None:
            self.freshness[model].taken_up(wanted.value, time.time(), first=before is None)
        self._versions[model] = version
        self._answers(model, wanted)
        self.swaps += before is not None
        said = log.debug if wanted.value is not None and before is not None else log.info  # increments are many
        said("%s: %s answers%s", model, version.name, "" if before is None else f" in place of {before.name}")

    def _answers(self, model: str, wanted: DesiredVersion | None) -> None:
        """True if the wanted version answers; a newer one may have been refused by its source."""
        if wanted is not None and wanted.refused is not None:
            self._refuse(model, *wanted.refused)
        else:
            self._refused.pop(model, None)

    def _refuse(self, model: str, name: str, why: str) -> None:
        if self._refused.get(model) != (name, why):
            self._refused[model] = name, why
            self.refusals += 1
            log.error("%s: %s is not served: %s", model, name, why)

    # --- following ---------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Update periodically in a thread until `close`, every half second or as often as a source asks."""
        self._thread = threading.Thread(target=self._looking, name="shelf", daemon=True)
        self._thread.start()
        for asof in self.asof_sources:
            asof.follow()

    def _looking(self) -> None:
        every = min(source.look_every_s for source in self._sources.values())
        while not self._over.wait(every):
            self.look()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for asof in self.asof_sources:
            asof.close()
        for source in self._sources.values():
            source.close()


class Ages:
    """Delays in seconds, as a histogram with these upper bounds and the latest ones."""

    def __init__(self, bounds_s: Sequence[float] = BUCKETS_S) -> None:
        self._newest: deque[float] = deque(maxlen=KEPT)
        self._bounds_s = (*bounds_s, inf)
        self._buckets, self._sum = [0] * len(self._bounds_s), 0.0

    def add(self, seconds: float) -> None:
        self._newest.append(seconds)
        self._buckets[bisect_left(self._bounds_s, seconds)] += 1
        self._sum += seconds

    def as_json(self) -> dict[str, Any]:
        newest = list(self._newest)
        if not newest:
            return {"count": 0}
        p50, p95 = np.quantile(newest, (0.5, 0.95)).round(3).tolist()
        return {"count": sum(self._buckets), "last_s": round(newest[-1], 3), "p50_s": p50, "p95_s": p95}

    def histogram(self) -> dict[str, Any]:
        """Counts by upper bound in seconds, and the sum of the seconds."""
        return {"histogram": list(zip(self._bounds_s, self._buckets, strict=True)), "sum": self._sum}


class Freshness:
    """Delay of one model from an optimizer step of the student to the first answer that uses it. One thread takes
    increments up, another answers.

        step ── the next increment ── file ── seen ── taken up ──► served ── the next request ──► answered

    An increment has many steps; it is as late as its first, which waited longest. Times are by the clocks of the
    student's and the server's machines: of two machines they are as right as these agree.

    >>> freshness = Freshness()
    >>> value = ServedState(None, 7, "", "v00000640+7", {}, ({"stepped_s": [10.0, 10.9]},))
    >>> freshness.taken_up(value, 11.2)
    >>> freshness.answered(value, 11.5)
    >>> freshness.as_json()["answered"]["last_s"]
    1.5
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, float]] = deque(maxlen=KEPT)  # by number, when the first step was
        self.served, self.answers = Ages(), Ages()

    def taken_up(self, value: ServedState, now_s: float, *, first: bool = False) -> None:
        """Record a new value before it answers. A full version counts as its increments would, but for the `first`
        of a server."""
        whole = () if first or "stepped_s" not in value.about else (value.about,)
        for about in value.passed or whole:
            stepped = about["stepped_s"][0]
            self.served.add(max(0.0, now_s - stepped))
            self._waiting.append((value.number, stepped))

    def answered(self, value: ServedState, now_s: float) -> None:
        while self._waiting and self._waiting[0][0] <= value.number:
            self.answers.add(max(0.0, now_s - self._waiting.popleft()[1]))

    def as_json(self) -> dict[str, Any]:
        return {"served": self.served.as_json(), "answered": self.answers.as_json()}


def model_store_of(run_dir: RunDir, students: Sequence[str], follow: Follow) -> ModelStore:
    """A model store with the run's current versions; raises like `model_sources`."""
    return open_model_store(model_sources(students, run_dir.root, follow))


def open_model_store(
    sources: Sequence[ModelSource], tables: TableSettings = TableSettings(), packages: Packages | None = None
) -> ModelStore:
    """A model store with the current versions."""
    model_store = ModelStore(sources, tables, packages)
    model_store.look()
    return model_store

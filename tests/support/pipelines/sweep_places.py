"""Places of a sweep that tests work in."""

from __future__ import annotations

from pipelines.offline.sweep import Place


class AsItIs(Place):
    """A sweep of one seed, that of the run; its stream has another."""

    def of(self, seed):
        return self.config

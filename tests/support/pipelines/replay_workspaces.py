"""Places of a replay that tests work in."""

from __future__ import annotations

from pipelines.offline.replay import Workspace


class AsItIs(Workspace):
    """A replay of one seed, that of the run; its stream has another."""

    def of(self, seed, arm=None):
        return self.config

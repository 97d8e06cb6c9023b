"""Source of a student of a run: its champion or candidate, or the export at its last checkpoint."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from exfm.snapshots.checkpoint import checkpoint_names
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.reconciler import with_roster
from pipelines.serve.sources.model_source import LOOK_EVERY_S, DesiredVersion
from pipelines.track.registry.ledger import Ledger
from streaming.schema import RowSchema

Followed = Literal["champion", "candidate", "newest"]


class RunSource:
    """A student of a run. `follow`: `champion` or `candidate` of its registry; or `newest`, what it exported at its
    last checkpoint."""

    look_every_s = LOOK_EVERY_S

    def __init__(self, run_dir: RunDir, schema: RowSchema, student: str, follow: Followed) -> None:
        self.model = student
        self._run_dir, self._schema, self._follow = run_dir, schema, follow
        self._read: tuple[int, DesiredVersion | None] = (-1, None)

    def wanted(self) -> DesiredVersion | None:
        if self._follow == "newest":
            root = self._run_dir.served(self.model)
            names = checkpoint_names(root)
            if not names:
                return None
            return DesiredVersion(names[-1], root / names[-1], self._schema, {"follows": "newest"}, self._labelled)
        ledger = Ledger(self._run_dir, self.model)
        size = ledger.size
        if self._read[0] != size:
            self._read = size, self._of_ledger(ledger)
        return self._read[1]

    def _of_ledger(self, ledger: Ledger) -> DesiredVersion | None:
        name = getattr(ledger.aliases(), self._follow)
        if name is None:
            return None
        published = ledger.published(name)
        about = {
            key: published[key]
            for key in ("at", "rows", "lineage", "figures", "event_time_ms", "tables")
            if key in published
        }
        return DesiredVersion(name, ledger.folder(name), self._schema, {"follows": self._follow, "published": about},
                      self._labelled)  # fmt: skip

    def _labelled(self, columns: list[str], count: int) -> pa.Table:
        """The newest rows of the lake that the student is for, at most `count`."""
        from pipelines.live.workers.student.tables import newest_labelled

        config = with_roster(config_of(self._run_dir), self._run_dir.roster)
        return newest_labelled(config, config.student(self.model), self._run_dir.lake, columns, count)

    def close(self) -> None:
        pass

"""A student in training, as it is now: its increments are taken up as they come (exfm/snapshots/increments).

What is served follows the student that trains, whatever its registry says: neither promotion nor roll-back moves it,
and it moves no champion. While the student does not run, its last state is served, and while one that started again
from a checkpoint has not yet learned as much again.
"""

from __future__ import annotations

import logging

from exfm.errors import ModelError
from exfm.snapshots.increments.follower import Follower
from pipelines.core.run_dir.lease import Lease
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.sources.model_source import DesiredVersion
from streaming.schema import RowSchema

LOOK_EVERY_S = 0.1

log = logging.getLogger(__name__)


class LiveSource:
    """A student of a run. Says in the run directory that increments are wanted, while it is asked."""

    look_every_s = LOOK_EVERY_S

    def __init__(self, run_dir: RunDir, schema: RowSchema, student: str) -> None:
        self.model = student
        self._schema, self._folder = schema, run_dir.live(student)
        self._lease, self._mute = Lease(self._folder / "wanted"), False
        self._follower = Follower(self._folder)

    def wanted(self) -> DesiredVersion | None:
        self._renew()
        self._follower.look()
        value, refused = self._follower.value, self._follower.refused
        if value is None:
            if refused is not None:
                raise ModelError(": ".join(refused))
            return None
        about = {"follows": "live", "published": value.about}
        return DesiredVersion(value.version, self._folder, self._schema, about, value=value, refused=refused)

    def _renew(self) -> None:
        try:
            self._lease.renew()
        except OSError as error:
            if not self._mute:
                log.warning(
                    "%s cannot be written (%s), so the student does not know that increments are wanted; have it run "
                    "with registry.increments=always", self._folder, error.strerror,
                )  # fmt: skip
            self._mute = True

    def close(self) -> None:
        pass

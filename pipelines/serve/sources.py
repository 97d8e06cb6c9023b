"""Sources of versions: what is to be served now, of a student of a run or of a model in MLflow's registry.

runs/demo, student `feed`    the ledger's champion or candidate, or the newest export    RunSource
the same as it learns        increment by increment                                      LiveSource
models:/demo-feed@champion   the version that the alias names; /3 is that version        RegisteredSource
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from exfm.errors import ModelError
from exfm.snapshots.checkpoint import checkpoint_names
from exfm.snapshots.increments.follower import Follower, ServedState
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.text import choices
from pipelines.core.run_dir.lease import Lease
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.asof import AsOfSource
from pipelines.track.registry.ledger import Ledger
from streaming.errors import BadInput
from streaming.schema import RowSchema

if TYPE_CHECKING:
    from pipelines.track.mlflow import RegisteredModels

LOOK_EVERY_S = 0.5
"""So often a source is asked that says nothing else."""
LOOK_LIVE_EVERY_S = 0.1
MODEL_URI = re.compile(r"models:/(?P<model>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<number>[0-9]+))")

Follow = Literal["champion", "candidate", "newest", "live"]

log = logging.getLogger(__name__)


class DesiredVersion(NamedTuple):
    """A version to be served: its location, the row schema of requests, and its registry entry. `labelled(columns,
    count)`: its newest rows with labels, where there are some. `value`: the version itself, where it is in memory
    already. `refused`: a newer one that cannot be served, and why."""

    name: str
    path: Path
    schema: RowSchema
    about: dict[str, Any]
    labelled: Callable[[list[str], int], pa.Table] | None = None
    value: ServedState | None = None
    refused: tuple[str, str] | None = None


class ModelSource(Protocol):
    """Source of the versions of one model. `model` is its name to callers; every `look_every_s` it is asked. `asof`:
    where its as-of features are looked up, the same for all students of a run."""

    model: str
    look_every_s: float
    asof: AsOfSource | None

    def wanted(self) -> DesiredVersion | None:
        """The version to be served now; None while there is none. Asked again and again. Raises ModelError where
        there is one that cannot be read."""
        ...

    def close(self) -> None: ...


class RunSource:
    """A student of a run. `follow`: `champion` or `candidate` of its registry; or `newest`, what it exported at its
    last checkpoint."""

    look_every_s = LOOK_EVERY_S

    def __init__(
        self, run_dir: RunDir, schema: RowSchema, student: str, follow: Follow, asof: AsOfSource | None = None
    ) -> None:
        self.model, self.asof = student, asof
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


class LiveSource:
    """A student in training, as it is now: its increments are taken up as they come (exfm/snapshots/increments), and
    the run directory says that they are wanted, while this is asked.

    What is served follows the student that trains, whatever its registry says: neither promotion nor roll-back moves
    it, and it moves no champion. While the student does not run, its last state is served, and while one that started
    again from a checkpoint has not yet learned as much again.
    """

    look_every_s = LOOK_LIVE_EVERY_S

    def __init__(self, run_dir: RunDir, schema: RowSchema, student: str, asof: AsOfSource | None = None) -> None:
        self.model, self.asof = student, asof
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


class RegisteredSource:
    """A model of MLflow: `models:/NAME@ALIAS` or `models:/NAME/N`. The files of a version are copied here, into a
    folder that goes with this, however it ends."""

    look_every_s = LOOK_EVERY_S
    asof: AsOfSource | None = None

    def __init__(self, models: RegisteredModels, uri: str) -> None:
        """Raises BadInput where that is no such address, or the registry has no such model."""
        address = MODEL_URI.fullmatch(uri)
        if address is None:
            raise BadInput(f"`{uri}` names no registered model; models:/NAME@ALIAS or models:/NAME/N does")
        self.model, self._uri = address["model"], uri
        self._models, self._alias = models, address["alias"]
        self._number = None if address["number"] is None else int(address["number"])
        self._folder = tempfile.TemporaryDirectory(prefix="exfm-models-", ignore_cleanup_errors=True)
        self._copies = Path(self._folder.name)
        self._held: tuple[int, DesiredVersion] | None = None
        names = models.names()
        if self.model not in names:
            there = choices(self.model, set(names)) if names else "it has none; give --tracking-uri"
            raise BadInput(f"{models.uri} has no model `{self.model}`; {there}")

    def wanted(self) -> DesiredVersion | None:
        from pipelines.track.mirror import tables_stated  # a run's server starts without it

        version = self._models.version(self.model, self._alias, self._number)
        if version is None:
            return None
        if self._held is None or self._held[0] != version.number:
            if self._held is not None:
                shutil.rmtree(self._copies / str(self._held[0]), ignore_errors=True)  # it is in memory
            path, settings = self._models.files(self.model, version.number, self._copies / str(version.number))
            if "rows" not in settings:
                raise ModelError(f"{self._uri} has no schema of its rows (exfm 0.1 kept none); register it again")
            published: dict[str, Any] = {"at": version.at, "tags": version.tags}
            if (stated := tables_stated(version.tags)) is not None:
                published["tables"] = stated
            about = {"follows": self._uri, "published": published}
            schema = RowSchema.model_validate(settings["rows"])
            self._held = version.number, DesiredVersion(str(version.number), path, schema, about)
        return self._held[1]

    def close(self) -> None:
        self._folder.cleanup()


def students_to_serve(run_dir: RunDir, students: Sequence[str]) -> tuple[RowSchema, list[str]]:
    """The run's row schema, and these students; all if none are named. Raises BadInput where there is no such run,
    or student."""
    config = with_roster(config_of(run_dir), run_dir.roster)
    names = [student.name for student in config.students]
    for name in students:
        if name not in names:
            raise BadInput(f"no student of {run_dir.root} is named `{name}`; {choices(name, set(names))}")
    return config.rows, list(students) or names


def model_sources(
    names: Sequence[str], run_dir: Path | None, follow: Follow = "champion", tracking_uri: str | None = None
) -> list[ModelSource]:
    """Sources for students of a run by name (all if none), or for `models:/…` of MLflow's registry.

    Raises BadInput where one of them is not there, both kinds are named, or two have one name.
    """
    registered = [name for name in names if name.startswith("models:")]
    if not registered:
        if run_dir is None:
            raise BadInput("which run's students? Give --run-dir; or name registered models, models:/NAME@champion")
        schema, students = students_to_serve(RunDir(run_dir), names)
        asof = AsOfSource(RunDir(run_dir)) if schema.asof.features else None
        if follow == "live":
            return [LiveSource(RunDir(run_dir), schema, student, asof) for student in students]
        return [RunSource(RunDir(run_dir), schema, student, follow, asof) for student in students]
    if len(registered) < len(names) or run_dir is not None:
        raise BadInput("students of a run (--run-dir) and registered models (models:/…) need a server each")
    if follow != "champion":
        other = "" if follow == "live" else f"; an alias says it of registered models: models:/NAME@{follow}"
        raise BadInput(f"--follow {follow} is of runs (--run-dir){other}")
    from pipelines.track.mlflow import RegisteredModels  # a run's server starts without it

    models = RegisteredModels(tracking_uri)
    origins = [RegisteredSource(models, uri) for uri in registered]
    if twice := [o.model for n, o in enumerate(origins) if o.model in [other.model for other in origins[:n]]]:
        raise BadInput(f"`{twice[0]}` is named twice; a server has one version of a model")
    return list(origins)

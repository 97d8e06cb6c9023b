"""Where versions come from: the registry of a run, or that of MLflow.

RunOrigin          runs/demo, student `feed`       the ledger's champion or candidate; or the newest export
RegisteredOrigin   models:/demo-feed@champion      the version that the alias names; /3 is that version for good
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from exfm.errors import ModelError
from exfm.tensors import checkpoint_names
from pipelines.config import choices
from pipelines.control import with_roster
from pipelines.registry import Ledger
from pipelines.run_dir import RunDir
from pipelines.tools import config_of
from pipelines.tracking import RegisteredModels
from streaming.errors import BadInput
from streaming.lake import LakeReader
from streaming.schema import RowSchema

Follow = Literal["champion", "candidate", "newest"]
MODEL_URI = re.compile(r"models:/(?P<model>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<number>[0-9]+))")

LOOK_BACK = 20
"""A student that has fewer than one of so many of the newest rows is judged on fewer."""


class Wanted(NamedTuple):
    """Which version is to be served, where it lies, the rows it is asked about, and what the registry says of it.
    `labelled(columns, count)`: its newest rows with labels, where there are some."""

    name: str
    path: Path
    schema: RowSchema
    about: dict[str, Any]
    labelled: Callable[[list[str], int], pa.Table] | None = None


class Origin(Protocol):
    """Where the versions of one model come from. `model` is its name to callers."""

    model: str

    def wanted(self) -> Wanted | None:
        """The version that is to be served now; None while there is none. Asked again and again."""
        ...

    def close(self) -> None: ...


class RunOrigin:
    """A student of a run. `follow`: `champion` or `candidate` of its registry; or `newest`, what it exported at its
    last checkpoint."""

    def __init__(self, run_dir: RunDir, schema: RowSchema, student: str, follow: Follow) -> None:
        self.model = student
        self._run_dir, self._schema, self._follow = run_dir, schema, follow
        self._read: tuple[int, Wanted | None] = (-1, None)

    def wanted(self) -> Wanted | None:
        if self._follow == "newest":
            root = self._run_dir.served(self.model)
            names = checkpoint_names(root)
            if not names:
                return None
            return Wanted(names[-1], root / names[-1], self._schema, {"follows": "newest"}, self._labelled)
        ledger = Ledger(self._run_dir, self.model)
        size = ledger.size
        if self._read[0] != size:
            self._read = size, self._of_ledger(ledger)
        return self._read[1]

    def _of_ledger(self, ledger: Ledger) -> Wanted | None:
        name = getattr(ledger.standing(), self._follow)
        if name is None:
            return None
        published = next((e for e in ledger.entries() if e["version"] == name and e["action"] == "published"), {})
        about = {
            key: published[key] for key in ("at", "rows", "lineage", "figures", "event_time_ms") if key in published
        }
        return Wanted(name, ledger.folder(name), self._schema, {"follows": self._follow, "published": about},
                      self._labelled)  # fmt: skip

    def _labelled(self, columns: list[str], count: int) -> pa.Table:
        """The newest rows of the lake that the student is for, at most `count`."""
        config = with_roster(config_of(self._run_dir), self._run_dir.roster)
        own = config.own_rows(config.student(self.model))
        lake = LakeReader(self._run_dir.lake, config.rows)
        if lake.last_lake_seq < 0:
            return pa.table({})
        after = max(lake.last_lake_seq - LOOK_BACK * count, lake.first_lake_seq - 1)
        there = set(config.rows.augmented.names)
        wanted = [name for name in columns if name in there]
        read = lake.read(after, columns=wanted, verticals=set(own.verticals) or None, filter=own.condition)
        return read.table.slice(max(0, read.table.num_rows - count))

    def close(self) -> None:
        pass


class RegisteredOrigin:
    """A model of MLflow: `models:/NAME@ALIAS` or `models:/NAME/N`. The files of a version are copied here."""

    def __init__(self, models: RegisteredModels, uri: str) -> None:
        """Raises BadInput where that is no such address, or the registry has no such model."""
        found = MODEL_URI.fullmatch(uri)
        if found is None:
            raise BadInput(f"`{uri}` names no registered model; models:/NAME@ALIAS or models:/NAME/N does")
        self.model, self._uri = found["model"], uri
        self._models, self._alias = models, found["alias"]
        self._number = None if found["number"] is None else int(found["number"])
        self._copies = Path(tempfile.mkdtemp(prefix="exfm-models-"))
        self._held: tuple[int, Wanted] | None = None
        known = models.names()
        if self.model not in known:
            there = choices(self.model, set(known)) if known else "it has none; give --tracking-uri"
            raise BadInput(f"{models.uri} has no model `{self.model}`; {there}")

    def wanted(self) -> Wanted | None:
        version = self._models.version(self.model, self._alias, self._number)
        if version is None:
            return None
        if self._held is None or self._held[0] != version.number:
            if self._held is not None:
                shutil.rmtree(self._copies / str(self._held[0]), ignore_errors=True)  # it is in memory
            path, settings = self._models.files(self.model, version.number, self._copies / str(version.number))
            if "rows" not in settings:
                raise ModelError(f"{self._uri} has no schema of its rows (exfm 0.1 kept none); register it again")
            about = {"follows": self._uri, "published": {"at": version.at, "tags": version.tags}}
            schema = RowSchema.model_validate(settings["rows"])
            self._held = version.number, Wanted(str(version.number), path, schema, about)
        return self._held[1]

    def close(self) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)


def students_to_serve(run_dir: RunDir, students: Sequence[str]) -> tuple[RowSchema, list[str]]:
    """The run's rows, and these students; none: all that the run has. Raises BadInput where there is no such run, or
    student."""
    config = with_roster(config_of(run_dir), run_dir.roster)
    known = [student.name for student in config.students]
    for name in students:
        if name not in known:
            raise BadInput(f"no student of {run_dir.root} is named `{name}`; {choices(name, set(known))}")
    return config.rows, list(students) or known


def origins_of(
    names: Sequence[str], run_dir: Path | None, follow: Follow = "champion", tracking_uri: str | None = None
) -> list[Origin]:
    """Of students of a run by name (none: all of them), or of MLflow's registry by `models:/…`.

    Raises BadInput where one of them is not there, both kinds are named, or two have one name.
    """
    registered = [name for name in names if name.startswith("models:")]
    if not registered:
        if run_dir is None:
            raise BadInput("which run's students? Give --run-dir; or name registered models, models:/NAME@champion")
        schema, students = students_to_serve(RunDir(run_dir), names)
        return [RunOrigin(RunDir(run_dir), schema, student, follow) for student in students]
    if len(registered) < len(names) or run_dir is not None:
        raise BadInput("students of a run (--run-dir) and registered models (models:/…) need a server each")
    if follow != "champion":
        raise BadInput(f"--follow {follow} is of runs; an alias says it of registered models: models:/NAME@{follow}")
    models = RegisteredModels(tracking_uri)
    origins = [RegisteredOrigin(models, uri) for uri in registered]
    if twice := [o.model for n, o in enumerate(origins) if o.model in [other.model for other in origins[:n]]]:
        raise BadInput(f"`{twice[0]}` is named twice; a server has one version of a model")
    return list(origins)

"""Paths inside a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines.core.run_dir.lake_link import read_link
from pipelines.core.run_dir.roster import Roster


def version_name(version: int) -> str:
    """The folder of a checkpoint, snapshot or export: names sort as versions do.

    >>> version_name(7)
    'v00000007'
    """
    return f"v{version:08d}"


@dataclass(frozen=True)
class RunDir:
    """A run's own folder: `config.yaml lake/ checkpoints/ snapshots/ logs/ status.json summary.json …`.

    Of a run that follows another's lake (`follows.json`), the lake with all that belongs to it (tables beside it, the
    teacher's snapshots and record, kept columns, truth) is in the folder of that run.
    """

    root: Path

    @property
    def leader(self) -> RunDir:
        """The run whose lake this one reads: itself, or the one that it follows."""
        link = read_link(self.root)
        return self if link is None else RunDir(link.run)

    @property
    def follows(self) -> bool:
        """True if the lake is another run's."""
        return read_link(self.root) is not None

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def source_files(self) -> Path:
        """Record of the files that the run was begun with."""
        return self.root / "source_files"

    @property
    def copies(self) -> Path:
        """Copies of the source's files, as they are played. They outlive the run: `--fresh` keeps them."""
        return self.root / "source"

    @property
    def lineage(self) -> Path:
        return self.root / "lineage.json"

    @property
    def kept_columns(self) -> Path:
        """Columns added while the stream ran (`rows.undeclared: keep`)."""
        return self.leader.root / "kept_columns.json"

    @property
    def broker(self) -> Path:
        return self.root / "broker"

    @property
    def lake(self) -> Path:
        return self.leader.root / "lake" / "augmented_examples"

    @property
    def side_tables(self) -> Path:
        return self.leader.root / "lake"

    @property
    def readers(self) -> Path:
        """Folder of the lake's readers that are this run's."""
        link = read_link(self.root)
        return self.root / "lake" / "readers" if link is None else link.run / "lake" / "readers" / link.reader

    @property
    def snapshots(self) -> Path:
        return self.leader.root / "snapshots" / "teacher"

    @property
    def takeovers(self) -> Path:
        """Record of the teachers that took over from one another."""
        return self.leader.root / "teachers" / "takeovers.json"

    @property
    def teacher_versions(self) -> Path:
        """Log of the snapshots that teachers published."""
        return self.leader.root / "teachers" / "versions.jsonl"

    def further_teacher(self, name: str) -> Path:
        """Folder of a teacher beside the first."""
        return self.leader.root / "teachers" / "further" / name

    def replaced_teacher(self, number: int) -> Path:
        """Folder of what the run's `number`th teacher left."""
        return self.root / "teachers" / f"{number:04d}"

    @property
    def replacement(self) -> Path:
        """Folder of a teacher that is trained to take over."""
        return self.root / "replacement"

    def checkpoints(self, worker: str) -> Path:
        return self.root / "checkpoints" / worker

    @property
    def roster(self) -> Roster:
        """Desired students beyond the config's."""
        return Roster(self.root)

    def predictions(self, student: str) -> Path:
        return self.root / "predictions" / student

    def quarantine(self, worker: str) -> Path:
        return self.root / "quarantine" / f"{worker}.json"

    def served(self, student: str) -> Path:
        return self.root / "snapshots" / "students" / student

    def served_twin(self, student: str) -> Path:
        return self.root / "snapshots" / "twins" / student

    def live(self, student: str) -> Path:
        """Folder of increments and full versions of a student for servers that follow it live."""
        return self.root / "snapshots" / "live" / student

    @property
    def registry(self) -> Path:
        return self.root / "registry"

    def ledger(self, student: str) -> Path:
        return self.registry / f"{student}.jsonl"

    def versions(self, student: str) -> Path:
        return self.registry / student

    @property
    def truth(self) -> Path:
        return self.leader.root / "truth"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def mlflow(self) -> Path:
        return self.root / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        return self.root / "mlartifacts"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def picture(self) -> Path:
        return self.root / "ne.png"

    @property
    def lock(self) -> Path:
        return self.root / "run.lock"

    @property
    def scaling(self) -> Path:
        """The last request for another number of workers."""
        return self.root / "scaling.json"

    @property
    def silences(self) -> Path:
        """Alarms for which nobody is called, and until when."""
        return self.root / "silences.json"

    @property
    def notices(self) -> Path:
        """Alarms that were sent to people and are not over."""
        return self.root / "notices.json"

    @property
    def forgotten(self) -> Path:
        """Requests to forget ids, and where each worker did."""
        return self.root / "forgotten.json"

    @property
    def erasures(self) -> Path:
        """Record of persons' erasures."""
        return self.root / "erasures.json"

    @property
    def erasing(self) -> Path:
        """An erasure that was begun."""
        return self.root / "erasing.json"

    @property
    def move(self) -> Path:
        """A move to other topics that was begun."""
        return self.root / "move.json"

    @property
    def moves(self) -> Path:
        """Record of moves to other topics."""
        return self.root / "moves.json"

    @property
    def end_offsets(self) -> Path:
        return self.root / "end_offsets.json"


@dataclass(frozen=True)
class BesideRun(RunDir):
    """A folder for what a worker writes beside a run; lake, roster and lineage are those of the run `of`."""

    of: RunDir

    @property
    def lake(self) -> Path:
        return self.of.lake

    @property
    def roster(self) -> Roster:
        return self.of.roster

    @property
    def lineage(self) -> Path:
        return self.of.lineage

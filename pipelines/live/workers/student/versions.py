"""Versions of a student, published while it learns: checked, stored, compared with the champion, promoted.

    due ──► publish: an export that gives the last batch the logits of the student, or it is refused, loudly
                │
                ├─ there is no champion   it is champion
                ├─ no trial is on         it is candidate: a trial begins (champion_challenger.py)
                └─ a trial is on          it is kept, and may be promoted by hand

What is decided follows from the rows alone and travels in the worker's checkpoint, with the evidence. It comes into the
ledger when the checkpoint is on the disk; a crash between the two is made good at the next start. What people decide
(`exfm promote`, `exfm rollback`) stands in the ledger already: it ends a trial, and wins over what the policy decided
before it knew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from exfm import __version__
from exfm.errors import ModelError
from exfm.features.batch import Batch
from exfm.models.engine import STUDENT, StudentEngine
from exfm.models.served import ServedStudent, VersionScorer, check_logits, load_served, load_student, save_served
from exfm.snapshots.named import under
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir, version_name
from pipelines.live.feeds.student import StudentBatch
from pipelines.live.rules.promoting import Promote, Refuse
from pipelines.live.workers.student.champion_challenger import NAME, ChallengerTest
from pipelines.live.workers.student.tables import stated_tables
from pipelines.track.registry.aliases import Action, Aliases
from pipelines.track.registry.ledger import POLICY, Entry, Ledger, LedgerWriter, aliases_after
from streaming.store.files import make_folder
from streaming.store.working_copy import put_tree

FIRST = "the first version: there is no champion to compare it with"
OF_A_TRIAL = (Action.TRIAL, Action.PROMOTED, Action.ENDED)

log = logging.getLogger(__name__)


class Versions:
    """The versions of one student. `alarm`: an error that a person has to look at."""

    def __init__(self, config: Config, student: StudentSettings, run_dir: RunDir, engine: StudentEngine) -> None:
        self._config, self._settings, self._engine = config, config.registry, engine
        self._student, self._lake = student, run_dir.lake
        self._lineage = {"run": config.name, "config_hash": config.hash, "code": __version__, "lake": str(run_dir.lake)}
        self._tasks = config.student_tasks(student)
        self._ledger = Ledger(run_dir, student.name)
        self._size = 0
        self._others = 0  # decisions of people, taken up so far
        self.aliases = Aliases()
        self.champion: ServedStudent | None = None
        self._champion_ms: int | None = None
        self.trial: ChallengerTest[VersionScorer] | None = None
        self._coverage = Coverage()
        self._decided = False
        self._entries: list[Entry] = []  # since the last checkpoint
        self._unwritten: tuple[str, ServedStudent] | None = None
        self.alarm: str | None = None

    # --- beginning ---------------------------------------------------------------------------------------------

    def resume(self, meta: Mapping[str, Any] | None, tensors: Mapping[str, Tensor], position: int) -> None:
        """Resume from the worker's checkpoint at `position`; a new worker has only the ledger."""
        stored = (meta or {}).get(NAME)
        if stored is None:
            entries = self._ledger.entries()
            self.aliases = aliases_after(entries[-1])._replace(candidate=None) if entries else Aliases()
            self._others = sum(entry["by"] != POLICY for entry in entries)
        else:
            self.aliases = Aliases(**stored["standing"])
            self._others, self._entries = stored["others"], stored["entries"]
            self._coverage = Coverage.of(stored)
            self.alarm = stored["alarm"]
        self._load_champion(position)
        self._resume_trial(stored, tensors, position)
        self._restore_unwritten(version_name(position + 1))
        self.read_decisions()

    def _restore_unwritten(self, name: str) -> None:
        """Make the version of this checkpoint again, where a crash came after the checkpoint and before its files."""
        recorded = any(entry["action"] == Action.PUBLISHED and entry["version"] == name for entry in self._entries)
        if recorded and self._unwritten is None and not self._ledger.folder(name).exists():
            self._unwritten = (name, self._engine.student.export())

    def _resume_trial(self, stored: Mapping[str, Any] | None, tensors: Mapping[str, Tensor], position: int) -> None:
        if stored is None or stored["trial"] is None or self.aliases.candidate is None:
            return
        candidate = self._version(self.aliases.candidate, position)
        if candidate is None or not self._begin_trial(candidate, stored["trial"]):
            return
        try:
            assert self.trial is not None
            self.trial.load(tensors)
        except ModelError as error:  # other blocks are asked for now
            log.info("the trial of %s begins again: %s", self.aliases.candidate, error)
            self._begin_trial(candidate, self._coverage.newest_ms or stored["trial"])

    def _load_champion(self, position: int | None = None) -> None:
        name = self.aliases.champion
        self.champion = None if name is None else self._version(name, position)
        published = [e for e in self._ledger.entries() if e["action"] == Action.PUBLISHED and e["version"] == name]
        self._champion_ms = published[-1].get("event_time_ms") if published else self._coverage.published_ms

    def _version(self, name: str, position: int | None) -> ServedStudent | None:
        """A version as it is served. The one of this checkpoint is made again where a crash left it unwritten; None
        where it cannot be read."""
        try:
            if not self._ledger.folder(name).exists() and position is not None and name == version_name(position + 1):
                served = self._engine.student.export()
                self._unwritten = (name, served)
                return served
            return load_served(self._ledger.folder(name))
        except (ModelError, OSError) as error:
            self.alarm = f"version {name} cannot be read, and is compared with nothing: {error}"
            log.error("%s", self.alarm)
            return None

    # --- learning ----------------------------------------------------------------------------------------------

    def judge(self, own: StudentBatch) -> np.ndarray | None:
        """Score the student's own rows with champion and candidate, before they are learned. Returns the champion's
        logits (B, T), None where none were asked for."""
        if self.trial is None or not own.rows.num_rows:
            return None
        return self.trial.judge(own.rows, own.tensors)

    def note(self, rows: pa.Table) -> None:
        """Record learned rows. Where the evidence is enough, a decision is made."""
        self._coverage.note(rows)
        if self.trial is not None:
            self._decide(self.trial, rows["lake_seq"][-1].as_py())

    def _decide(self, trial: ChallengerTest[VersionScorer], position: int) -> None:
        decision = trial.decide()
        if isinstance(decision, Promote) and self._settings.promotion == "by_hand":
            return
        if isinstance(decision, Promote | Refuse):
            name = self.aliases.candidate
            action = Action.PROMOTED if isinstance(decision, Promote) else Action.ENDED
            if action is Action.PROMOTED:
                self.champion, self._champion_ms = trial.candidate.served, trial.fresh_after_ms
            self._add_entry(action, name, decision.reason, lake_seq=position, evidence=trial.as_json())
            self.trial, self._decided = None, True

    def due(self, learned_rows: int) -> bool:
        """True if a version is due after `learned_rows`."""
        every, minutes = self._settings.publish_every_rows, self._settings.publish_every_minutes
        learned = self._coverage
        by_rows = every is not None and learned_rows - learned.published_rows >= every
        if by_rows or minutes is None or learned.newest_ms is None or learned.published_ms is None:
            return by_rows
        return learned.newest_ms - learned.published_ms >= minutes * 60_000

    @property
    def decided(self) -> bool:
        """True if a decision is not yet in a checkpoint."""
        return self._decided

    # --- publishing --------------------------------------------------------------------------------------------

    def publish(
        self, name: str, tensors: Mapping[str, Tensor], batch: Batch, learned_rows: int, position: int, figures: Any
    ) -> None:
        """Publish the engine's state `tensors` as version `name`, if its export gives `batch` the student's logits.
        Otherwise it is refused: the ledger and the alarm say so, and training goes on."""
        self._coverage.publish(learned_rows)
        served = self._engine.student.export()
        load_student(served, under(STUDENT, tensors))
        try:
            difference = check_logits(self._engine.student.score(batch), served, batch)
        except ModelError as error:
            self.alarm = f"version {name} was refused: {error}"
            log.error("%s", self.alarm)
            self._add_entry(Action.REFUSED, name, str(error), lake_seq=position)
            return
        self.alarm, self._unwritten = None, (name, served)
        self._add_entry(
            Action.PUBLISHED,
            name,
            f"{learned_rows:,} rows learned",
            lake_seq=position,
            event_time_ms=self._coverage.newest_ms,
            lineage=self._lineage
            | {"lake_range": [self._coverage.first_seq, position], "teacher_versions": self._coverage.teachers},
            rows=learned_rows,
            figures=figures,
            parity={"rows": len(batch), "largest_difference": difference},
        )
        if self.aliases.champion is None and self._settings.promotion == "auto":
            self._add_entry(Action.PROMOTED, name, FIRST, lake_seq=position)
            self.champion, self._champion_ms = served, self._coverage.newest_ms
        elif self.trial is None:
            reason = f"compared with {self.aliases.champion}" if self.aliases.champion else "waits for `exfm promote`"
            self._add_entry(Action.TRIAL, name, reason, lake_seq=position)
            self._begin_trial(served, self._coverage.newest_ms or 0)

    def _begin_trial(self, candidate: ServedStudent, fresh_after_ms: int) -> bool:
        """Compare it with the champion, if both can be asked about the same batches."""
        champion, self.trial = self.champion, None
        student = self._engine.student
        for version in (champion, candidate):
            if version is None:
                return False
            if version.features != student.features or version.tasks != student.tasks:
                self.alarm = (
                    f"champion {self.aliases.champion} reads other features than the student does now: no trial can "
                    "compare them; `exfm promote` makes a version champion by hand"
                )
                return False
        assert champion is not None
        after = max(fresh_after_ms, self._champion_ms or 0)
        self.trial = ChallengerTest(
            self._tasks, self._settings, VersionScorer(champion), VersionScorer(candidate), after
        )
        return True

    def _add_entry(self, action: Action, version: str | None, reason: str, **more: Any) -> None:
        self.aliases = self.aliases.after(action, version)
        self._entries.append(
            {"action": str(action), "version": version, "reason": reason, "others": self._others, **more}
        )

    # --- what people decide ------------------------------------------------------------------------------------

    def read_decisions(self) -> None:
        """Read people's new decisions from the ledger."""
        size = self._ledger.size
        if size == self._size:
            return
        self._size = size
        others = [entry for entry in self._ledger.entries() if entry["by"] != POLICY]
        if len(others) <= self._others:
            return
        self._others, was = len(others), self.aliases.champion
        self.aliases, self.trial = aliases_after(others[-1])._replace(candidate=None), None
        if self.aliases.champion != was:
            self._load_champion()
        log.info("champion is %s now, by %s: %s", self.aliases.champion, others[-1]["by"], others[-1]["reason"])

    # --- what lasts --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        return {} if self.trial is None else self.trial.state()

    def meta(self) -> dict[str, Any]:
        return {
            NAME: {
                "standing": self.aliases.as_json(),
                "others": self._others,
                "entries": list(self._entries),
                **vars(self._coverage),
                "trial": None if self.trial is None else self.trial.fresh_after_ms,
                "alarm": self.alarm,
            }
        }

    def pending_write(self) -> Callable[[], None]:
        """A deferred write of the version and ledger entries since the last checkpoint, for another thread once that
        checkpoint is on disk. What was written before is not written again."""
        entries, unwritten = self._entries, self._unwritten
        self._entries, self._unwritten, self._decided = [], None, False

        def write() -> None:
            if not entries and unwritten is None:
                return
            if unwritten is not None:
                make_folder(self._ledger.versions)
                put_tree(save_served(unwritten[1], self._ledger.versions, unwritten[0]))
            stated = self._stated(entries, unwritten)
            with self._ledger.writing() as ledger:
                there = {_key(entry) for entry in ledger.entries if entry["by"] == POLICY}
                others = sum(entry["by"] != POLICY for entry in ledger.entries)
                for entry in entries:
                    overtaken = others > entry["others"] and entry["action"] in OF_A_TRIAL
                    if _key(entry) not in there and not overtaken:
                        self._write_entry(ledger, **entry, **stated.get(entry["version"], {}))
                ledger.prune(self._settings.keep_versions)

        return write

    def _stated(
        self, entries: Sequence[Entry], unwritten: tuple[str, ServedStudent] | None
    ) -> dict[str | None, dict[str, Any]]:
        """Cost of smaller tables for the versions that are published by these entries, on rows of the lake up to
        each."""
        found: dict[str | None, dict[str, Any]] = {}
        for entry in entries:
            name = entry["version"]
            if entry["action"] == Action.PUBLISHED and unwritten is not None and unwritten[0] == name:
                upto = entry["lake_seq"]
                tables = stated_tables(self._config, self._student, self._lake, unwritten[1], upto)
                found[name] = {} if tables is None else {"tables": tables}
        return found

    def _write_entry(
        self, ledger: LedgerWriter, action: str, version: str, reason: str, others: int, **more: Any
    ) -> None:
        if action == Action.PUBLISHED:
            more["bytes"] = sum(path.stat().st_size for path in self._ledger.folder(version).iterdir())
        ledger.add(Action(action), version, by=POLICY, reason=reason, **more)

    def as_json(self) -> dict[str, Any]:
        """Values for status.json."""
        trial = self.trial  # another thread asks
        on = None if trial is None else trial.as_json() | {"so_far": trial.decide().reason}
        return self.aliases.as_json() | {"trial": on}


@dataclass
class Coverage:
    """Rows that a student has learned since it began and since its last version. Kept in its checkpoints, by these
    names.

    published_rows, published_ms   rows learned, and newest event time, when the last version was published
    newest_ms                      the newest event time learned
    first_seq                      the first `lake_seq` learned
    teachers                       the first and the last version of the teacher whose logits were learned
    """

    published_rows: int = 0
    published_ms: int | None = None
    newest_ms: int | None = None
    first_seq: int | None = None
    teachers: tuple[int, int] | None = None

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Coverage:
        coverage = cls(**{field.name: meta[field.name] for field in fields(cls)})
        coverage.teachers = tuple(meta["teachers"]) if meta["teachers"] else None
        return coverage

    def note(self, rows: pa.Table) -> None:
        """Record learned rows."""
        newest = int(rows["event_time_ms"].to_numpy().max())
        self.newest_ms = newest if self.newest_ms is None else max(self.newest_ms, newest)
        if self.first_seq is None:
            self.first_seq = rows["lake_seq"][0].as_py()
        if self.published_ms is None:
            self.published_ms = newest
        versions = rows["teacher_version"]
        if (scored := versions.drop_null() if versions.null_count else versions).length():
            numbers = scored.to_numpy()
            first, last = self.teachers or (int(numbers[0]), int(numbers[0]))
            self.teachers = min(first, int(numbers.min())), max(last, int(numbers.max()))

    def publish(self, rows: int) -> None:
        """Record a published version with `rows` learned so far."""
        self.published_rows, self.published_ms = rows, self.newest_ms


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry["action"], entry["version"], entry.get("lake_seq")

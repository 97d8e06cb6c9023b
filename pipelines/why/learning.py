"""Use of a row of the lake by the students of a run: which learned it, and when; which will, and which never do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.core.config.evolve import with_roster
from pipelines.core.config.identity import STUDENT
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.run_dir.roster import Presence
from pipelines.live.status.stored import StoredWorker, last_status
from pipelines.live.training.predictions import count_predictions, parts_of
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import Entry, Ledger
from pipelines.why.answer import StudentFate
from pipelines.why.logits import revocation
from streaming.lake.where import Where
from streaming.lake.withdrawn import record_of
from streaming.store.files import read_json


@dataclass(frozen=True)
class Logged:
    """A row in a student's log of predictions: its number among the student's rows, from 1, and its logits."""

    number: int
    lake_seq: int
    predicted: dict[str, float]


def learned_upto(published: Entry) -> int:
    """The last row of the lake that a published version had learned.

    >>> learned_upto({"version": "v00000008", "lake_seq": 7}), learned_upto({"version": "v00000010"})
    (7, 9)
    """
    return int(published.get("lake_seq", int(published["version"].removeprefix("v")) - 1))


class StudentTrace:
    """A student of a run, by what it has left: status, checkpoints, predictions, registry."""

    def __init__(self, settings: StudentSettings, config: Config, run_dir: RunDir, worker: StoredWorker | None) -> None:
        self.settings, self.config, self.worker = settings, config, worker
        self.name = settings.name
        self._run_dir = run_dir
        self._predictions = run_dir.predictions(self.name)
        self.record = record_of(run_dir.side_tables)

    @cached_property
    def checkpoint(self) -> Mapping[str, Any] | None:
        """Meta of its newest checkpoint; None before the first. It is read as JSON: no weights are needed."""
        folders = sorted(self._run_dir.checkpoints(STUDENT + self.name).glob("v*/manifest.json"))
        manifest = read_json(folders[-1]) if folders else None
        return None if manifest is None else manifest["meta"]

    @cached_property
    def entries(self) -> list[Entry]:
        return Ledger(self._run_dir, self.name).entries()

    @property
    def published(self) -> dict[str, Entry]:
        """Its own versions that are or were in the registry, oldest first, with their entries; its twin's are not."""
        entries = [each for each in self.entries if each["action"] == Action.PUBLISHED]
        return {each["version"]: each for each in entries if each.get("role", "student") == "student"}

    @property
    def position(self) -> int:
        """The last row of the lake that it has learned or passed over."""
        saved = self.settings.first_seq - 1 if self.checkpoint is None else int(self.checkpoint["lake_seq"])
        reported = None if self.worker is None else self.worker.lake_seq
        return saved if reported is None else max(saved, reported)

    @property
    def known_withdrawals(self) -> int:
        """Number of the lake's withdrawals that it knew when it began."""
        if self.checkpoint is None:
            return len(self.record)
        return int(self.checkpoint["past"].get("withdrawals", 0))

    def fate(self, row: pa.Table) -> StudentFate:
        """Its use of one row of the lake, (1,), with all columns."""
        values = row.to_pylist()[0]
        seq = values["lake_seq"]
        if (never := self._never(row, values)) is not None:
            return StudentFate(self.name, *never)
        if seq > self.position:
            gone = self._run_dir.roster.stands(self.name)
            if gone is not None and gone.wanted is Presence.RETIRED:
                return StudentFate(self.name, "gone", f"it was retired at lake_seq {self.position:,}, before this row")
            words = f"it stands at lake_seq {self.position:,}, {seq - self.position:,} rows before"
            return StudentFate(self.name, "later", words)
        logged = self.logged(pc.field("lake_seq") == seq, seq)
        step = None if logged is None or self.settings.learns_from_others else self._step_of(logged.number)
        version = next((name for name, each in self.published.items() if learned_upto(each) >= seq), None)
        words = self._words(values, logged)
        number, predicted = (None, {}) if logged is None else (logged.number, logged.predicted)
        return StudentFate(self.name, "learned", words, version, number, step, predicted)

    def _never(self, row: pa.Table, values: Mapping[str, Any]) -> tuple[Any, str] | None:
        """The state of a row that it never learns, in words; None for one that it learns."""
        settings, seq = self.settings, values["lake_seq"]
        if seq < settings.first_seq:
            return "began later", f"it begins at lake_seq {settings.first_seq:,} (spawned then)"
        if values["settlement"] not in (group.name for group in self.config.groups_of(settings)):
            tasks = ", ".join(self.config.student_tasks(settings))
            return "other tasks", f"it learns {tasks}, and this row settles `{values['settlement']}`"
        if not settings.learns_from_others and not self.config.own_rows(settings).mask(row)[0]:
            own = ", ".join(settings.row_filter) or "every vertical"
            where = "" if settings.where is None else f" where {settings.where}"
            return "not its row", f"it is for {own}{where}, and this row is `{values['vertical']}`"
        for each in self.record[: self.known_withdrawals]:
            inside = each.kind == "rows" and seq >= each.first and (each.last is None or seq <= each.last)
            if inside and (each.where is None or Where(each.where, self.config.rows).mask(row)[0]):
                return "withdrawn", f"{each.words} are withdrawn: {each.why}"
        for place in self._quarantined():
            if place["first_lake_seq"] <= seq <= place["last_lake_seq"]:
                return "left out", f"quarantine: {place['reason']}"
        return None

    def _quarantined(self) -> Sequence[Mapping[str, Any]]:
        stored = read_json(self._run_dir.quarantine(STUDENT + self.name)) or {}
        own = stored.get("student", stored)
        return own.get("last", ()) if isinstance(own, dict) else ()

    def _words(self, values: Mapping[str, Any], logged: Logged | None) -> str:
        own = self.config.own_rows(self.settings).mask(pa.Table.from_pylist([dict(values)]))[0]
        parts = [] if own else ["as a row of another vertical that it learns from"]
        if self.settings.negative_rate and own and logged is None:
            parts.append("or left out by sampling (negative_rate)")
        return ", ".join([*parts, *self._with_logit(values)])

    def _with_logit(self, values: Mapping[str, Any]) -> list[str]:
        if values["teacher_version"] is None or not self.settings.model.arm.distils:
            return []
        found = revocation(values, self.record)
        if found is None:
            return ["with its logit"]
        number, at = found[0], self.record[found[0]].at
        reads_null = number < self.known_withdrawals or values["lake_seq"] >= at
        return ["without its logit, which was revoked before" if reads_null else "with its logit, revoked since"]

    def logged(self, condition: pc.Expression, seq: int | None = None) -> Logged | None:
        """The first row of its log of predictions that meets `condition`, in the part that holds `seq` (None: in any);
        None where it has none, or has deleted it."""
        _, parts = parts_of(self._predictions)
        before = count_predictions(self._predictions) - sum(int(pq.read_metadata(part).num_rows) for part in parts)
        for part in parts:
            first, last = map(int, part.stem.split("-"))
            if seq is None or first <= seq <= last:
                tasks = [f"student_{task}" for task in self.config.student_tasks(self.settings)]
                found = pq.read_table(part, columns=["lake_seq", *tasks], filters=condition)
                if found.num_rows:
                    row = found.to_pylist()[0]
                    places = pq.read_table(part, columns=["lake_seq"])["lake_seq"]
                    at = places.index(row["lake_seq"]).as_py()
                    predicted = {name.removeprefix("student_"): row[name] for name in tasks}
                    return Logged(before + at + 1, row["lake_seq"], predicted)
            before += int(pq.read_metadata(part).num_rows)
        return None

    def _step_of(self, number: int) -> int:
        """The step that learned its row of this number, as batches grow (StudentSettings.batches)."""
        rows = steps = 0
        while rows < number:
            rows += self.settings.batches.size(rows)
            steps += 1
        return steps


def traces_of(run_dir: RunDir, before: Config) -> list[StudentTrace]:
    """All students that a run has, had, or is to have; `before`: its stored config."""
    config, status = with_roster(before, run_dir.roster), last_status(run_dir.root)
    workers = {} if status is None else status.workers
    settings = {s.name: s for each in (before, config) for s in each.students}
    for desired in run_dir.roster.desired_states:  # of one that has left, its section says what it learned
        if desired.name not in settings and desired.section is not None:
            settings[desired.name] = StudentSettings.model_validate(desired.section)
    return [StudentTrace(each, config, run_dir, workers.get(STUDENT + name)) for name, each in settings.items()]

"""A replacement: a candidate for the place of a run's teacher, and its folder.

    replacement/begun.json       the settings that the teacher had and is to have, and from where on it is compared
    replacement/checkpoints/, snapshots/    the candidate's, named as the run's
    replacement/trial/           what the comparison has shown so far
    replacement/decided.json     promoted or refused, and why

It is trained from the lake, whether or not the run is live. The same command goes on with it after a kill.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from exfm.errors import ConfigError
from exfm.features.representation import FIRST_SPACE
from exfm.snapshots.checkpoint import latest_checkpoint, load_checkpoint, prune_checkpoints, save_checkpoint
from pipelines.core.config.hash import decisive
from pipelines.core.config.settings import Config
from pipelines.core.config.takeovers import takeovers, teacher_settings, with_teacher
from pipelines.core.run_dir.paths import BesideRun, RunDir, version_name
from pipelines.live.rules.promoting import Keep, Promote, Refuse
from pipelines.live.training.set_writer import LogitSetWriter
from pipelines.live.training.unseen_labels import not_yet_learned
from pipelines.live.workers.teacher.candidate import CandidateTeacher
from pipelines.teacher.replace.revocation import recorded
from pipelines.teacher.replace.trial import TeacherTrial
from streaming.errors import BadInput
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.lake.withdrawn import record_of
from streaming.position import NOTHING_YET
from streaming.store.files import make_folder, read_json, remove_folder, write_json
from streaming.store.lock import file_lock

READER = "teacher-replacement"
"""Name under which the lake keeps rows for a candidate."""
INSTALL = "install.json"
"""What a takeover has begun to put into its place."""
KEEP_EVERY_S = 10.0
LOOK_S = 0.5
FEW_BLOCKS = 2
"""A candidate that is so many blocks behind has caught up: what the lake gains next, a takeover learns."""


class Decided(NamedTuple):
    """Outcome of a trial."""

    promoted: bool
    why: str
    evidence: dict[str, Any]


@contextmanager
def only_one(run_dir: RunDir, wait_s: float = 0.0) -> Iterator[None]:
    """Lock of a run's replacement. Raises BadInput where another process has it for all of `wait_s`."""
    make_folder(run_dir.takeovers.parent)
    with file_lock(run_dir.takeovers.with_name(".lock"), wait_s=wait_s) as held:
        if not held:
            raise BadInput(f"another process works on a replacement of the teacher of {run_dir.root}; one at a time")
        yield


class Replacement:
    """The replacement of a run's teacher, in its folder; `config`: the run's."""

    def __init__(self, run_dir: RunDir, config: Config) -> None:
        self.run_dir, self.config = run_dir, config
        self.folder = BesideRun(run_dir.replacement, run_dir)

    # --- beginning ---------------------------------------------------------------------------------------------------

    @property
    def begun(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.folder.root / "begun.json")
        return found

    @property
    def decided(self) -> Decided | None:
        found = read_json(self.folder.root / "decided.json")
        return None if found is None else Decided(**found)

    def begin(self, wanted: Config, judge_from: int | None = None) -> None:
        """Begin a replacement by the teacher of the config `wanted`, or go on with it. Rows count from the `lake_seq`
        `judge_from` on; None: those to come.

        Raises BadInput where that teacher is the run's own or does not fit its lake or students, or another one is
        under way."""
        now = self._fitting(wanted)
        begun, decided = self.begun, self.decided
        if begun is not None and decided is not None and not decided.promoted:
            self.drop()
            begun = None
        if begun is not None:
            if decisive(begun["now"]) != decisive(now):
                raise BadInput(
                    f"{self.folder.root} holds a replacement by another teacher; let it end, or drop it (--drop) first"
                )
            return
        lake = LakeReader(self.run_dir.lake, self.config.rows)
        first = lake.last_lake_seq + 1 if judge_from is None else judge_from
        if not lake.first_lake_seq <= first <= lake.last_lake_seq + 1:
            raise BadInput(
                f"--judge-from {first:,} is not in the lake, which has lake_seq {lake.first_lake_seq:,} to "
                f"{lake.last_lake_seq:,}"
            )
        make_folder(self.folder.root)
        more = {"judge_from": first, "space": self.next_space, "withdrawals": len(record_of(self.run_dir.side_tables))}
        write_json(self.folder.root / "begun.json", {"was": teacher_settings(self.config), "now": now, **more})

    @property
    def next_space(self) -> int:
        """Space of the representation of the next teacher."""
        return FIRST_SPACE + 1 + len(takeovers(self.run_dir))

    def _fitting(self, wanted: Config) -> dict[str, Any]:
        """The teacher's settings of `wanted`, if they fit this run. Raises BadInput where they do not."""
        now = teacher_settings(wanted)
        lake = LakeReader(self.run_dir.lake, self.config.rows)
        where = f"the lake of {self.run_dir.root} (lake_seq {lake.first_lake_seq:,} to {lake.last_lake_seq:,})"
        try:
            grown = with_teacher(self.config, now)
        except (BadInput, ConfigError) as error:
            raise BadInput(f"a teacher of `{wanted.name}` does not fit {where}: {error}") from None
        if decisive(now) == decisive(teacher_settings(self.config)):
            raise BadInput(
                f"the teacher of `{wanted.name}` is the one that {self.run_dir.root} has: nothing to replace"
            )
        if grown.rows != self.config.rows:
            raise BadInput(
                f"a teacher of `{wanted.name}` would have other columns written than {where} has; keep the columns "
                "and the teacher.model.representation of the run's config"
            )
        for student in self.config.students:
            had, has = self.config.student_features(student), grown.student_features(grown.student(student.name))
            if had != has:
                raise BadInput(
                    f"with the features of `{wanted.name}`, student `{student.name}` would read others than before; "
                    "students keep theirs: name features that only the teacher reads in teacher.only"
                )
        return now

    def drop(self, *, live: bool = False) -> None:
        """Delete it. Nothing of the run has changed by it, but that a rewind's rows stay withdrawn. `live`: whether the
        run's writer is there. Raises BadInput where there is none, or a takeover has begun
        that the run's next start finishes."""
        if not self.folder.root.exists():
            raise BadInput(f"no replacement of the teacher of {self.run_dir.root} is under way")
        if (self.folder.root / INSTALL).exists():
            raise BadInput(
                f"the teacher in {self.folder.root} is being put into its place; start the run, which finishes that, "
                "and then lead back with `exfm teacher rollback`"
            )
        rewinds = "rewind" in (self.begun or {})
        self.clear()
        if rewinds:  # what the teacher says from now on is not withdrawn any more
            recorded(self.run_dir, [], live=live, end=True)

    def clear(self) -> None:
        """Delete the folder, and let go of the lake's rows."""
        Readers(self.run_dir.readers).retire(READER)
        remove_folder(self.folder.root)

    def decide(self, promoted: bool, why: str, evidence: dict[str, Any]) -> Decided:
        """Record the outcome; from then on the run's next start, or the live run itself, takes the candidate over."""
        found = Decided(promoted, why, evidence)
        write_json(self.folder.root / "decided.json", found._asdict())
        return found

    # --- training and comparing --------------------------------------------------------------------------------------

    def candidate(self) -> CandidateTeacher:
        assert self.begun is not None
        now = with_teacher(self.config, self.begun["now"])
        return CandidateTeacher(now, self.folder, self.begun["space"], self.begun.get("withdrawals"))

    def train(
        self,
        *,
        live: Callable[[], bool],
        untried: bool = False,
        advance: Callable[[int, int], None],
        rescored: LogitSetWriter | None = None,
        before_takeover: Callable[[], None] = lambda: None,
    ) -> Decided | None:
        """Train the candidate and compare it until a decision falls; None where the lake's rows do not suffice and
        nobody adds to them. `live`: whether rows are still to come. `untried`: it takes over once it has learned the
        lake. `advance` is called with the rows that it has learned, and of how many. `rescored`: gets its
        logits of every block; `before_takeover` is called once it is promoted, before that is recorded."""
        trial, root = TeacherTrial(self.config), self.folder.root / "trial"
        if (latest := latest_checkpoint(root)) is not None:
            stored = load_checkpoint(latest)
            trial.load(stored.tensors, stored.meta)
        candidate = self.candidate()
        candidate.open()
        try:
            decision = self._decision(
                candidate,
                trial,
                root,
                live=live,
                untried=untried,
                advance=advance,
                rescored=rescored,
            )
            if isinstance(decision, Promote):
                before_takeover()
        finally:
            self._save(trial, root)
            candidate.close()
        if decision is None:
            return None  # recorded now that the candidate is closed: who takes it over opens it
        return self.decide(isinstance(decision, Promote), decision.reason, trial.evidence())

    def _decision(
        self,
        candidate: CandidateTeacher,
        trial: TeacherTrial,
        root: Path,
        *,
        live: Callable[[], bool],
        untried: bool,
        advance: Callable[[int, int], None],
        rescored: LogitSetWriter | None,
    ) -> Promote | Refuse | None:
        assert self.begun is not None
        lake = LakeReader(self.run_dir.lake, self.config.rows)
        first = math.inf if untried else self.begun["judge_from"]
        readers, kept_at = Readers(self.run_dir.readers), float("-inf")
        blocks, before = 0, math.inf
        while True:
            before, blocks = blocks or before, 0
            for rows in lake.blocks(max(trial.lake_seq, lake.first_lake_seq - 1)):
                if time.monotonic() - kept_at >= KEEP_EVERY_S:
                    readers.register(READER, min(trial.lake_seq, candidate.place.lake_seq))
                    kept_at = time.monotonic()
                blocks += 1
                self._learn_and_compare(rows, first, candidate, trial, root, rescored)
                trial.lake_seq = rows["lake_seq"][-1].as_py()
                if (decision := trial.decide()) is not None and not isinstance(decision, Keep):
                    return decision
                advance(candidate.place.lake_seq + 1, lake.last_lake_seq + 1)
            caught_up = blocks <= FEW_BLOCKS or blocks >= before  # it never will, where the lake grows as fast
            more = live()
            if untried and (caught_up or not more):
                return Promote("asked for without a comparison")
            if not lake.refresh() and not more:
                return None
            time.sleep(LOOK_S)

    def _learn_and_compare(
        self,
        rows: pa.Table,
        first: float,
        candidate: CandidateTeacher,
        trial: TeacherTrial,
        root: Path,
        rescored: LogitSetWriter | None,
    ) -> None:
        """Bring the candidate to the version that scored a block, and let it score the block, too."""
        version = rows["teacher_version"][0].as_py()
        if version is not None and candidate.place.version < version:
            self._save(trial, root)  # before the candidate's checkpoints leave that version behind
            candidate.learn_until(version)
        first_seq, last_seq = rows["lake_seq"][0].as_py(), rows["lake_seq"][-1].as_py()
        judged = first_seq >= first and last_seq > trial.lake_seq
        wanted = rescored is not None and first_seq > rescored.done and first_seq >= rescored.description.first
        if candidate.place.version != version or not (judged or wanted):
            if rescored is not None and wanted:  # nobody scores it: its place is kept
                rescored.commit(rescored.nothing(rows["lake_seq"]), last_seq)
            return
        answer = candidate.score(rows)
        honest = not_yet_learned(rows, self.config.tasks, self.config.rows.groups, candidate.learned_upto_ms)
        if rescored is not None and wanted:
            rescored.commit(rescored.rows(rows["lake_seq"], *answer, honest), last_seq)
        if judged:
            trial.compare(rows, answer.logits, honest)

    def _save(self, trial: TeacherTrial, root: Path) -> None:
        if trial.lake_seq == NOTHING_YET:
            return
        tensors, meta = trial.state()
        save_checkpoint(root, version_name(trial.lake_seq + 1), tensors, meta, kind="teacher-trial")
        prune_checkpoints(root, 2)

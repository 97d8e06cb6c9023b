"""A rewind: teacher and students of a run, trained again without rows that they should not have learned.

    1. the rows are withdrawn from the lake (streaming/lake/withdrawn.py), and until another teacher scores the logits
       of all versions that had learned them
    2. a teacher learns the lake without them, beside the run's own, and scores every row anew that one of those
       versions had scored, before it learns it: a logit set, which from then on stands in the place of their logits
    3. it is compared with the run's own on rows behind them: it is a replacement (replacement.py)
    4. students learn the lake without the rows, with these logits, once it is to take over
    5. it takes over, and the students with it, at one recorded position (takeover.py)

Each begins from the run's last checkpoint before the rows, where one is still there; else from nothing. All of it lies
in the run's `replacement/`; the same command goes on after a kill.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from exfm.errors import ModelError
from exfm.snapshots.checkpoint import checkpoint_names, load_checkpoint, save_checkpoint
from exfm.snapshots.manifest import read_manifest
from pipelines.core.config.identity import STUDENT, TEACHER
from pipelines.core.config.settings import Config
from pipelines.core.config.takeovers import takeovers, teacher_settings
from pipelines.core.run_dir.paths import BesideRun, RunDir
from pipelines.live.training.set_writer import LogitSetWriter
from pipelines.live.workers.student.versions import Versions
from pipelines.live.workers.student.worker import StudentWorker
from pipelines.teacher.replace.replacement import READER, Decided, Replacement
from pipelines.teacher.replace.revocation import recorded
from streaming.errors import BadInput
from streaming.lake.logit_set import SetDescription, described
from streaming.lake.reader import LakeReader
from streaming.lake.readers import Readers
from streaming.lake.where import Where
from streaming.lake.withdrawn import Withdrawal, matching, record_of
from streaming.store.files import link_file, make_folder, remove_folder, write_json

KEEP_EVERY_S = 10.0


class Exclusion(NamedTuple):
    """Rows to be left out, as they were asked for: a range of `lake_seq`, a condition, or both."""

    first: int | None
    last: int | None
    where: str | None


class Excluded(NamedTuple):
    """Rows of a lake that an exclusion names: their first and last `lake_seq`, their number, the block of the first,
    and the times of event between which they lie, ms."""

    first: int
    last: int
    rows: int
    block: int
    event_times_ms: tuple[int, int]


class RewindCost(NamedTuple):
    """Cost of a rewind for one model, which learns the rows behind `after` again. `seconds`: at the rate at which it
    has learned so far; None: not known."""

    name: str
    after: int
    rows: int
    seconds: float | None
    bytes: int


def exclusion_of(given: list[str]) -> Exclusion:
    """Parse `--exclude`: at most one range and one condition.

    >>> exclusion_of(["1200:1999", "vertical == 'shop'"])
    Exclusion(first=1200, last=1999, where="vertical == 'shop'")
    >>> exclusion_of(["bid > 9"])
    Exclusion(first=None, last=None, where='bid > 9')
    """
    ranges = [found for text in given if (found := re.fullmatch(r"\s*(\d+):(\d+)\s*", text))]
    conditions = [text for text in given if not re.fullmatch(r"\s*(\d+):(\d+)\s*", text)]
    if not given or len(ranges) > 1 or len(conditions) > 1:
        raise BadInput(
            "--exclude is given once or twice: a range of lake_seq (120000:139999, both included), a condition on rows "
            "(event_time_ms >= 1704100000000 and vertical == 'shop'), or one of each, which both have to hold"
        )
    first, last = (int(ranges[0][1]), int(ranges[0][2])) if ranges else (None, None)
    if first is not None and last is not None and last < first:
        raise BadInput(f"--exclude {first}:{last}: the last row comes before the first")
    return Exclusion(first, last, conditions[0].strip() if conditions else None)


def excluded(config: Config, run_dir: RunDir, asked: Exclusion) -> Excluded:
    """Find the rows. Raises BadInput where the condition does not fit them, there are none, or the lake no longer has
    rows of the range."""
    lake = LakeReader(run_dir.lake, config.rows)
    first = lake.first_lake_seq if asked.first is None else asked.first
    last = lake.last_lake_seq if asked.last is None else min(asked.last, lake.last_lake_seq)
    if first < lake.first_lake_seq:
        raise BadInput(
            f"rows lake_seq {first:,} to {lake.first_lake_seq - 1:,} are deleted (lake.retention_days): nobody can "
            f"learn the lake without them; it has {lake.first_lake_seq:,} to {lake.last_lake_seq:,}"
        )
    if asked.where is not None:
        Where(asked.where, config.rows)
    condition = matching(Withdrawal(kind="rows", first=first, last=last, where=asked.where, why=""), config.rows)
    rows = lake.read(columns=["lake_seq", "block", "event_time_ms"], filter=condition).table
    if not rows.num_rows:
        raise BadInput(
            f"no row of {lake.path} is meant; it has lake_seq {lake.first_lake_seq:,} to {lake.last_lake_seq:,}"
        )
    seq, times = rows["lake_seq"].to_numpy(), rows["event_time_ms"].to_numpy()
    block = rows["block"][0].as_py()
    return Excluded(int(seq[0]), int(seq[-1]), len(seq), block, (int(times.min()), int(times.max())))


class Rewind:
    """The rewind of a run; `config`: the run's, with the students that it has."""

    def __init__(self, run_dir: RunDir, config: Config) -> None:
        self.run_dir, self.config = run_dir, config
        self.replacement = Replacement(run_dir, config)

    # --- what it would do --------------------------------------------------------------------------------------------

    def costs(self, first: int, speeds: dict[str, float]) -> list[RewindCost]:
        """Cost for each model, if nothing from the row `first` on is kept. `speeds`: rows a second, by worker."""
        lake = LakeReader(self.run_dir.lake, self.config.rows)
        found = []
        for worker in (TEACHER, *(STUDENT + name for name in self.students)):
            before = last_before(self.run_dir.checkpoints(worker), first)
            own_first = 0 if worker == TEACHER else self.config.student(worker.removeprefix(STUDENT)).first_seq
            after = max(own_first, lake.first_lake_seq) - 1 if before is None else _seq_of(before)
            rows, speed = max(0, lake.last_lake_seq - after), speeds.get(worker)
            seconds = rows / speed if speed else None
            found.append(RewindCost(worker, after, rows, seconds, _bytes(self.run_dir.checkpoints(worker))))
        return found

    @property
    def students(self) -> list[str]:
        """Students that have learned something."""
        return [s.name for s in self.config.students if checkpoint_names(self.run_dir.checkpoints(STUDENT + s.name))]

    # --- beginning ---------------------------------------------------------------------------------------------------

    def begin(self, asked: Exclusion, found: Excluded, why: str, back_to: int | None, *, live: bool) -> None:
        """Begin, or go on with the one that the same was asked for. Raises BadInput where another replacement or rewind
        is under way."""
        question = {"exclude": list(asked), "to": back_to}
        begun, decided = self.replacement.begun, self.replacement.decided
        if begun is not None and decided is not None and not decided.promoted:
            self.replacement.drop(live=live)
            begun = None
        if begun is not None:
            if begun.get("rewind", {}).get("question") != question:
                raise BadInput(
                    f"{self.run_dir.replacement} holds another replacement or rewind; let it end, or drop it: "
                    "exfm teacher replace --drop"
                )
            return
        rows = Withdrawal(kind="rows", first=found.first, last=found.last, where=asked.where, why=why)
        # A version has learned the blocks before it: the first that has learned the rows follows their first block.
        logits = Withdrawal(kind="logits", first=found.block + 1, why=f"it had learned withdrawn rows: {why}")
        if self.config.teachers:
            raise BadInput(
                "a rewind trains the run's first teacher and its students, not those of `teachers`: leave them, and "
                "students that learn from them, out of the config, and start the run once; then rewind"
            )
        for entry in takeovers(self.run_dir):
            if entry.get("rewind", {}).get("question") == question:
                raise BadInput(
                    f"these rows are left out already: teacher and students took over without them at lake_seq "
                    f"{entry['lake_seq']:,}"
                )
        if self.run_dir.replacement.exists():  # what a killed begin has left
            remove_folder(self.run_dir.replacement)
        before = len(record_of(self.run_dir.side_tables))
        if (already := self._recorded_before(rows)) is None:
            recorded(self.run_dir, [rows, logits], live=live)
        else:
            rows, before = record_of(self.run_dir.side_tables)[already], already
        settings = teacher_settings(self.config)
        first = found.first if back_to is None else min(found.first, back_to + 1)
        folder = self.replacement.folder
        withdrawals = len(record_of(self.run_dir.side_tables))
        make_folder(folder.root)
        space = self.replacement.next_space
        if (saved := last_before(self.run_dir.checkpoints(TEACHER), first)) is not None:
            stored = load_checkpoint(saved)
            meta = stored.meta | {"space": space}
            save_checkpoint(folder.checkpoints(TEACHER), saved.name, stored.tensors, meta, kind=stored.kind)
        state: dict[str, Any] = {
            "question": question,
            "students": [],
            "set": f"rewind-{withdrawals}",
            "begins": found.block + 1,
            "first": first,
            "before": before,
        }
        last = found.last if rows.last is None else rows.last
        more = {"judge_from": last + 1, "space": space, "withdrawals": withdrawals, "rewind": state}
        write_json(folder.root / "begun.json", {"was": settings, "now": settings, **more})

    def _recorded_before(self, rows: Withdrawal) -> int | None:
        """Place in the record where these rows are withdrawn, and logits with them until another teacher scores: the
        command was killed before it had begun. The lake may have grown since."""
        for number, (one, following) in enumerate(pairwise(record_of(self.run_dir.side_tables))):
            same = (one.kind, one.first, one.where) == (rows.kind, rows.first, rows.where)
            if same and following.kind == "logits" and following.last is None and following.before is None:
                return number
        return None

    # --- training ----------------------------------------------------------------------------------------------------

    def train(
        self,
        *,
        live: Callable[[], bool],
        untried: bool = False,
        advance: Callable[[int, int], None],
        advance_students: Callable[[int, int], None],
    ) -> Decided | None:
        """Train teacher and students until a decision falls, as `Replacement.train` does."""
        described_so_far = described(self.run_dir.side_tables, self._rewind["set"])
        writer = LogitSetWriter(self.run_dir.side_tables, described_so_far or self._description())
        if described_so_far is None:
            writer.describe()

        def train_students() -> None:
            one = writer.complete()
            record = record_of(self.run_dir.side_tables)
            if one.rows and one.name not in {each.logits for each in record}:
                why = "scored by a teacher that never learned the withdrawn rows"
                anew = Withdrawal(kind="rescored", first=one.first, last=one.last, logits=one.name, why=why)
                recorded(self.run_dir, [anew], live=live())
            begun = self.replacement.begun
            assert begun is not None
            withdrawals = len(record_of(self.run_dir.side_tables))
            known = {"withdrawals": withdrawals, "rewind": begun["rewind"] | {"students": self.students}}
            write_json(self.replacement.folder.root / "begun.json", begun | known)
            self._train_students(advance_students)

        rescored = None if writer.description.complete else writer
        decided = self.replacement.train(
            live=live, untried=untried, advance=advance, rescored=rescored, before_takeover=train_students
        )
        if decided is not None and not decided.promoted:
            recorded(self.run_dir, [], live=live(), end=True)
        return decided

    @property
    def _rewind(self) -> dict[str, Any]:
        begun = self.replacement.begun
        assert begun is not None
        found: dict[str, Any] = begun["rewind"]
        return found

    def _description(self) -> SetDescription:
        """Description of the logit set, as it begins."""
        lake, config, rewind = LakeReader(self.run_dir.lake, self.config.rows), self.config, self._rewind
        after = lake.read(columns=["lake_seq"], filter=pc.field("block") >= rewind["begins"], limit_rows=1).table
        model = config.teacher.model
        return SetDescription(
            name=rewind["set"],
            lake=lake.id,
            first=after["lake_seq"][0].as_py() if after.num_rows else lake.last_lake_seq + 1,
            last=lake.last_lake_seq,
            tasks=config.tasks,
            representation=model.representation is not None and model.representation == config.rows.teacher_embedding,
            teacher="the teacher of a rewind, each row before it was learned",
            version=None,
            snapshot="",
            space=self.replacement.next_space,
            known_rows=0,
            asked=rewind["question"],
        )

    def _train_students(self, advance: Callable[[int, int], None]) -> None:
        """Train all students up to the lake's end as of now. `advance` is called with the rows that are passed, of all
        students together, and of how many."""
        begun = self.replacement.begun
        assert begun is not None
        readers, lake = Readers(self.run_dir.readers), LakeReader(self.run_dir.lake, self.config.rows)
        names, rows = begun["rewind"]["students"], lake.last_lake_seq + 1
        for number, name in enumerate(names):
            self._begin_student(name, begun)
            worker = RewoundStudent(self.config, name, self.replacement.folder, begun["withdrawals"])
            kept_at = float("-inf")
            for position in worker.learn_upto(lake.last_lake_seq):
                if time.monotonic() - kept_at >= KEEP_EVERY_S:
                    readers.register(READER, lake.first_lake_seq - 1)
                    kept_at = time.monotonic()
                advance(number * rows + position + 1, len(names) * rows)

    def _begin_student(self, name: str, begun: dict[str, Any]) -> None:
        """Put a student's last state before the rows into the folder, unless it has begun there: one that knew all that
        was withdrawn before. Its predictions up to it are linked."""
        worker, folder, rewind = STUDENT + name, self.replacement.folder, begun["rewind"]
        if checkpoint_names(folder.checkpoints(worker)):
            return
        saved = last_before(self.run_dir.checkpoints(worker), rewind["first"])
        if saved is None:
            return
        stored = load_checkpoint(saved)
        if stored.meta["past"].get("withdrawals", 0) != rewind["before"]:
            return
        meta = dict(stored.meta) | {"past": stored.meta["past"] | {"withdrawals": begun["withdrawals"]}}
        meta.pop("registry", None)
        target = folder.predictions(name)
        if target.exists():
            remove_folder(target)
        make_folder(target)
        for path in sorted(self.run_dir.predictions(name).glob("[!.]*")):
            link_file(path, target / path.name)
        tensors = {key: of for key, of in stored.tensors.items() if not key.startswith("registry/")}
        save_checkpoint(folder.checkpoints(worker), saved.name, tensors, meta, kind=stored.kind)


class RewoundStudent(StudentWorker):
    """A student that learns a run's lake beside the run's own, without versions of its own: those that the run has
    published stay, and are compared with what comes after it takes the place."""

    def __init__(self, config: Config, name: str, folder: BesideRun, withdrawals: int) -> None:
        super().__init__(config, config.student(name), folder, withdrawals=withdrawals)

    def resume(self) -> None:
        super().resume()
        state, settings = self.state, self._settings
        state.versions = Unversioned(self._config, settings, self._run_dir, state.engine)
        state.versions.resume(None, {}, state.position)
        state.provenance.rewound = True
        self.increments = None

    def _new_spans(self) -> None:
        """Make none: these blocks have theirs."""

    def learn_upto(self, upto: int) -> Iterator[int]:
        """Learn the batches that the rows up to there fill, and leave a checkpoint; yields positions on the way."""
        self.open()
        assert self.feed is not None
        try:
            while self.step() or self.feed.reached(self.state.position) < upto:
                yield self.state.position
        finally:
            self.close()


class Unversioned(Versions):
    """Versions of a student that publishes none."""

    def due(self, learned_rows: int) -> bool:
        return False

    def meta(self) -> dict[str, Any]:
        return {}


# --- the run's last checkpoint before the rows -----------------------------------------------------------------------


def last_before(root: Path, first: int) -> Path | None:
    """The newest checkpoint under `root` that has learned nothing from the row `first` on."""
    for name in reversed(checkpoint_names(root)):
        try:
            if _seq_of(root / name) < first:
                return root / name
        except ModelError:  # its worker sets it aside
            continue
    return None


def _seq_of(checkpoint: Path) -> int:
    return int(read_manifest(checkpoint)["meta"]["lake_seq"])


def _bytes(root: Path) -> int:
    """Bytes of the newest checkpoint under `root`."""
    names = checkpoint_names(root)
    return sum(path.stat().st_size for path in (root / names[-1]).iterdir()) if names else 0

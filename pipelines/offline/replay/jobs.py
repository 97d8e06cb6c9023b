"""What processes of a replay do: settle rows, train teachers and students; each leaves parts and reports its progress.

RowsJob -> rows     TeacherJob -> logits by age of snapshot     StudentJob -> tuning sums, or logits of a whole life
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from exfm.metrics import cross_entropy
from exfm.models import STUDENT, StudentEngine
from exfm.threads import set_threads
from pipelines.config import StudentSettings
from pipelines.offline import PIECE_ROWS, Tell, let_go, save_part, spilled
from pipelines.offline.asked import Condition, Snapshots, with_features
from pipelines.offline.logits import lockstep_logits, rescored
from pipelines.offline.replay.data import Data, Stretch, data_of, places_of
from pipelines.offline.replay.place import Place
from streaming.errors import BadInput

TEACHER_COST = 8
"""How many times longer a teacher's row takes than a student's; progress is counted in students' rows."""

SIDE_BY_SIDE = 8
"""Students that are in memory together: to each of eight, what is read and built for all of them costs little."""

ANOTHER_DRAW = 1_000_003
"""Added to the seed of a student that is drawn anew."""


class Job(Protocol):
    def run(self, tell: Tell) -> Any: ...


def work(job: Job, tell: Tell) -> Any:
    set_threads(1)
    return job.run(tell)


@dataclass(frozen=True)
class RowsJob:
    place: Place
    seed: int

    def run(self, tell: Tell) -> tuple[int, str]:
        self.place.rows(self.seed, _increments(tell))
        return self.seed, "rows"


@dataclass(frozen=True)
class TeacherJob:
    """One teacher's logits by snapshots of those ages that are not there yet: `asked` differ in `behind` alone."""

    place: Place
    seed: int
    asked: tuple[Snapshots, ...]

    def run(self, tell: Tell) -> tuple[int, str]:
        place, more = self.place, _increments(tell)
        name, born, *_ = self.asked[0]
        features, model = place.teacher(name)
        found = lockstep_logits(
            place.of(self.seed),
            features,
            model,
            place.rows(self.seed),
            count=place.taught_rows(self.seed),
            behinds=[snapshots.behind for snapshots in self.asked],
            born=born,
            folder=place.folder,
            advance=lambda done: more(done * TEACHER_COST),
        )
        for snapshots in self.asked:
            save_part(place.teacher_part(self.seed, snapshots), **found[snapshots.behind]._asdict())
        return self.seed, "teacher"


@dataclass(frozen=True)
class RescoreJob:
    """The logits of a run's stored snapshots."""

    place: Place
    seed: int
    of: Snapshots

    def run(self, tell: Tell) -> tuple[int, str]:
        place, more = self.place, _increments(tell)
        assert place.run_dir is not None
        assert self.of.stored is not None
        config, rows = place.of(self.seed), place.rows(self.seed)
        found = rescored(
            config,
            place.run_dir,
            rows,
            self.of.stored,
            place.snapshots,
            place.folder,
            lambda done: more(done * TEACHER_COST),
        )
        save_part(place.teacher_part(self.seed, self.of), logits=found, left_out=0)
        return self.seed, "teacher"


class Asked(NamedTuple):
    """A student with its model as set, and where its part goes; `twin` has the logits of a student like it without a
    teacher, where those teach it. One that is `drawn_anew` has other initial weights than those of the seed. `arm`:
    whose features it reads; None: the config's. `seed`: None: the job's."""

    student: StudentSettings
    condition: Condition
    path: Path
    twin: Path | None = None
    drawn_anew: bool = False
    arm: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class StudentJob:
    """Students of one name. Those that learn the same batches learn them side by side, some at a time, where these do
    not fit into memory together, else one after the other, so that what is done is kept."""

    place: Place
    seed: int
    tuning: bool
    asked: tuple[Asked, ...]

    def run(self, tell: Tell) -> int:
        groups: dict[_Columns, list[Asked]] = {}
        for asked in self.asked:
            groups.setdefault(_columns_of(self.place, self._seed(asked), asked), []).append(asked)
        for columns, group in groups.items():
            data, stream_rows = _data(self.place, self.tuning, columns)
            for asked, passed in self._passed(group, data, tell):
                self._save(asked, passed, data, stream_rows)
        return len(self.asked)

    def _passed(self, group: Sequence[Asked], data: Data, tell: Tell) -> Iterator[tuple[Asked, dict[str, Any]]]:
        """What each student of a group has passed."""
        if data.together:
            for asked in group:
                given = self.place, self._seed(asked), asked.student, data, tell
                yield asked, one_life(*given, drawn_anew=asked.drawn_anew, arm=asked.arm)
            return
        for at in range(0, len(group), SIDE_BY_SIDE):
            some = group[at : at + SIDE_BY_SIDE]
            lives = [Life(self.place, self._seed(a), a.student, data, drawn_anew=a.drawn_anew, arm=a.arm) for a in some]
            for stretch in data.stretches:
                for life in lives:
                    life.learn(stretch, tell)
            for asked in some:
                yield asked, lives.pop(0).passed()  # its arrays go when they are stored

    def _seed(self, asked: Asked) -> int:
        return self.seed if asked.seed is None else asked.seed

    def _save(self, asked: Asked, passed: dict[str, Any], data: Data, stream_rows: int) -> None:
        if self.tuning:
            passed = self._sums(passed, data, stream_rows)
        else:
            passed = _on_rows_of(self.place, self._seed(asked), asked, passed, data)
        save_part(asked.path, **passed)

    def _sums(self, passed: dict[str, Any], data: Data, stream_rows: int) -> dict[str, Any]:
        """Sums over the part of the stream that settings are chosen on, of the labels by which arms are judged: by
        task, Σ w·h, Σ w and Σ w·y."""
        low, high = (share * stream_rows for share in self.place.spec.chosen_on)
        logits, tasks = passed.pop("logits"), data.targets(0, 0).labels.shape[1]
        sums = {name: np.zeros(tasks) for name in ("loss", "weight", "positive")}
        for start in range(data.first, len(data.places), PIECE_ROWS):
            stop = min(start + PIECE_ROWS, len(data.places))
            labels, weights = data.targets(start, stop)
            places = data.places[start:stop]
            weights = np.where(((places >= low) & (places < high))[:, None], weights, 0.0)
            some = logits[start - data.first : stop - data.first]
            losses = np.where(weights > 0, cross_entropy(some, labels), 0.0)
            for name, summands in (("loss", losses * weights), ("weight", weights), ("positive", labels * weights)):
                sums[name] += summands.sum(0)
            let_go(logits)
        return passed | sums


def _on_rows_of(place: Place, seed: int, asked: Asked, passed: dict[str, Any], data: Data) -> dict[str, Any]:
    """What an arm with a filter or a birth of its own has passed, on the rows of the config's student: NaN, and
    `absent`, where a row is not the arm's."""
    base = place.config.student(asked.student.name)
    own, filters = asked.student, ("row_filter", "where", "first_seq", "starts_from")
    if all(getattr(own, name) == getattr(base, name) for name in filters):
        return passed
    rows = places_of(place.rows(seed), place.config, base, data.folder)
    absent = spilled((len(rows),), bool, data.folder, fill=True)
    found = dict(passed) | {"first": 0, "absent": absent}
    of_rows = [name for name in ("logits", "shown") if name in passed]
    for name in of_rows:
        found[name] = spilled((len(rows), passed[name].shape[1]), np.float32, data.folder, fill=np.nan)
    for start in range(data.first, len(data.places), PIECE_ROWS):
        mine = data.places[start : start + PIECE_ROWS]
        at = np.searchsorted(rows, mine)
        there = at < len(rows)
        there[there] = rows[at[there]] == mine[there]
        absent[at[there]] = False
        for name in of_rows:
            found[name][at[there]] = passed[name][start - data.first :][: len(mine)][there]
            let_go(found[name])
            let_go(passed[name])
    return found


class Life:
    """A student's way over its rows from its birth on, a stretch at a time."""

    def __init__(
        self,
        place: Place,
        seed: int,
        student: StudentSettings,
        data: Data,
        *,
        drawn_anew: bool = False,
        arm: str | None = None,
    ) -> None:
        config = place.of(seed, arm)
        tasks, features = config.student_tasks(student), config.student_features(student)
        draw = seed + ANOTHER_DRAW if drawn_anew else seed
        rows, full = student.learned_rows, student.batch_rows
        versions = config.as_shown_of(student) if data.as_shown else None
        self.engine = StudentEngine(
            student.model, features, tasks, draw, learned_rows=rows, full_batch=full, as_shown=versions
        )
        if self.engine.as_shown_is_off is not None:
            raise BadInput(self.engine.as_shown_is_off)
        place.start(self.engine, config, student)
        shape = len(data.places) - data.first, len(tasks)
        self._logits = spilled(shape, np.float32, data.folder, fill=np.nan)
        self._shown = spilled(shape, np.float32, data.folder, fill=np.nan) if data.as_shown else None
        self._first, self._seconds, self._left_out = data.first, 0.0, 0

    def learn(self, stretch: Stretch, tell: Tell) -> None:
        for batch, learned, scored_only in zip(*stretch, strict=True):
            if scored_only is not None:
                self._logits[scored_only[0] - self._first] = self.engine.score(scored_only[1])
            began = time.process_time()
            judged = self.engine.step(batch)
            self._seconds += time.process_time() - began
            self._logits[learned - self._first] = judged.logits
            if self._shown is not None and STUDENT in judged.as_shown:
                self._shown[learned - self._first] = judged.as_shown[STUDENT]
            self._left_out += len(learned) - judged.finite_rows
            tell(len(learned))
        for array in (self._logits, self._shown):
            if array is not None:
                let_go(array)

    def passed(self) -> dict[str, Any]:
        """Its logits (n, T) of each row, before it learned it, and where batches know when their rows were shown, those
        as `shown`. `seconds` of the core that it took to learn `rows`."""
        found = {"logits": self._logits, "first": self._first, "seconds": self._seconds, "left_out": self._left_out}
        found["rows"] = len(self._logits)
        return found | ({} if self._shown is None else {"shown": self._shown})


def one_life(
    place: Place,
    seed: int,
    student: StudentSettings,
    data: Data,
    tell: Tell,
    *,
    drawn_anew: bool = False,
    arm: str | None = None,
) -> dict[str, Any]:
    """A student's whole way, as `Life.passed` has it."""
    life = Life(place, seed, student, data, drawn_anew=drawn_anew, arm=arm)
    for stretch in data.stretches:
        life.learn(stretch, tell)
    return life.passed()


class _Columns(NamedTuple):
    """What decides a student's batches: all but its model, of which it matters whether it distils; and the seed, where
    rows or their logits are of it."""

    settings: str
    condition: Condition
    twin: Path | None
    features: str
    seed: int


def _columns_of(place: Place, seed: int, asked: Asked) -> _Columns:
    whose = asked.student.learned_rows.distillation
    settings = asked.student.model_copy(update={"model": type(asked.student.model)(), "distillation_rows": whose})
    features = {} if asked.arm is None else place.spec.arms[asked.arm].features
    own = seed if asked.twin is not None or asked.student.negative_rate or place.has_seeds(asked.condition) else None
    stream = place.spec.all_seeds[0] if own is None else own
    return _Columns(
        settings.model_dump_json(), asked.condition, asked.twin, json.dumps(features, sort_keys=True), stream
    )


@lru_cache(maxsize=1)
def shared_data(cached: _Key) -> tuple[Data, int]:
    place, tuning, (settings, condition, twin, features, seed) = cached.parts
    student = StudentSettings.model_validate_json(settings)
    stream = place.lake(seed, condition, student, twin)
    some = stream.first(round(place.spec.chosen_on[1] * stream.num_rows)) if tuning else stream
    config = with_features(place.of(seed), json.loads(features), student.name)
    data = data_of(
        some,
        config,
        student,
        condition.start,
        as_shown=place.spec.as_shown and not tuning,
        after=place.starts_after(student),
        logged=place.rows(seed),
        folder=place.folder,
    )
    return data, stream.num_rows


def _data(place: Place, tuning: bool, columns: _Columns) -> tuple[Data, int]:
    """Batches, and how many rows the whole stream has."""
    return shared_data(_Key((place, tuning, columns)))


class _Key(NamedTuple):
    """Equal for equal specs of equal configs: a place itself cannot be hashed."""

    parts: tuple[Place, bool, _Columns]

    def __hash__(self) -> int:
        return hash(self._plain())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._plain() == other._plain()

    def _plain(self) -> Any:
        place, *rest = self.parts
        return place.folder, place.spec.model_dump_json(), place.config.hash, *rest


def _increments(tell: Tell) -> Tell:
    """From how many are done, how many more."""
    done = 0

    def advance(now: int) -> None:
        nonlocal done
        tell(now - done)
        done = now

    return advance

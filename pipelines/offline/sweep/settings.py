"""A sweep as one frozen object, read from YAML: which arms, under which conditions, tuned how, on which stream.

    sweep, config = load("configs/sweeps/quick.yaml", ["seeds=[1, 2, 3]"])

Every arm tries the same number of settings: one that tried more would profit from choosing among more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, model_validator

from exfm.errors import ConfigError
from pipelines.config import (
    Config,
    Frozen,
    Generated,
    StudentSettings,
    choices,
    merged,
    override,
    problems,
    read_settings,
)
from pipelines.config import load as load_config
from pipelines.shipped import config_file
from streaming.errors import BadInput

EXTENSIONS = 2
"""How many times a grid is extended beyond an edge."""

CHOICE_ENDS = 0.5
"""Settings are chosen before this share of the stream, arms are judged after it."""


OF_STUDENT = "student."
"""What a tuned path begins with that is not one of the student's model."""


class ArmSpec(Frozen):
    """What one arm changes, and the settings it tries."""

    set: dict[str, Any] = Field(
        default={},
        description="merged into `students.*.model`; an `arm` that names its `kind` or `preset` replaces the student's",
    )
    student: dict[str, Any] = Field(default={}, description="merged into `students.*` itself: features, batch_rows, …")
    tune: dict[str, list[Any]] | list[dict[str, Any]] = Field(
        default={},
        description="paths in the model, or `student.` and a path in the student, with the values to try, all "
        "combinations; or a list of combinations",
    )

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The combinations, each path -> value.

        >>> ArmSpec(tune={"dense_lr": [1, 2], "arm.weight": [3]}).trials
        [{'dense_lr': 1, 'arm.weight': 3}, {'dense_lr': 2, 'arm.weight': 3}]
        """
        if isinstance(self.tune, dict):
            return [dict(zip(self.tune, values, strict=True)) for values in product(*self.tune.values())]
        return list(self.tune)


class TeacherSpec(Frozen):
    """A further teacher on the same rows: conditions name it, and every arm is measured against it."""

    features: tuple[str, ...] | Literal["students"] = Field(
        default=(),
        description="`students`: those of a student that names none; empty: those of the config's teacher",
    )
    model: dict[str, Any] = Field(default={}, description="merged into `teacher.model`")


class Snapshots(NamedTuple):
    """Whose logits: a teacher's (None: the config's) that begins to learn `born` blocks after the stream begins, by
    its snapshots that are `behind` blocks older than the pace's."""

    teacher: str | None = None
    born: int = 0
    behind: int = 0


TWIN = "twin"
"""The teacher of a condition whose students get the logits of a student like them, of another draw, that has none."""


class Condition(Frozen):
    """The logged logits that students get, and when a student starts."""

    teacher: str | None = Field(
        default=None,
        description=(
            "a name in `teachers`; `twin`: another draw of the same student without a teacher (the first baseline), "
            "which learns the same rows: a teacher that knows nothing more; null: the config's teacher"
        ),
    )
    behind: int = Field(default=0, ge=0, description="scored by a snapshot this many blocks older than the pace's")
    born: int = Field(
        default=0,
        ge=0,
        description=(
            "the teacher begins to learn this many whole blocks after the stream begins: as few rows as one that is as "
            "many blocks `behind`, and the newest ones"
        ),
    )
    scale: float = Field(default=1.0, allow_inf_nan=False, description="students see scale · logit + shift")
    shift: float = Field(default=0.0, allow_inf_nan=False, description="see scale")
    start: float = Field(
        default=0.0, ge=0, lt=0.95, description="share of the stream that has passed when a student starts"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Condition:
        if self.teacher == TWIN and (self.behind or self.born):
            raise ValueError("the twin's logits have no snapshots; leave `behind` and `born` out, or name a teacher")
        return self

    @property
    def honest(self) -> bool:
        return (self.scale, self.shift) == (1.0, 0.0)

    @property
    def snapshots(self) -> Snapshots | None:
        """Whose logits these are; None for the twin's."""
        return None if self.teacher == TWIN else Snapshots(self.teacher, self.born, self.behind)

    def controls(self) -> dict[str, Condition]:
        """What it is compared with, to see what a fault costs: the same teacher without the fault, and for old
        snapshots those that learned as many rows, but the newest ones.

        >>> controls = Condition(behind=3, start=0.5).controls()
        >>> controls["fresh"] == Condition(start=0.5), controls["as mature"] == Condition(born=3, start=0.5)
        (True, True)
        >>> Condition().controls()
        {}
        """
        fresh = self.model_copy(update={"behind": 0, "born": 0, "scale": 1.0, "shift": 0.0})
        found = {"fresh": fresh} if fresh != self else {}
        if self.behind and not self.born:
            found["as mature"] = self.model_copy(update={"behind": 0, "born": self.behind})
        return found


class Sweep(Frozen):
    config: str = Field(description="the run's config, relative to this file")
    set: tuple[str, ...] = Field(default=(), description="path=value, overrides on it")
    seeds: tuple[int, ...] = Field(
        default=(1, 2, 3, 4, 5), min_length=1, description="of the models, and of a generated stream; one run each"
    )
    tuning_seeds: Annotated[int, Field(ge=1)] | tuple[int, ...] | None = Field(
        default=None,
        description="those that settings are chosen with, which may be others than `seeds`; a number: that many of "
        "`seeds`, the first ones; null: all of them",
    )
    rows: int | None = Field(default=None, gt=0, description="take this many settled rows, the first ones; null: all")
    students: tuple[str, ...] = Field(default=(), description="empty: all of the config's")
    baselines: tuple[str, ...] = Field(
        default=("none",),
        min_length=1,
        description="the arms that the others are compared with: with each, and with the best twin, which is the one "
        "of them that is better where settings are chosen, student by student. Costs are those of the first",
    )
    cluster: str | tuple[str, str] | None = Field(
        default="user_id",
        description="rows of one value are not independent; two columns, as in [user_id, item_id]: rows that share "
        "either; null: consecutive blocks, no GAUC. GAUC is by the first",
    )
    arms: dict[str, ArmSpec]
    conditions: dict[str, Condition] = Field(default={"fresh": Condition()}, min_length=1)
    teachers: dict[str, TeacherSpec] = Field(default={})
    chosen_on: tuple[float, float] = Field(
        default=(0.0, CHOICE_ENDS), description="settings are chosen by NE on this part of the stream"
    )
    extend: bool = Field(
        default=True,
        description="where the best of three or more numbers is the first or the last, try the next one beyond, at "
        f"most {EXTENSIONS} times, for every arm and student alike",
    )
    as_shown: bool = Field(
        default=False,
        description="students also predict every row that is judged with what had settled when it was shown, and gains "
        "are shown of these predictions, too; a student takes about half as long again",
    )
    unequal_effort: bool = Field(
        default=False, description="allow arms that try more settings than others; the report then says so"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Sweep:
        for name in self.baselines:
            if name not in self.arms:
                raise ValueError(f"baselines has `{name}`, which is no arm; {choices(name, set(self.arms))}")
        for kind in ("teachers", "arms"):
            if TWIN in getattr(self, kind):
                raise ValueError(f"{kind} has `{TWIN}`, which stands for students that teach; give it another name")
        for name, condition in self.conditions.items():
            if condition.teacher is not None and condition.teacher not in {TWIN, *self.teachers}:
                known = choices(condition.teacher, {TWIN, *self.teachers})
                raise ValueError(
                    f"conditions.{name}.teacher is `{condition.teacher}`, which is not in teachers; {known}"
                )
        counts = {name: len(arm.trials) for name, arm in self.arms.items()}
        for name, count in counts.items():
            if not count:
                raise ValueError(f"arm `{name}` tries no setting: a list in its `tune` is empty")
        if len(set(counts.values())) > 1 and not self.unequal_effort:
            efforts = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ValueError(
                f"the arms do not try equally many settings ({efforts}), which favours those that try more; give each "
                "the same number, or set `unequal_effort: true`, and the report will say so"
            )
        first, last = self.chosen_on
        if not 0 <= first < last <= CHOICE_ENDS:
            raise ValueError(
                f"chosen_on is {first} to {last}; it must lie within 0 to {CHOICE_ENDS}, since the rest is judged"
            )
        name, condition = next(iter(self.conditions.items()))
        if condition.start:
            raise ValueError(f"condition `{name}` is the first, under which arms are tuned: its students start at 0")
        if condition.teacher == TWIN:
            raise ValueError(f"condition `{name}` is the first, under which arms are tuned: it needs a teacher")
        for kind, seeds in {"seeds": self.seeds, "tuning_seeds": self.tuned_with}.items():
            if not seeds or len(set(seeds)) < len(seeds):
                raise ValueError(f"{kind} are {list(seeds)}; give one or more, each once")
        return self

    @property
    def clustered_by(self) -> tuple[str, ...]:
        return (self.cluster,) if isinstance(self.cluster, str) else self.cluster or ()

    @property
    def tuned_under(self) -> str:
        """The first condition, which the others are compared with."""
        return next(iter(self.conditions))

    @property
    def tuned_with(self) -> tuple[int, ...]:
        """The seeds that settings are chosen with."""
        given = self.tuning_seeds
        return given if isinstance(given, tuple) else self.seeds[:given]

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Those that are judged, and those that are tuned with alone."""
        return tuple(dict.fromkeys([*self.seeds, *self.tuned_with]))

    def snapshots(self, seed: int) -> list[Snapshots]:
        """The logits that are needed of a seed: a seed that is tuned with alone needs those of the first condition."""
        if seed not in self.seeds:
            first = self.conditions[self.tuned_under].snapshots
            return [first] if first else []
        asked = [condition.snapshots for condition in self.conditions.values()]
        return list(dict.fromkeys([s for s in asked if s] + [Snapshots(name) for name in self.teachers]))

    def controls_of(self, condition: str) -> dict[str, str]:
        """The names of those controls of a condition that are conditions of this sweep, too."""
        names = {made: name for name, made in reversed(self.conditions.items())}
        wanted = self.conditions[condition].controls()
        return {kind: names[made] for kind, made in wanted.items() if made in names}

    @property
    def unequal(self) -> bool:
        return len({len(arm.trials) for arm in self.arms.values()}) > 1


class Setting(NamedTuple):
    """What one student trains with in one trial of one arm."""

    arm: str
    trial: int
    tuned: dict[str, Any]
    student: StudentSettings


def load(path: str | Path, overrides: Sequence[str] = ()) -> tuple[Sweep, Config]:
    """A sweep file and the config it names, checked together. Files that its `set` names lie relative to the sweep
    file, or to the working directory where an override says what is set. Raises BadInput."""
    raw = read_settings(path, "sweep")
    for text in overrides:
        override(raw, text)
    try:
        sweep = Sweep.model_validate(raw)
    except ValidationError as error:
        raise BadInput(f"{path} is not a valid sweep:\n" + "\n".join(problems(error, Sweep))) from None
    folder = config_file(path).parent
    given = any(text.partition("=")[0].partition(".")[0] == "set" for text in overrides)
    config = load_config(folder / sweep.config, list(sweep.set), overridden_in=Path() if given else folder)
    _check(sweep, config, str(path))
    return sweep, config


def _check(sweep: Sweep, config: Config, path: str) -> None:
    names = {student.name for student in config.students}
    for name in sweep.students:
        if name not in names:
            raise BadInput(f"{path}: students names `{name}`; {choices(name, names)}")
    columns = {"vertical", "impression_id", *(column.name for column in config.rows.columns)}
    for column in sweep.clustered_by:
        if column not in columns:
            raise BadInput(f"{path}: cluster is column `{column}`; {choices(column, columns)}")
    for name, teacher in sweep.teachers.items():
        known = set(config.teacher_features.names)
        for feature in () if teacher.features == "students" else teacher.features:
            if feature not in known:
                raise BadInput(f"{path}: teachers.{name}.features names `{feature}`; {choices(feature, known)}")
    for arm, changes in sweep.arms.items():
        if fixed := sorted({"name", "verticals", "tasks"} & changes.student.keys()):
            raise BadInput(
                f"{path}: arm `{arm}` changes {', '.join(fixed)}; arms are compared on the same rows and tasks"
            )
        trials = [settings_of(sweep, config, student, arm) for student in students_of(sweep, config)]
        if sweep.as_shown and any(s.student.negative_rate for each in trials for s in each):
            raise BadInput(
                f"{path}: as_shown, and arm `{arm}` learns a share of the negatives: rows that it leaves out are not "
                "predicted as shown. Leave one of the two out"
            )
        for settings in zip(*trials, strict=True):
            try:
                config.model_validate(config.model_dump() | {"students": [s.student.model_dump() for s in settings]})
            except ValidationError as error:
                raise BadInput(
                    f"{path}: arm `{arm}`, {settings[0].tuned}:\n" + "\n".join(problems(error, Config))
                ) from None


def students_of(sweep: Sweep, config: Config) -> list[StudentSettings]:
    return [student for student in config.students if not sweep.students or student.name in sweep.students]


def settings_of(sweep: Sweep, config: Config, student: StudentSettings, arm: str) -> list[Setting]:
    """What `student` tries under an arm. Raises BadInput where a setting makes no valid student."""
    return [setting_of(sweep, student, arm, trial, tuned) for trial, tuned in enumerate(sweep.arms[arm].trials)]


def setting_of(sweep: Sweep, student: StudentSettings, arm: str, trial: int, tuned: dict[str, Any]) -> Setting:
    """The student under an arm with these values. Raises BadInput where they make no valid student."""
    changes = sweep.arms[arm]
    raw = merged(student.model_dump(mode="json"), changes.student)
    model = raw["model"]
    arm_set = changes.set.get("arm")
    if isinstance(arm_set, dict) and {"kind", "preset"} & arm_set.keys():
        model = model | {"arm": {}}
    raw["model"] = merged(model, changes.set)
    for path, value in tuned.items():
        of_student = path.removeprefix(OF_STUDENT)
        raw = merged(raw, _nested(of_student if of_student != path else f"model.{path}", value))
    try:
        return Setting(arm, trial, tuned, StudentSettings.model_validate(raw))
    except (ValidationError, ConfigError) as error:
        faults = "\n".join(problems(error, StudentSettings)) if isinstance(error, ValidationError) else f"  {error}"
        tried = f" with {tuned}" if tuned else ""
        raise BadInput(f"arm `{arm}`{tried} makes no valid student `{student.name}`:\n{faults}") from None


def _nested(path: str, value: Any) -> dict[str, Any]:
    """
    >>> _nested("arm.weight", 2)
    {'arm': {'weight': 2}}
    """
    first, _, rest = path.partition(".")
    return {first: _nested(rest, value) if rest else value}


def seeded(config: Config, seed: int) -> Config:
    """The run with this seed; a generated source gets it too."""
    changes: dict[str, Any] = {"seed": seed}
    if isinstance(config.source, Generated):
        changes["source"] = config.source.model_copy(update={"seed": seed})
    return config.model_copy(update=changes)

"""A sweep as one frozen object, read from YAML: which arms, under which conditions, tuned how, on which stream.

    sweep, config = load("configs/sweeps/quick.yaml", ["seeds=[1, 2, 3]"])

Every arm tries the same number of settings: one that tried more would profit from choosing among more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

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

CHOICE_ENDS = 0.5
"""Settings are chosen before this share of the stream, arms are judged after it."""


class ArmSpec(Frozen):
    """What one arm changes, and the settings it tries."""

    set: dict[str, Any] = Field(
        default={}, description="merged into `students.*.model`; an `arm` that names its `kind` replaces the student's"
    )
    student: dict[str, Any] = Field(default={}, description="merged into `students.*` itself: features, batch_rows, …")
    tune: dict[str, list[Any]] | list[dict[str, Any]] = Field(
        default={}, description="paths in the model with the values to try, all combinations; or a list of combinations"
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


class Condition(Frozen):
    """The logged logits that students get, and when a student starts."""

    behind: int = Field(default=0, ge=0, description="scored by a snapshot this many blocks older than the pace's")
    scale: float = Field(default=1.0, allow_inf_nan=False, description="students see scale · logit + shift")
    shift: float = Field(default=0.0, allow_inf_nan=False, description="see scale")
    start: float = Field(
        default=0.0, ge=0, lt=0.95, description="share of the stream that has passed when a student starts"
    )

    @property
    def honest(self) -> bool:
        return (self.scale, self.shift) == (1.0, 0.0)


class Reference(Frozen):
    """A further teacher on the same rows, which the transfer ratio is quoted against. No student learns from it."""

    features: tuple[str, ...] = Field(default=(), description="empty: the teacher's")
    model: dict[str, Any] = Field(default={}, description="merged into `teacher.model`")


class Sweep(Frozen):
    config: str = Field(description="the run's config, relative to this file")
    set: tuple[str, ...] = Field(default=(), description="path=value, overrides on it")
    seeds: tuple[int, ...] = Field(
        default=(1, 2, 3, 4, 5), min_length=1, description="of the models, and of a generated stream; one run each"
    )
    tuning_seeds: int | None = Field(
        default=None, ge=1, description="tune with this many seeds, the first ones; null: all"
    )
    rows: int | None = Field(default=None, gt=0, description="take this many settled rows, the first ones; null: all")
    students: tuple[str, ...] = Field(default=(), description="empty: all of the config's")
    baseline: str = Field(default="none", description="the arm that the others are compared with")
    cluster: str | None = Field(
        default="user_id", description="rows of one value are not independent; null: consecutive blocks, no GAUC"
    )
    arms: dict[str, ArmSpec]
    conditions: dict[str, Condition] = Field(default={"fresh": Condition()}, min_length=1)
    references: dict[str, Reference] = Field(default={})
    chosen_on: tuple[float, float] = Field(
        default=(0.0, CHOICE_ENDS), description="settings are chosen by NE on this part of the stream"
    )
    unequal_effort: bool = Field(
        default=False, description="allow arms that try more settings than others; the report then says so"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Sweep:
        if self.baseline not in self.arms:
            raise ValueError(
                f"baseline is `{self.baseline}`, which is no arm; {choices(self.baseline, set(self.arms))}"
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
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds are {list(self.seeds)}, and one of them is repeated")
        return self

    @property
    def tuned_under(self) -> str:
        """The first condition, which the others are compared with."""
        return next(iter(self.conditions))

    @property
    def behinds(self) -> list[int]:
        return sorted({condition.behind for condition in self.conditions.values()})

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
    if sweep.cluster is not None and sweep.cluster not in columns:
        raise BadInput(f"{path}: cluster is column `{sweep.cluster}`; {choices(sweep.cluster, columns)}")
    for name, reference in sweep.references.items():
        for feature in reference.features:
            if feature not in config.features.names:
                known = set(config.features.names)
                raise BadInput(f"{path}: references.{name}.features names `{feature}`; {choices(feature, known)}")
    for arm, changes in sweep.arms.items():
        if fixed := sorted({"name", "verticals", "tasks"} & changes.student.keys()):
            raise BadInput(
                f"{path}: arm `{arm}` changes {', '.join(fixed)}; arms are compared on the same rows and tasks"
            )
        trials = [settings_of(sweep, config, student, arm) for student in students_of(sweep, config)]
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
    changes = sweep.arms[arm]
    found = []
    for trial, tuned in enumerate(changes.trials):
        raw = merged(student.model_dump(mode="json"), changes.student)
        model = raw["model"]
        if "kind" in (changes.set.get("arm") or {}):
            model = model | {"arm": {}}
        raw["model"] = merged(model, changes.set)
        for path, value in tuned.items():
            raw["model"] = merged(raw["model"], _nested(path, value))
        try:
            found.append(Setting(arm, trial, tuned, StudentSettings.model_validate(raw)))
        except (ValidationError, ConfigError) as error:
            faults = "\n".join(problems(error, StudentSettings)) if isinstance(error, ValidationError) else f"  {error}"
            tried = f" with {tuned}" if tuned else ""
            raise BadInput(f"arm `{arm}`{tried} makes no valid student `{student.name}`:\n{faults}") from None
    return found


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

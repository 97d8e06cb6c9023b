"""Settings of a replay as one frozen object: arms, conditions, tuning, stream; and the students that they make.

Every arm tries the same number of settings: one that tried more would profit from choosing among more.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError, model_validator

from exfm.errors import ConfigError
from pipelines.core.config.sections import Generated
from pipelines.core.config.settings import Config
from pipelines.core.config.teacher_and_students import StudentSettings
from pipelines.core.config.text import choices, merged, problems
from pipelines.lab.judging.settings import SECOND_HALF, Judging
from pipelines.lab.spec.arms import ArmSpec, nested
from pipelines.lab.spec.conditions import TWIN, Condition, LogitSource, TeacherSpec
from streaming.errors import BadInput

EXTENSIONS = 2
"""How many times a grid is extended beyond an edge."""

CHOICE_ENDS = SECOND_HALF

OF_STUDENT = "student."
"""What a tuned path begins with that is not one of the student's model."""


class Spec(Judging):
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
    since: int | str | None = Field(
        default=None,
        description="of a run's lake: the first row, by lake_seq, by time (2026-11-20T06:00), or by a length before "
        "the end (7d, 12h); null: the first there is",
    )
    until: int | str | None = Field(
        default=None, description="the last row, by lake_seq, or the end in time as in `since`; null: the last there is"
    )
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
    unequal_effort: bool = Field(
        default=False, description="allow arms that try more settings than others; the report then says so"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Spec:
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
        for name, arm in self.arms.items():
            if arm.budget is None:
                continue
            if (other := arm.budget.arm) not in (others := set(self.arms) - {name}):
                raise ValueError(f"arms.{name}.budget.arm is `{other}`; {choices(other, others)}")
            if (asked := arm.budget.condition) is not None and asked not in self.conditions:
                known = choices(asked, set(self.conditions))
                raise ValueError(f"arms.{name}.budget.condition is `{asked}`; {known}")
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
        if self.judged_from < CHOICE_ENDS and (len(self.baselines) > 1 or max(counts.values()) > 1):
            raise ValueError(
                f"judged_from is {self.judged_from:g}, and settings are chosen on the first half of the stream; give "
                f"{CHOICE_ENDS} or more, or leave `tune` and further baselines out"
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
        """Seeds with which settings are chosen."""
        given = self.tuning_seeds
        return given if isinstance(given, tuple) else self.seeds[:given]

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Seeds that are judged, and those used only for tuning."""
        return tuple(dict.fromkeys([*self.seeds, *self.tuned_with]))

    def logit_sources(self, seed: int) -> list[LogitSource]:
        """Logits needed for a seed; a seed used only for tuning needs those of the first condition."""
        if seed not in self.seeds:
            first = self.conditions[self.tuned_under].logit_source
            return [first] if first else []
        asked = [condition.logit_source for condition in self.conditions.values()]
        return list(dict.fromkeys([s for s in asked if s] + [LogitSource(name) for name in self.teachers]))

    def controls_of(self, condition: str) -> dict[str, str]:
        """The names of those controls of a condition that are conditions of this spec, too."""
        names = {made: name for name, made in reversed(self.conditions.items())}
        wanted = self.conditions[condition].controls()
        return {kind: names[made] for kind, made in wanted.items() if made in names}

    @property
    def unequal(self) -> bool:
        return len({len(arm.trials) for arm in self.arms.values()}) > 1


class Setting(NamedTuple):
    """Settings of one student in one trial of one arm."""

    arm: str
    trial: int
    tuned: dict[str, Any]
    student: StudentSettings


def students_of(spec: Spec, config: Config) -> list[StudentSettings]:
    return [student for student in config.students if not spec.students or student.name in spec.students]


def settings_of(spec: Spec, student: StudentSettings, arm: str) -> list[Setting]:
    """Trials of `student` under an arm. Raises BadInput where a setting makes no valid student."""
    return [setting_of(spec, student, arm, trial, tuned) for trial, tuned in enumerate(spec.arms[arm].trials)]


def setting_of(spec: Spec, student: StudentSettings, arm: str, trial: int, tuned: dict[str, Any]) -> Setting:
    """The student under an arm with these values. Raises BadInput where they make no valid student."""
    changes = spec.arms[arm]
    raw = merged(student.model_dump(mode="json"), changes.student)
    model = raw["model"]
    arm_set = changes.set.get("arm")
    if isinstance(arm_set, dict) and {"kind", "preset"} & arm_set.keys():
        model = model | {"arm": {}}
    raw["model"] = merged(model, changes.set)
    for path, value in tuned.items():
        of_student = path.removeprefix(OF_STUDENT)
        raw = merged(raw, nested(of_student if of_student != path else f"model.{path}", value))
    try:
        return Setting(arm, trial, tuned, StudentSettings.model_validate(raw))
    except (ValidationError, ConfigError) as error:
        faults = "\n".join(problems(error, StudentSettings)) if isinstance(error, ValidationError) else f"  {error}"
        tried = f" with {tuned}" if tuned else ""
        raise BadInput(f"arm `{arm}`{tried} makes no valid student `{student.name}`:\n{faults}") from None


def seeded(config: Config, seed: int) -> Config:
    """The run with this seed; a generated source gets it too."""
    changes: dict[str, Any] = {"seed": seed}
    if isinstance(config.source, Generated):
        changes["source"] = config.source.model_copy(update={"seed": seed})
    return config.model_copy(update=changes)

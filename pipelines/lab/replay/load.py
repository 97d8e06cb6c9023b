"""A replay from a spec file, or from lines of a command: parsed, its starts resolved, and checked.

spec, config = load("configs/sweeps/quick.yaml", ["seeds=[1, 2, 3]"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pipelines.core.config.asof import inputs_of
from pipelines.core.config.evolve import with_roster
from pipelines.core.config.settings import Config
from pipelines.core.config.settings import load as load_config
from pipelines.core.config.text import override, problems, read_settings
from pipelines.core.run_dir.paths import RunDir
from pipelines.core.shipped.files import config_file
from pipelines.lab.logits.starts import Starts
from pipelines.lab.replay.problems import check_spec
from pipelines.lab.replay.settings import OF_STUDENT, Spec
from pipelines.lab.spec.arms import OF_TEACHER, ArmSpec, arm_of_line, condition_of_line
from streaming.errors import BadInput
from streaming.lake.asof_table import AsOfTable
from streaming.lake.delta.files import NoTable

T = TypeVar("T")

FolderOf = Callable[[Config], Path]
"""The folder of a replay of a config."""

RUNS_OWN = "as run"
"""The arm of the run's own settings, the first baseline where no other is named."""

WITH_ASOF = "as-of"
"""The arm that reads the features of `exfm lake asof`."""

STARTS_FROM = "starts_from"

MARK = " (privileged)"
"""Put behind the name of a teacher that knows what came after a row was shown, and of its conditions."""


def load(path: str | Path, overrides: Sequence[str] = (), folder_of: FolderOf | None = None) -> tuple[Spec, Config]:
    """A spec file and the config it names, checked together. Files that its `set` names lie relative to the spec
    file, or to the working directory where an override says what is set. `folder_of`: where the replay is, and the
    checkpoints are written down that students were found to start from. Raises BadInput."""
    spec = _parsed(read_settings(path, "sweep"), overrides, f"{path} is not a valid spec")
    folder = config_file(path).parent
    is_set_here = any(text.partition("=")[0].partition(".")[0] == "set" for text in overrides)
    config = load_config(folder / spec.config, list(spec.set), overridden_in=Path() if is_set_here else folder)
    return _resolved(spec, config, str(path), folder_of)


def load_run(
    run_dir: RunDir,
    arms: Sequence[str],
    conditions: Sequence[str] = (),
    teachers: Sequence[str] = (),
    *,
    baseline: str | None = None,
    students: Sequence[str] = (),
    seeds: int = 1,
    since: str | None = None,
    until: str | None = None,
    asof: bool = False,
    overrides: Sequence[str] = (),
    folder_of: FolderOf | None = None,
) -> tuple[Spec, Config]:
    """A spec of these arms, conditions and further teachers, each a line, over the lake of a run; and the run's config
    with the students that were spawned. A teacher is a condition, too: that students learn from it. Without `baseline`
    the run's own settings are an arm, which the others are compared with. `asof`: an arm more reads the as-of features
    that were computed beside the lake, and the others may.

    Raises BadInput."""
    if not run_dir.config.exists():
        raise BadInput(f"no run in {run_dir.root} (no config.yaml there); give the folder of one with --run-dir")
    config = with_roster(load_config(run_dir.config), run_dir.roster)
    own = [] if baseline is not None else [(RUNS_OWN, ArmSpec())]
    if asof:
        config, arm = _with_asof(config, run_dir)
        own.append((WITH_ASOF, arm))
    further = _each_once("teacher", [condition_of_line(line, "--teacher") for line in teachers])
    by_teacher = [(name, {"teacher": name}) for name in further]
    raw: dict[str, Any] = {
        "config": str(run_dir.config),
        "arms": {n: arm.model_dump() for n, arm in _each_once("arm", [*own, *map(arm_of_line, arms)]).items()},
        "conditions": _each_once("condition", [("as logged", {}), *by_teacher, *map(condition_of_line, conditions)]),
        "teachers": further,
        "baselines": [baseline or RUNS_OWN],
        "cluster": "user_id" if any(column.name == "user_id" for column in config.rows.columns) else None,
        "students": list(students),
        "seeds": [config.seed + n for n in range(seeds)],
        "since": since,
        "until": until,
    }
    return _resolved(_parsed(raw, overrides, "the replay is not valid"), config, "the replay", folder_of)


def _with_asof(config: Config, run_dir: RunDir) -> tuple[Config, ArmSpec]:
    """The config whose rows have the columns of the table beside the lake, and an arm that reads them."""
    try:
        features = AsOfTable(run_dir.side_tables).asof.features
    except NoTable:
        raise BadInput(
            f"--asof: no as-of features were computed for the lake of {run_dir.root}; compute them with "
            f"`exfm lake asof {run_dir.root} --features FILE`"
        ) from None
    asof = config.rows.asof.model_copy(update={"features": (*config.rows.asof.features, *features)})
    rows = type(config.rows).model_validate(config.rows.model_dump() | {"asof": asof.model_dump()})
    inputs = {each["name"]: each | {"kind": "dense"} for feature in features for each in inputs_of(feature)}
    inputs = {name: {key: value for key, value in each.items() if key != "name"} for name, each in inputs.items()}
    return config.model_copy(update={"rows": rows}), ArmSpec(features=inputs)


def _each_once(kind: str, named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """By name. Raises BadInput where two have one: the second would silently take the place of the first."""
    by_name: dict[str, T] = {}
    for name, value in named:
        if name in by_name:
            raise BadInput(f"duplicate {kind} `{name}` (or the replay's own); give each a name of its own")
        by_name[name] = value
    return by_name


def _parsed(raw: dict[str, Any], overrides: Sequence[str], otherwise: str) -> Spec:
    for text in overrides:
        override(raw, text)
    try:
        return Spec.model_validate(raw)
    except ValidationError as error:
        raise BadInput(f"{otherwise}:\n" + "\n".join(problems(error, Spec))) from None


def _resolved(spec: Spec, config: Config, path: str, folder_of: FolderOf | None) -> tuple[Spec, Config]:
    """Both, with the checkpoints that students start from named, and the config's value where the spec has none."""
    if spec.value is None and config.metrics.value is not None:
        spec = spec.model_copy(update={"value": config.metrics.value})
    starts = Starts(None if folder_of is None else folder_of(config))
    arms = {name: _with_features(_with_starts(arm, starts), config) for name, arm in spec.arms.items()}
    students = tuple(s.model_copy(update={STARTS_FROM: starts.named(s.starts_from)}) for s in config.students)
    spec, config = marked(spec.model_copy(update={"arms": arms})), config.model_copy(update={"students": students})
    check_spec(spec, config, path)
    starts.store()
    return spec, config


def marked(spec: Spec) -> Spec:
    """The spec with a word behind the name of every privileged teacher, and of the conditions that it is of: every
    table, picture and verdict shows it.

    >>> spec = Spec.model_validate({"config": "", "arms": {"none": {}}, "conditions": {"as told": {"teacher": "told"}},
    ...                             "teachers": {"told": {"model": {"sequence": {"as_of": "settlement"}}}}})
    >>> list(marked(spec).conditions), marked(spec).conditions["as told (privileged)"].teacher
    (['as told (privileged)'], 'told (privileged)')
    """
    of = {name: name + MARK for name, each in spec.teachers.items() if each.privileged}
    names = {name: name + MARK * (each.teacher in of) for name, each in spec.conditions.items()}
    teachers = {of.get(name, name): each for name, each in spec.teachers.items()}
    conditions = {
        names[name]: each.model_copy(update={"teacher": of.get(each.teacher or "", each.teacher)})
        for name, each in spec.conditions.items()
    }
    arms = {
        name: arm.model_copy(
            update={"budget": arm.budget and arm.budget.model_copy(
                update={"condition": names.get(arm.budget.condition or "", arm.budget.condition)})}
        )
        for name, arm in spec.arms.items()
    }  # fmt: skip
    return spec.model_copy(update={"teachers": teachers, "conditions": conditions, "arms": arms})


def _with_features(arm: ArmSpec, config: Config) -> ArmSpec:
    """The arm with the names of the teacher's features where it asks for them."""
    if arm.student.get("features") != OF_TEACHER:
        return arm
    return arm.model_copy(update={"student": arm.student | {"features": list(config.teacher_features.names)}})


def _with_starts(arm: ArmSpec, starts: Starts) -> ArmSpec:
    """The arm with the checkpoints named in its changes and trials."""
    path, tune, student = OF_STUDENT + STARTS_FROM, arm.tune, arm.student
    if isinstance(tune, dict):
        tune = tune | ({path: [starts.named(value) for value in tune[path]]} if path in tune else {})
    else:
        tune = [trial | ({path: starts.named(trial[path])} if path in trial else {}) for trial in tune]
    if STARTS_FROM in student:
        student = student | {STARTS_FROM: starts.named(student[STARTS_FROM])}
    return arm.model_copy(update={"tune": tune, "student": student})

"""Problems of a replay: how a spec does not fit its config, or the rows that it is of."""

from __future__ import annotations

from pydantic import ValidationError

from pipelines.core.config.settings import Config
from pipelines.core.config.text import choices, problems
from pipelines.lab.replay.settings import Spec, settings_of, students_of
from pipelines.lab.spec.arms import with_features
from streaming.errors import BadInput


def check_spec(spec: Spec, config: Config, path: str) -> None:
    """Raise BadInput where the spec names what the config has not, or an arm makes no valid config."""
    columns = {"vertical", "impression_id", *(column.name for column in config.rows.columns)}
    teacher_features = set(config.teacher_features.names)
    for name in spec.students:
        _check_known(f"{path}: students names", name, {student.name for student in config.students})
    for key, column in [*(("cluster", column) for column in spec.clustered_by), *spec.named_columns()]:
        _check_known(f"{path}: {key} is column", column, columns)
    for name, teacher in spec.teachers.items():
        for feature in () if teacher.features == "students" else teacher.features:
            _check_known(f"{path}: teachers.{name}.features names", feature, teacher_features)
    for arm, changes in spec.arms.items():
        if fixed := sorted({"name", "tasks"} & changes.student.keys()):
            raise BadInput(f"{path}: arm `{arm}` changes {', '.join(fixed)}; arms are compared on the same tasks")
        own = with_features(config, changes.features, arm)
        trials = [settings_of(spec, student, arm) for student in students_of(spec, config)]
        for settings in zip(*trials, strict=True):
            try:
                own.model_validate(own.model_dump() | {"students": [s.student.model_dump() for s in settings]})
            except ValidationError as error:
                faults = "\n".join(problems(error, Config))
                raise BadInput(f"{path}: arm `{arm}`, {settings[0].tuned}:\n{faults}") from None


def _check_known(words: str, name: str, names: set[str]) -> None:
    if name not in names:
        raise BadInput(f"{words} `{name}`; {choices(name, names)}")


def check_rows(spec: Spec, config: Config, *, of_a_run: bool) -> None:
    """Raise BadInput where conditions, or the range of rows, ask for more than the rows hold."""
    longest = max(task.window_s for task in config.rows.tasks)
    for name, condition in spec.conditions.items():
        if (window_s := condition.window_s) is not None and window_s >= longest:
            raise BadInput(
                f"condition `{name}` has window_s {window_s:g}, and no task has a longer one (the longest: "
                f"{longest:g}): labels that settle later are not known yet when a row is learned; give less"
            )
        if window_s is not None and not config.plays:
            raise BadInput(
                f"condition `{name}` has window_s {window_s:g}, and the lake does not hold when feedback came; the "
                "config's `source` would say it, and there is none. `lost` takes a share of the feedback away"
            )
        if condition.stored is not None and not of_a_run:
            raise BadInput(
                f"condition `{name}` wants logits of stored snapshots, and there is no run; give its folder "
                "(--run-dir), or `behind`, blocks, without one"
            )
    if not of_a_run and (spec.since is not None or spec.until is not None):
        raise BadInput("`since` and `until` are of a run's lake; give its folder (--run-dir), or leave them out")

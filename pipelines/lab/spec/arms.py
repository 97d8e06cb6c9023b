"""Arms: an arm's changes of a student after the lake, and its trials.

In a spec an arm is a mapping; in a command, a line: `wide: model.trunk.mlp=[256,128], features.user_id.rows=50000`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Any

from pydantic import Field, ValidationError

from exfm.features.features import FeatureSet
from pipelines.core.config.settings import Config
from pipelines.core.config.text import choices, override, problems
from pipelines.core.config.topics import Frozen
from streaming.errors import BadInput


class Budget(Frozen):
    """The training FLOPs of an arm that distils, its share of the teacher's included."""

    arm: str = Field(description="the arm whose training FLOPs are to be spent")
    condition: str | None = Field(default=None, description="under this condition; null: the first one")


OF_TEACHER = "teacher"
"""In the place of a student's features: those of the config's teacher."""


class ArmSpec(Frozen):
    """Changes of one arm, and the settings it tries."""

    set: dict[str, Any] = Field(
        default={},
        description="merged into `students.*.model`; an `arm` that names its `kind` or `preset` replaces the student's",
    )
    student: dict[str, Any] = Field(
        default={},
        description="merged into `students.*` itself: features, batch_rows, where, first_seq, starts_from, …; "
        "`features: teacher`: what the config's teacher sees, its sequences pooled",
    )
    features: dict[str, dict[str, Any] | None] = Field(
        default={},
        description="by name, merged into a feature of the config, as this arm's students read it (`{user_id: {rows: "
        "50000}}`); another name adds one, with its `kind`: sparse, dense, sequence or history; null leaves it out",
    )
    budget: Budget | None = Field(
        default=None,
        description="width and MLP are made so many times as wide that training takes as many FLOPs as that of an arm "
        "that distils, its share of the teacher's included: `{arm: recommended}`",
    )
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


def arm_of_line(line: str) -> tuple[str, ArmSpec]:
    """Parse an arm's name and changes. Paths begin in the student's section; `features.NAME.` in a feature of that
    name. Raises BadInput.

    >>> arm_of_line("wide: model.trunk.mlp=[256, 128], batch_rows=256")[1].set
    {'trunk': {'mlp': [256, 128]}}
    >>> arm_of_line("plain")
    ('plain', ArmSpec(set={}, student={}, features={}, budget=None, tune={}))
    """
    name, _, rest = line.partition(":")
    name = name.strip()
    if not name or "=" in name:
        raise BadInput(f"--arm {line}: write it as 'name: path=value, path=value'; a name alone: the run's own")
    raw: dict[str, Any] = {}
    for assignment in _assignments(rest):
        if not re.match(r"\s*[\w.]+\s*=", assignment):
            raise BadInput(f"--arm {line}: `{assignment.strip()}` is no path=value")
        path, _, value = assignment.partition("=")
        of_feature = path.strip().startswith("features.")
        override(raw, f"{'of features.' if of_feature else ''}{path.strip()}={value}")
    changes = raw.pop("of features", {}).get("features", {})
    model = raw.pop("model", {})
    return name, ArmSpec(set=model, student=raw, features=changes)


def condition_of_line(line: str, option: str = "--condition") -> tuple[str, dict[str, Any]]:
    """Parse a condition's, or a teacher's, name and settings, as `stale: stale_rows=20000, missing=0.1`. Raises
    BadInput.

    >>> condition_of_line("stale: stale_rows=20000, missing=0.1")
    ('stale', {'stale_rows': 20000, 'missing': 0.1})
    """
    name, _, rest = line.partition(":")
    raw: dict[str, Any] = {}
    if not name.strip() or "=" in name:
        raise BadInput(f"{option} {line}: write it as 'name: setting=value, setting=value'")
    for assignment in _assignments(rest):
        path, equals, value = assignment.partition("=")
        override(raw, f"{path.strip()}{equals}{value}")
    return name.strip(), raw


def _assignments(text: str) -> list[str]:
    """
    >>> _assignments(" a=[1, 2], b.c={x: 1, y: 2}, where=bid > 1 and x in (1, 2)")
    [' a=[1, 2]', ' b.c={x: 1, y: 2}', ' where=bid > 1 and x in (1, 2)']
    """
    pieces, depth, begins = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and depth == 0 and re.match(r"\s*[A-Za-z_][\w.]*\s*=(?!=)", text[at + 1 :]):
            pieces.append(text[begins:at])
            begins = at + 1
    return [part for part in [*pieces, text[begins:]] if part.strip()]


def with_features(config: Config, changes: Mapping[str, Mapping[str, Any] | None], arm: str) -> Config:
    """The config with these changes of its features. Raises BadInput where they make no valid features."""
    if not changes:
        return config
    raw = config.features.model_dump(mode="json")
    kinds = {feature["name"]: kind for kind, features in raw.items() for feature in features}
    for name, change in changes.items():
        given = dict(change or {})
        kind = given.pop("kind", None) or kinds.get(name)
        if kind not in raw:
            known = choices(name, set(kinds)) if kind is None else choices(str(kind), set(raw))
            raise BadInput(
                f"arm `{arm}`: features has `{name}`, which the config has not; {known}. A new one says its `kind`: "
                f"{', '.join(raw)}"
            )
        there = next((feature for feature in raw[kind] if feature["name"] == name), None)
        if change is None:
            raw[kind] = [feature for feature in raw[kind] if feature["name"] != name]
        elif there is None:
            raw[kind] = [*raw[kind], {"name": name, **given}]
        else:
            there.update(given)
    try:
        return config.model_copy(update={"features": FeatureSet.model_validate(raw)})
    except ValidationError as error:
        raise BadInput(f"arm `{arm}` makes no valid features:\n" + "\n".join(problems(error, FeatureSet))) from None


def nested(path: str, value: Any) -> dict[str, Any]:
    """
    >>> nested("arm.weight", 2)
    {'arm': {'weight': 2}}
    """
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}

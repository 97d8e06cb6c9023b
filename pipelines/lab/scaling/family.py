"""A family of teachers: Wukongs of growing size, and others of equal FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.planning.cost import TRAINING_OVER_FORWARD, flops_per_example, parameter_count
from exfm.parallel.planning.family import scaled_teacher, teacher_of_equal_flops
from pipelines.core.config.settings import Config
from pipelines.core.config.topics import Frozen
from pipelines.report.table import TextTable
from pipelines.report.words import count, fixed

INTERACTIONS: tuple[str, ...] = ("wukong", "dlrm", "dcn")


class Member(Frozen):
    """A teacher of the family. `dial`: that of the Wukong whose FLOPs it has; FLOPs are of one example, forward."""

    interaction: str
    dial: int
    model: TeacherConfig
    flops: int
    dense_parameters: int
    table_parameters: int

    @property
    def name(self) -> str:
        return f"{self.interaction}-{self.dial}"


def members(config: Config, dials: Sequence[int], interactions: Sequence[str]) -> list[Member]:
    """Members by interaction, in order of size. Raises ConfigError where one has no teacher of such FLOPs."""
    features, tasks = config.teacher_features, len(config.tasks)
    family = []
    for interaction in interactions:
        for dial in dials:
            like = scaled_teacher(config.teacher.model, dial)
            model = like if interaction == "wukong" else teacher_of_equal_flops(interaction, like, features, tasks)
            parameters = parameter_count(model, features, tasks)
            flops = flops_per_example(model, features, tasks)
            family.append(
                Member(
                    interaction=interaction,
                    dial=dial,
                    model=model,
                    flops=flops,
                    dense_parameters=parameters.dense,
                    table_parameters=parameters.tables,
                )
            )
    return family


def as_json(family: Sequence[Member]) -> list[dict[str, Any]]:
    """Members as JSON, with their cost; `relative_flops` to the first of them."""
    return [
        {
            "name": member.name,
            "interaction": member.interaction,
            "dial": member.dial,
            "flops_per_example": member.flops,
            "training_flops_per_example": TRAINING_OVER_FORWARD * member.flops,
            "relative_flops": member.flops / family[0].flops,
            "parameters": {"dense": member.dense_parameters, "tables": member.table_parameters},
            "model": member.model.model_dump(mode="json"),
        }
        for member in family
    ]


def sizes(family: Sequence[Member]) -> TextTable:
    """Every member with its shape, parameters and FLOPs."""
    rows = []
    for member in family:
        parameters = [count(member.dense_parameters), count(member.table_parameters)]
        relative = fixed(member.flops / family[0].flops, 2)
        rows.append([member.name, *_shape(member), *parameters, count(member.flops), relative])
    head = ["teacher", "layers", "n_F", "n_L", "k", "MLP", "dense", "tables", "FLOPs/example", "×"]
    return TextTable("", head, rows)


def _shape(member: Member) -> list[str]:
    model = member.model
    if member.interaction == "wukong":
        numbers = (model.layers, model.num_fmb, model.num_lcb, model.rank)
        return [*map(str, numbers), _widths(model.mlp)]
    if member.interaction == "dlrm":
        return ["", "", "", "", f"{_widths(model.dlrm.bottom)} / {_widths(model.dlrm.top)}"]
    cross, deep = model.dcn.cross, model.dcn.deep
    return [str(cross.layers), "", "", str(cross.rank or "full"), _widths(deep)]


def _widths(widths: Sequence[int]) -> str:
    return "-".join(map(str, widths)) or "linear"

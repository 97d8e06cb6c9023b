"""The page of settings, from the config's pydantic models."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from docs.generate.markdown import GENERATED, cell, prose, slug, table

BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
NAMES = {
    type(None): "null",
    str: "text",
    bool: "true or false",
    int: "integer",
    float: "number",
    Any: "any",
    Path: "path",
}


def settings_page() -> str:
    from exfm.embeddings.kinds.registry import KINDS
    from exfm.interactions.registry import INTERACTIONS
    from pipelines.core.config.settings import Config

    text = [
        "# Settings",
        GENERATED,
        "A config is a YAML file. Unknown keys are refused. Any setting can be given on the command line, by path: "
        "`--set teacher.batch_rows=1024`, and for a list by name: `--set students.home.twin=true`.",
        "`student_defaults` is merged under every student. `[]` in a heading stands for the items of a list, `{}` for "
        "the values of a mapping.",
        *described_models(Config, "The whole config"),
        "## Options of an interaction",
        "For interactions whose settings are not fields of the teacher or the trunk: the keys of `options`.",
    ]
    for name, model in INTERACTIONS.items():
        text += [f"### `options` of `{name}`", settings_table(model, {})]
    text += ["## Kinds of embedding tables", "What `embeddings.<table>` holds, by its `kind`."]
    for name, kind in KINDS.items():
        text += [f"### `{name}`", settings_table(kind, {})]
    return "\n\n".join(text)


def sweep_settings_page() -> str:
    from pipelines.lab.replay.settings import Spec

    text = [
        "# Settings of a sweep",
        GENERATED,
        "The spec of `exfm sweep` and `exfm replay`; [Choose an arm](../../guides/choose-an-arm.md) explains its use.",
        *described_models(Spec, "The whole spec"),
    ]
    return "\n\n".join(text)


def described_models(root: type[BaseModel], title: str) -> Iterator[str]:
    """A heading, a sentence and a table for every model of a config."""
    headings = {
        model: f"`{'`, `'.join(paths)}`{discriminator(model)}" if paths != [""] else title
        for model, paths in sections(root).items()
    }
    anchors = {model: slug(heading) for model, heading in headings.items()}
    for model, heading in headings.items():
        yield f"## {heading}"
        if said := purpose_of(model):
            yield prose(said)
        yield settings_table(model, anchors)


def sections(config: type[BaseModel]) -> dict[type[BaseModel], list[str]]:
    """Every model of a config with the paths at which it stands."""
    found: dict[type[BaseModel], list[str]] = {}

    def visit(model: type[BaseModel], path: str) -> None:
        found.setdefault(model, []).append(path)
        for name, field in model.model_fields.items():
            for inner, mark in models_in(field.annotation):
                visit(inner, f"{path}.{name}{mark}".lstrip("."))

    visit(config, "")
    return found


def discriminator(model: type[BaseModel]) -> str:
    """Field that tells a model from the others that may stand in its place."""
    kind = model.model_fields.get("kind")
    values = get_args(kind.annotation) if kind is not None and get_origin(kind.annotation) is Literal else ()
    return f" of kind `{values[0]}`" if len(values) == 1 else ""


def models_in(annotation: Any, mark: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, mark
    inside = {tuple: "[]", list: "[]", dict: "{}"}.get(get_origin(annotation), mark)
    for argument in get_args(annotation):
        yield from models_in(argument, inside)


def purpose_of(model: type[BaseModel]) -> str:
    """The first paragraph of a model's own docstring."""
    said = vars(model).get("__doc__") or ""
    return re.split(r"\n\s*\n", said)[0]


def settings_table(model: type[BaseModel], anchors: dict[type[BaseModel], str]) -> str:
    rows = []
    for name, field in model.model_fields.items():
        inside = [inner for inner, _ in models_in(field.annotation)]
        links = [link(inner.__name__ if len(inside) > 1 else "section", anchors.get(inner)) for inner in inside]
        meaning = field.description or ("" if len(inside) != 1 else purpose_of(inside[0]))
        kind = kind_of(field).replace("section", " or ".join(links)) if links else kind_of(field)
        rows.append(f"| `{name}` | {cell(kind)} | {cell(default_of(field))} | {cell(prose(meaning))} |")
    return table("setting | type | default | meaning", rows)


def link(text: str, anchor: str | None) -> str:
    return text if anchor is None else f"[{text}](#{anchor})"


def kind_of(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(constraint, name):g}"
        for constraint in field.metadata
        for name, sign in BOUNDS.items()
        if getattr(constraint, name, None) is not None
    ]
    return ", ".join([type_name(field.annotation), *bounds])


def type_name(annotation: Any) -> str:
    """A type as a reader of YAML says it.

    >>> type_name(int | None), type_name(tuple[str, ...]), type_name(Literal["a", "b"])
    ('integer or null', 'list of text', '`a`, `b`')
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return type_name(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(argument) for argument in arguments))
    if origin in (tuple, list):
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"mapping of {type_name(arguments[0])} to {type_name(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_unset=True)
        if not value:
            return "its defaults"
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        return f"{len(value)} sections"
    shown = (
        yaml.safe_dump(to_jsonable_python(value), default_flow_style=True, width=10_000)
        .strip()
        .removesuffix("...")
        .strip()
    )
    return f"`{shown}`"

"""Writes the pages of docs/reference that come from the code: commands, settings, rooms, Python API.

    .venv/bin/python docs/generate_reference.py

Commands come from typer, settings from pydantic; rooms and API are read from the syntax tree, so that nothing heavy is
imported for them. `pages()` returns path -> text without writing; a test compares it with what is committed.
"""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = Path("docs/reference")
PACKAGES = ("exfm", "streaming", "pipelines")
GENERATED = "<!-- Written by docs/generate_reference.py; change the code, not this page. -->"
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
LONGEST_VALUE = 60


def pages() -> dict[Path, str]:
    """Every generated page, by its path in the repository."""
    texts = {"commands": commands_page(), "settings": settings_page(), "rooms": rooms_page()}
    texts |= {f"api-{package}": api_page(package) for package in PACKAGES}
    return {REFERENCE / f"{name}.md": text.rstrip() + "\n" for name, text in texts.items()}


def cell(text: object) -> str:
    """Text that stays inside one cell of a table."""
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def prose(text: str) -> str:
    """A docstring's sentence as Markdown: outside back quotes, stars and angle brackets stand for themselves."""
    parts = re.split(r"(`[^`]*`)", re.sub(r"\s+", " ", text).strip())
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", part) for part in parts if part is not None
    )


# --- commands ----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    from typer.main import get_command

    from pipelines.cli import app

    text = ["# Commands", GENERATED, "Every command has `--help` with an example; commands that report have `--json`."]
    text.append("Exit codes: 0 done, 1 the run failed, 2 the caller's mistake, 130 interrupted and resumable.")
    for name, command in walk_commands(get_command(app), "exfm"):
        text += [f"## `{name}`", *described(command)]
        if rows := [parameter_row(parameter) for parameter in command.params if parameter.name != "help"]:
            text.append("\n".join(["| option | type | default | meaning |", "|---|---|---|---|", *rows]))
    return "\n\n".join(text)


def walk_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for key in sorted(inner):
        if not inner[key].hidden:
            yield from walk_commands(inner[key], f"{name} {key}")


def described(command: Any) -> list[str]:
    """A command's help: its paragraphs, and its examples as code."""
    said = f"{command.help or ''}\n\n{command.epilog or ''}"
    lines = [line.strip() for line in said.replace("\f", "").split("\n")]
    examples = [line.removeprefix("Example:").strip() for line in lines if line.startswith("Example:")]
    rest = "\n".join(line for line in lines if not line.startswith("Example:"))
    paragraphs = [prose(paragraph) for paragraph in re.split(r"\n\s*\n", rest) if paragraph.strip()]
    return [*paragraphs, "```sh\n" + "\n".join(f".venv/bin/{example}" for example in examples) + "\n```"]


def parameter_row(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    names = [parameter.name.upper()] if argument else [*parameter.opts, *parameter.secondary_opts]
    kind = "flag" if getattr(parameter, "is_flag", False) else type_name(parameter.type_descriptor.annotation)
    kind = kind.replace("list of ", "") + ", repeatable" if parameter.multiple else kind
    default = "required" if parameter.required else given(parameter.default)
    shown = ", ".join(f"`{name}`" for name in names)
    return f"| {shown} | {kind} | {default} | {cell(prose(getattr(parameter, 'help', None) or ''))} |"


def given(default: Any) -> str:
    """A default in a table; nothing where there is none."""
    empty = default is None or default is False or default == () or default == [] or callable(default)
    return "" if empty else f"`{default}`"


# --- settings ----------------------------------------------------------------------------------------------------


def settings_page() -> str:
    from pipelines.config import Config

    text = [
        "# Settings",
        GENERATED,
        "A config is a YAML file. Unknown keys are refused. Any setting can be given on the command line, by path: "
        "`--set teacher.batch_rows=1024`, and for a list by name: `--set students.home.twin=true`.",
        "`student_defaults` is merged under every student. `[]` in a heading stands for the items of a list, `{}` for "
        "the values of a mapping.",
    ]
    for path, model in sections(Config):
        text.append(f"## `{path}`{discriminator(model)}" if path else "## The whole config")
        text += [prose(paragraph) for paragraph in (own_docstring(model) or "").split("\n\n")[:1] if paragraph]
        text.append("\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *settings_rows(model)]))
    return "\n\n".join(text)


def sections(config: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every model of a config with its path; one that stands in several places is listed with all of its paths."""
    found: dict[type[BaseModel], list[str]] = {}

    def visit(model: type[BaseModel], path: str) -> None:
        found.setdefault(model, []).append(path)
        for name, field in model.model_fields.items():
            for inner, mark in models_in(field.annotation):
                visit(inner, f"{path}.{name}{mark}".lstrip("."))

    visit(config, "")
    for model, paths in found.items():
        yield "`, `".join(paths), model


def discriminator(model: type[BaseModel]) -> str:
    """What tells a model from the others that may stand in its place."""
    kind = model.model_fields.get("kind")
    values = get_args(kind.annotation) if kind is not None and get_origin(kind.annotation) is Literal else ()
    return f" of kind `{values[0]}`" if len(values) == 1 else ""


def models_in(annotation: Any, mark: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, mark
    inside = {tuple: "[]", list: "[]", dict: "{}"}.get(get_origin(annotation), mark)
    for argument in get_args(annotation):
        yield from models_in(argument, inside)


def own_docstring(model: type[BaseModel]) -> str | None:
    return re.sub(r"^ +", "", model.__doc__, flags=re.M) if "__doc__" in vars(model) and model.__doc__ else None


def settings_rows(model: type[BaseModel]) -> list[str]:
    return [
        f"| `{name}` | {cell(kind_of(field))} | {cell(default_of(field))} | {cell(prose(field.description or ''))} |"
        for name, field in model.model_fields.items()
    ]


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


# --- rooms and API -----------------------------------------------------------------------------------------------


def rooms_in_order() -> list[str]:
    """The folders, in the order in which they build on each other: the list that the import test holds."""
    tree = ast.parse((ROOT / "tests/architecture/test_imports.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER":
            return list(ast.literal_eval(node.value))
    raise LookupError("tests/architecture/test_imports.py has no list ORDER")


def folder(room: str) -> Path:
    return ROOT / room.replace(".", "/")


def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def first_sentences(node: Any) -> str:
    """The first paragraph of a docstring."""
    return re.split(r"\n\s*\n", ast.get_docstring(node) or "")[0]


def rooms_page() -> str:
    text = [
        "# Rooms",
        GENERATED,
        "Every folder of the code, in the order of imports: a folder imports earlier ones only, and through their "
        "façade (`from exfm.distillation import Arm`). `exfm` and `streaming` do not know each other; `pipelines` "
        "imports both. [The map of the code](../concepts/architecture.md) says where to look for what.",
    ]
    for package in PACKAGES:
        rooms = [room for room in rooms_in_order() if room.partition(".")[0] == package]
        text.append(f"## {package}")
        rows = [f"| [`{path_of(room)}`](#{anchor(room)}) | {cell(prose(purpose(room)))} |" for room in rooms]
        text.append("\n".join(["| folder | what it holds |", "|---|---|", *rows]))
        for room in rooms:
            text += [f"### `{path_of(room)}`", "\n".join(["| file | |", "|---|---|", *file_rows(room)])]
    return "\n\n".join(text)


def path_of(room: str) -> str:
    return room.replace(".", "/") + "/"


def anchor(room: str) -> str:
    """The anchor that GitHub and the site give to a heading that is a folder."""
    return path_of(room).replace("/", "")


def purpose(room: str) -> str:
    return first_sentences(module(folder(room) / "__init__.py"))


def file_rows(room: str) -> list[str]:
    files = sorted(path for path in folder(room).glob("*.py") if path.name != "__init__.py")
    return [f"| `{path.name}` | {cell(prose(first_sentences(module(path))))} |" for path in files]


def api_page(package: str) -> str:
    text = [
        f"# Python API: {package}",
        GENERATED,
        f"The public names of every folder of `{package}`, as its façade offers them. They are loaded when they are "
        "first used.",
    ]
    for room in rooms_in_order():
        stub = folder(room) / "__init__.pyi"
        if room.partition(".")[0] == package and stub.exists():
            text += [f"## `{room}`", prose(purpose(room)), *offered(room, module(stub))]
    return "\n\n".join(text)


def offered(room: str, stub: ast.Module) -> Iterator[str]:
    """An entry per name; a name that a lower folder offers is linked to that folder's entry."""
    passed_on = []
    for name, (home, original) in sorted(homes(stub).items(), key=lambda item: item[0].lower()):
        if (folder(room) / home / "__init__.pyi").exists():
            passed_on.append(f"`{name}`")
        else:
            yield from entry(name, folder(room) / f"{home}.py", original)
    if passed_on:
        yield "Offered here too, described with the folder that holds them: " + ", ".join(passed_on) + "."


def homes(stub: ast.Module) -> dict[str, tuple[str, str]]:
    """Name -> (file or folder it comes from, its name there)."""
    return {
        alias.asname or alias.name: (node.module.replace(".", "/"), alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def entry(name: str, path: Path, original: str) -> Iterator[str]:
    yield f"### `{name}`"
    node = definition(module(path), original)
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        yield f"```python\nclass {name}({bases})\n```" if bases else f"```python\nclass {name}\n```"
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield f"```python\n{signature(node, name)}\n```"
    else:
        value = ast.unparse(node.value) if node.value is not None else ast.unparse(node.annotation)
        yield f"```text\n{name} = {value if len(value) <= LONGEST_VALUE else '...'}\n```"
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (said := first_sentences(node)):
        yield prose(said)
    if isinstance(node, ast.ClassDef) and (rows := method_rows(node)):
        yield "\n".join(["| | |", "|---|---|", *rows])
    yield f"*{path.relative_to(ROOT).as_posix()}*"


def definition(tree: ast.Module, name: str) -> Any:
    for node in ast.walk(tree):
        named = [getattr(node, "name", None)] if not isinstance(node, ast.Assign | ast.AnnAssign) else targets(node)
        if name in named:
            return node
    raise LookupError(f"no definition of {name}")


def targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    places = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [name.id for place in places for name in ast.walk(place) if isinstance(name, ast.Name)]


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"def {name}({ast.unparse(node.args)}){returns}"
    return line if len(line) <= 100 else f"def {name}(\n    {ast.unparse(node.args)}\n){returns}"


def method_rows(node: ast.ClassDef) -> list[str]:
    """Public methods and properties with the first paragraph of their docstrings."""
    rows = []
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
            decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
            if "overload" in decorators or any(name.startswith(("model_validator", "field_")) for name in decorators):
                continue
            arguments = [a.arg for a in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)]
            called = ", ".join(name for name in arguments if name not in ("self", "cls"))
            shown = method.name if decorators & {"property", "cached_property"} else f"{method.name}({called})"
            rows.append(f"| `{shown}` | {cell(prose(first_sentences(method)))} |")
    return rows


def main() -> None:
    sys.path.insert(0, str(ROOT))
    for path, text in pages().items():
        (ROOT / path).write_text(text)
        print(path)


if __name__ == "__main__":
    main()

"""The pages of the Python API: what every façade offers, read from the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.generate.markdown import GENERATED, cell, prose, table
from docs.generate.rooms import ROOT, first_sentences, folder, module, purpose, rooms_in_order

LONGEST_VALUE = 60
LONGEST_LINE = 100


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
        yield table("|", rows)
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
    """A function's head as the formatter would write it: on one line, or a line per argument."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    parts = list(arguments(node.args))
    line = f"def {name}({', '.join(parts)}){returns}"
    return line if len(line) <= LONGEST_LINE else f"def {name}(\n    " + ",\n    ".join(parts) + f",\n){returns}"


def arguments(given: ast.arguments) -> Iterator[str]:
    by_place = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(by_place) - len(given.defaults))
    for place, (argument, default) in enumerate(zip(by_place, [*defaults, *given.defaults], strict=True), 1):
        yield with_default(argument, default)
        if place == len(given.posonlyargs):
            yield "/"
    if given.vararg:
        yield f"*{ast.unparse(given.vararg)}"
    elif given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield with_default(argument, default)
    if given.kwarg:
        yield f"**{ast.unparse(given.kwarg)}"


def with_default(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(argument)
    return f"{ast.unparse(argument)}{' = ' if argument.annotation else '='}{ast.unparse(default)}"


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

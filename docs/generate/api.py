"""The pages of the Python API: the public names of every file, read from the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from docs.generate.markdown import GENERATED, cell, prose, table
from docs.generate.tree import ROOT, first_paragraph, folders, modules, syntax

LONGEST_LINE = 100


def api_page(package: str) -> str:
    text = [
        f"# Python API: {package}",
        GENERATED,
        f"Every folder of `{package}` with its files, and the public classes and functions that each file defines.",
    ]
    for folder in folders(package):
        text += [f"## `{folder.relative_to(ROOT).as_posix()}/`", *purpose(folder)]
        for path in modules(folder):
            text += [f"### `{path.relative_to(ROOT).as_posix()}`", *described(syntax(path))]
    return "\n\n".join(text)


def purpose(folder: Path) -> Iterator[str]:
    """The first paragraph of a folder's own docstring."""
    start = folder / "__init__.py"
    if start.exists() and (paragraph := first_paragraph(syntax(start))):
        yield prose(paragraph)


def described(module: ast.Module) -> Iterator[str]:
    """A file's docstring and its public names, in the order of the file."""
    if paragraph := first_paragraph(module):
        yield prose(paragraph)
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield from entry(node)


def entry(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    yield f"#### `{node.name}`"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        yield f"```python\nclass {node.name}({bases})\n```" if bases else f"```python\nclass {node.name}\n```"
    else:
        yield f"```python\n{signature(node)}\n```"
    if paragraph := first_paragraph(node):
        yield prose(paragraph)
    if isinstance(node, ast.ClassDef) and (rows := method_rows(node)):
        yield table("|", rows)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function's head as the formatter would write it: on one line, or a line per argument."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    parts = list(arguments(node.args))
    line = f"def {node.name}({', '.join(parts)}){returns}"
    return line if len(line) <= LONGEST_LINE else f"def {node.name}(\n    " + ",\n    ".join(parts) + f",\n){returns}"


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
            rows.append(f"| `{shown}` | {cell(prose(first_paragraph(method)))} |")
    return rows

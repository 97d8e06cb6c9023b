"""The page of rooms: every folder in the order of imports, with its files; read from the syntax tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from docs.generate.markdown import GENERATED, cell, prose, slug, table

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("exfm", "streaming", "pipelines")


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
        rows = [f"| [`{path_of(room)}`](#{slug(path_of(room))}) | {cell(prose(purpose(room)))} |" for room in rooms]
        text.append(table("folder | what it holds", rows))
        for room in rooms:
            text += [f"### `{path_of(room)}`", table("file |", file_rows(room))]
    return "\n\n".join(text)


def path_of(room: str) -> str:
    return room.replace(".", "/") + "/"


def purpose(room: str) -> str:
    return first_sentences(module(folder(room) / "__init__.py"))


def file_rows(room: str) -> list[str]:
    files = sorted(path for path in folder(room).glob("*.py") if path.name != "__init__.py")
    return [f"| `{path.name}` | {cell(prose(first_sentences(module(path))))} |" for path in files]

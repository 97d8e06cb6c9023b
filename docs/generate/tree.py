"""The source tree as the syntax shows it: folders, files, docstrings."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("exfm", "streaming", "pipelines")


def folders(package: str) -> list[Path]:
    """The folders of a package that hold modules, parents first."""
    return sorted({path.parent for path in (ROOT / package).rglob("*.py")})


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))


def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def first_paragraph(node: Any) -> str:
    """The first paragraph of a docstring; empty without one."""
    return re.split(r"\n\s*\n", ast.get_docstring(node) or "")[0]

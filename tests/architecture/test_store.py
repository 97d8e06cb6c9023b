"""Files are renamed, linked, locked and flushed in one place: `streaming/store`.

What a crash or a power failure leaves behind is decided there, so it can be read there. `exfm` has a file of its own
for it, since a training loop of one's own saves checkpoints with `exfm` alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.tracked_files import tracked

STORES = ("streaming/store/", "exfm/durable.py")
OF_OS = {"rename", "renames", "replace", "link", "symlink", "fsync", "fdatasync", "sync"}
OF_A_PATH = {"rename", "symlink_to", "hardlink_to"}


def outside_of_store(source: str) -> Iterator[tuple[int, str]]:
    """(line, expression) of all in `source` that renames, links, locks or flushes a file without the store."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = getattr(node, "module", None)
            if "fcntl" in (module, *names) or (module == "os" and OF_OS & set(names)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of, name = ast.unparse(node.func.value), node.func.attr
            path_replaced = name == "replace" and len(node.args) == 1 and not node.keywords
            if (of == "os" and name in OF_OS) or (of, name) == ("shutil", "move") or name in OF_A_PATH or path_replaced:
                yield node.lineno, ast.unparse(node)


def test_files_are_renamed_linked_locked_and_flushed_by_the_store_only():
    files = {p: text for p, text in tracked().items() if p.startswith(("exfm/", "streaming/", "pipelines/"))}
    read = {p: text for p, text in files.items() if p.endswith(".py") and not p.startswith(STORES)}
    outside = [f"{path}:{line} {text}" for path, source in read.items() for line, text in outside_of_store(source)]
    assert outside == []


@pytest.mark.parametrize(
    "source",
    [
        "import fcntl",
        "from os import link",
        "os.replace(part, path)",
        "os.fsync(file.fileno())",
        "part.rename(path)",
        "def save():\n    part.with_name('a').replace(self.path)",
        "shutil.move(a, b)",
    ],
)
def test_a_planted_rename_link_lock_or_flush_is_found(source):
    assert len(list(outside_of_store(source))) == 1


@pytest.mark.parametrize(
    "source",
    ['text.replace("a", "b")', "replace(config, rows=5)", "time.replace(tzinfo=UTC)", "table.replace(files, new, {})"],
)
def test_other_replacing_is_let_through(source):
    assert list(outside_of_store(source)) == []

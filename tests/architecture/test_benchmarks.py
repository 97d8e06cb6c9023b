"""Every benchmark is listed with its command, and the command starts."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys

from tests.support.places import ROOT

FOLDER = ROOT / "tests" / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("__"))
# All in one process: what takes seconds is to import torch.
HELP = """
import contextlib, io, json, runpy, sys
said = {}
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_module(f"tests.benchmarks.{name}", run_name="__main__")
        except SystemExit as end:
            said[name] = [end.code, out.getvalue()]
print(json.dumps(said))
"""


def test_the_folder_lists_every_benchmark_with_its_command():
    listed = ast.get_docstring(ast.parse((FOLDER / "__init__.py").read_text())) or ""
    assert sorted(re.findall(r"python -m tests\.benchmarks\.(\w+)", listed)) == NAMES


def test_every_benchmark_says_what_it_measures():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HELP, *NAMES],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert sorted(said) == NAMES
    for name in NAMES:
        code, text = said[name]
        assert code == 0, name
        docstring = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or ""
        assert docstring.split("\n")[0][:60] in " ".join(text.split()), name

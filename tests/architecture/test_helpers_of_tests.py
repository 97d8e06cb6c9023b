"""What tests share lies in tests/support: no test imports another test module or a benchmark. The suite of `exfm bench`
is one program: its files import each other."""

from __future__ import annotations

import re

import pytest

from tests.support.tracked_files import tracked

# Anywhere in a line that begins with it, so that scripts in strings count too.
IMPORT = re.compile(r"^\s*(?:from\s+(tests[\w.]*)\s+import\s+\(?\s*(\w+)|import\s+(tests[\w.]*))", re.MULTILINE)


def wrongly_shared(files: dict[str, str]) -> list[str]:
    """Imports of a test module, and of a benchmark, except a script's of the file that it stands in."""
    found = []
    for path, text in files.items():
        if not (path.startswith("tests/") and path.endswith(".py")):
            continue
        own = path.removesuffix(".py").replace("/", ".")
        for module, name, plain in IMPORT.findall(text):
            place = (module or plain).split(".") + ([name] if name else [])
            of_a_test = module != own and any(part.startswith("test_") for part in place)
            of_a_benchmark = place[:2] == ["tests", "benchmarks"] and module != own
            if path.startswith("tests/benchmarks/") and place[2:3] == ["suite"]:
                of_a_benchmark = False
            if of_a_test or of_a_benchmark:
                found.append(f"{path} imports {'.'.join(place)}: what is shared belongs in tests/support")
    return found


def test_no_test_imports_another_test_or_a_benchmark():
    assert wrongly_shared(tracked()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from tests.unit.exfm.models.test_student import stream",
        "from tests.unit.exfm.models import test_student",
        "    from tests.benchmarks.student_cost import (\n    students,\n)",
        "from tests.benchmarks import student_cost",
        "import tests.benchmarks.student_cost",
        "from tests.benchmarks.suite.shape import table",
        'SCRIPT = """\nfrom tests.contracts.test_lake import lake\n"""',
    ],
)
def test_a_planted_import_is_found(line):
    assert len(wrongly_shared({"tests/unit/test_x.py": line})) == 1


def test_helpers_and_a_benchmarks_own_script_are_let_through():
    files = {
        "tests/unit/test_x.py": "from tests.support.streams.lake_rows import rows",
        "tests/benchmarks/a.py": 'S = """\nfrom tests.benchmarks.a import measured\n"""',
        "tests/benchmarks/suite/a.py": "from tests.benchmarks.suite.b import measured",
        "exfm/features/batch.py": "from tests.benchmarks.a import measured",
    }
    assert wrongly_shared(files) == []

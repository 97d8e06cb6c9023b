"""The console script where only the models were installed."""

import os
import subprocess
import sys

import pytest

from tests.support.places import ROOT


def test_without_the_extra_it_says_what_to_install():
    program = "import sys; sys.modules['typer'] = None; from pipelines.cli.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "exfm: typer is not installed; install the packages of requirements/cpu.txt (of a release: cpu.txt; cuda.txt "
        "with an NVIDIA driver)\n"
    )


@pytest.mark.parametrize(
    ("wanted", "code"), [(["init", "log.csv", "-o", "log.yaml"], 0), (["init", "none.csv", "-o", "none.yaml"], 2)]
)
def test_a_command_that_used_duckdb_ends_with_its_own_words_and_code(tmp_path, wanted, code):
    rows = (f"{1_700_000_000 + i},{i % 30},{i % 7},{int(i % 5 == 0)}" for i in range(1000))
    (tmp_path / "log.csv").write_text("\n".join(["ts,user_id,ad_id,click", *rows]))
    done = subprocess.run(
        [sys.executable, "-c", "from pipelines.cli.entry import main; main()", *wanted],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, "leaked" in done.stderr) == (code, False)
    assert "1,000 rows" in done.stdout if code == 0 else "none.csv" in done.stderr


def test_what_was_registered_runs_and_what_was_printed_arrives_before_the_process_ends():
    program = (
        "import sys, typer\n"
        "from pipelines.cli import console, entry\n"
        "def run():\n"
        "    import atexit\n"
        "    atexit.register(print, 'registered')\n"
        "    print('printed')\n"
        "    sys.exit(3)\n"
        "console.main = run\n"
        "entry.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "printed\nregistered\n", "")


def test_a_user_id_without_an_entry_in_passwd_has_a_name_and_a_home():
    program = (
        "import getpass, os, pwd, sys\n"
        "from pathlib import Path\n"
        "from pipelines.cli import console, entry\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "console.main = lambda: print(getpass.getuser(), Path.home())\n"
        "entry.main()\n"
    )
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=bare, capture_output=True, text=True, timeout=60, check=False
    )
    name, home = done.stdout.split()
    assert name == f"uid-{os.getuid()}"
    assert home.endswith(f"exfm-uid-{os.getuid()}")

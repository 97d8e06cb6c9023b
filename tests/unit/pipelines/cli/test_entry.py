"""The console script where only the models were installed."""

import subprocess
import sys

from tests.support.places import ROOT


def test_without_the_extra_it_says_what_to_install():
    program = "import sys; sys.modules['typer'] = None; from pipelines.cli.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "exfm: typer is not installed; the command line needs: pip install 'exfm[pipelines]'\n"

"""`import exfm`: what it offers, how it says so, and that it costs nothing until it is used."""

import re
import subprocess
import sys

import pytest

import exfm


@pytest.mark.parametrize("name", exfm.__all__)
def test_every_name_is_there_and_in_the_docstring(name):
    assert getattr(exfm, name) is not None
    assert re.search(rf"\b{name}\b", exfm.__doc__)


def test_importing_it_loads_none_of_its_modules():
    program = "import exfm, sys; print([name for name in sys.modules if name.startswith('exfm.') or name == 'torch'])"
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_losses_come_without_torchrec_or_arrow():
    blocked = "import sys\nfor name in ('torchrec', 'fbgemm_gpu', 'pyarrow'): sys.modules[name] = None\n"
    use = "import exfm\nprint(exfm.Arm(kind='auxiliary_head').kind, exfm.objective.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", blocked + use], check=True, timeout=120, capture_output=True, text=True
    )
    assert done.stdout.split() == ["auxiliary_head", "objective"]

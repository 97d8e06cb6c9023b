"""The wheel outside a checkout: built from this source, installed into its own environment, used in an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import exfm
from tests.support.places import ROOT

pytestmark = pytest.mark.check

SOURCE = ("exfm", "streaming", "pipelines", "configs", "requirements", "pyproject.toml", "README.md", "LICENSE")
WITHOUT_CHECKOUT = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), cwd=cwd, env=WITHOUT_CHECKOUT, capture_output=True, text=True, timeout=240, check=False
    )


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory):
    """`bin` of an environment with the wheel; its dependencies are those of the running one. Nothing is downloaded."""
    root = tmp_path_factory.mktemp("wheel")
    copy = root / "source"  # the build leaves files behind
    copy.mkdir()
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy)
    pip = (sys.executable, "-m", "pip")
    build = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", root)
    succeeded(command(*pip, *build, copy, cwd=root))
    (wheel,) = root.glob("*.whl")
    shutil.rmtree(copy)
    venv.create(root / "environment", with_pip=False)
    python = root / "environment" / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    succeeded(command(*pip, "--python", python, *install, wheel, cwd=root))
    site = Path(sysconfig.get_path("purelib", vars={"base": str(python.parents[1])}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_it_is_the_installed_package_that_answers(bin_folder, tmp_path):
    where = "import exfm, streaming, pipelines; print(exfm.__version__, exfm.__file__, pipelines.__file__)"
    version, *files = succeeded(command(bin_folder / "python", "-c", where, cwd=tmp_path)).split()
    assert version == exfm.__version__
    assert all(Path(file).is_relative_to(bin_folder.parent) for file in files)
    assert succeeded(command(bin_folder / "exfm", "--version", cwd=tmp_path)) == f"exfm {exfm.__version__}\n"


def test_a_stream_is_generated_in_an_empty_folder(bin_folder, tmp_path):
    succeeded(command(bin_folder / "exfm", "generate", "out", "--impressions", "2000", cwd=tmp_path))
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"impressions.parquet", "feedback.parquet"}


def test_configs_are_found_by_path_and_by_name_and_the_callers_own_goes_first(bin_folder, tmp_path):
    program = """
from pipelines.core.config.settings import load
from pipelines.lab.replay import load as replay
from pipelines.data.doctor import requirements
from streaming.errors import BadInput
for name in ("configs/demo.yaml", "demo", "jd", "movielens.yaml"): print(load(name).name)
for name in ("configs/sweeps/quick.yaml", "sweeps/demo"): print(replay.load(name)[1].name)
print(requirements.read("cuda")["torch"])
for name in ("demmo", "configs/jd.yaml"):
    try: load(name)
    except BadInput as error: print(error)
"""
    mine = tmp_path / "configs" / "jd.yaml"
    mine.parent.mkdir()
    mine.write_text("nmae: mine\n")
    *names, torch, absent, first, _ = succeeded(
        command(bin_folder / "python", "-c", program, cwd=tmp_path)
    ).splitlines()[:10]
    assert names == ["demo", "demo", "jd", "movielens", "demo", "demo"]
    assert torch.startswith("2.")
    assert "no config at demmo" in absent
    assert "choices, demo, demo_privileged, demo_sequences, jd, movielens, sweeps/choices, sweeps/demo" in absent
    assert first.startswith("configs/jd.yaml is not a valid config")


def test_type_checkers_see_its_types(bin_folder, tmp_path):
    (tmp_path / "mine.py").write_text("import exfm\nimport streaming.schema\nimport pipelines.core.run_dir\n")
    check = (
        sys.executable,
        "-m",
        "mypy",
        "--follow-imports=skip",
        "--python-executable",
        bin_folder / "python",
        "mine.py",
    )
    succeeded(command(*check, cwd=tmp_path))
    (typed,) = bin_folder.parent.rglob("exfm/py.typed")
    typed.unlink()
    try:
        assert "missing library stubs or py.typed marker" in command(*check, cwd=tmp_path).stdout
    finally:
        typed.touch()

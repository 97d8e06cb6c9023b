"""The page on what may be deleted, tried: a run without those parts ends as it did, or says what it misses."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from streaming.errors import BadInput
from streaming.store.files import read_json
from tests.support.pipelines.small_runs import everything, to_the_end
from tests.support.places import ROOT

pytestmark = pytest.mark.broker
PAGE = (ROOT / "docs/operations/what-may-i-delete.md").read_text()
OFTEN_THERE = {"ne.png", "source", "quarantine", "mlflow.db", "mlartifacts", "broker"}
NOT_IN_A_SMALL_RUN = OFTEN_THERE | {"silences.json", "notices.json"}


def parts(section: str) -> set[str]:
    """The paths in the first column of a section's table; those of a student are the small run's `feed`."""
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    paths = {path.rstrip("/") for cell in cells for path in re.findall(r"`([^`]+)`", cell)}
    return {path.replace("student-NAME", "student-feed") for path in paths} - NOT_IN_A_SMALL_RUN


def delete(root: Path, paths: set[str]) -> None:
    for path in (root / name for name in paths):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def figures(root: Path) -> tuple[object, object]:
    summary = read_json(root / "summary.json")
    return summary["students"], summary["counts"]


@pytest.mark.check
def test_a_run_without_what_may_go_ends_as_it_did(broker, tmp_path):
    config, root = everything(broker.bootstrap_servers, source__impressions=3000), tmp_path / "run"
    to_the_end(config, root)
    students, counts = figures(root)

    nothing_lost = parts("Nothing is lost")
    assert {"logs", "snapshots", "checkpoints/teacher", "lake/readers"} <= nothing_lost
    delete(root, nothing_lost)
    to_the_end(config, root)
    assert figures(root) == (students, counts)
    assert [path for path in nothing_lost if not (root / path).exists()] == []

    lost = parts("Something is lost, and the run goes on")
    assert {"predictions", "truth", "lake/dead_letters", "registry"} <= lost
    delete(root, lost | {"summary.json"})
    to_the_end(config, root)
    assert figures(root)[0] != students
    assert figures(root)[1] == counts

    delete(root, {"checkpoints/augmentation", "summary.json"})
    with pytest.raises((AssertionError, BadInput), match="Put the folder back from a copy"):
        to_the_end(config, root)

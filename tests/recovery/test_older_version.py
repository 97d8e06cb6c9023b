"""From the first tag on compatibility counts: a run that the newest tagged version began is resumed by this one.

Its code is taken out of git, begins a run in a process of its own, and is killed; this code goes on. EXFM_OLDER names
another commit than the newest tag `v*` that is an ancestor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

from pipelines.core.run_dir.paths import RunDir
from streaming.store.files import read_json
from tests.support.pipelines.commands import Command, worker_pid
from tests.support.pipelines.raw_configs import SMALL
from tests.support.places import ROOT

IMPRESSIONS = 6000
CONFIG = {
    **SMALL,
    "source": {**SMALL["source"], "impressions": IMPRESSIONS, "chunk_rows": 500},
    "tracking": {"enabled": False},
    "losses": {"fail_share": 1},  # windows are short, and most feedback comes late: that is not the subject
}
"""What every version since the first has taken."""


def git(*words: str | Path) -> str | None:
    """Output of git here; None where it fails."""
    done = subprocess.run(["git", *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def older() -> str:
    """The commit that begins the run. Skips where git knows none."""
    if named := os.environ.get("EXFM_OLDER"):
        return named
    if (newest := git("describe", "--tags", "--match", "v[0-9]*", "--abbrev=0", "HEAD")) is None:
        pytest.skip("no version is tagged, or this clone has no history (git fetch --tags --unshallow)")
    return newest


@pytest.fixture
def code_of_it(tmp_path):
    folder, archive = tmp_path / "older", tmp_path / "older.tar"
    folder.mkdir()
    if git("archive", "--output", archive, older()) is None:
        pytest.skip(f"git has no files of {older()} here")
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder


@pytest.mark.check
@pytest.mark.timeout(900)
def test_a_run_that_the_tagged_version_began_is_resumed_by_this_one(code_of_it, tmp_path, monkeypatch):
    config, run = tmp_path / "small.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(CONFIG))
    monkeypatch.setenv("PYTHONPATH", str(code_of_it))
    monkeypatch.chdir(code_of_it)
    where = subprocess.run(
        [sys.executable, "-c", "import pipelines; print(pipelines.__file__)"], stdout=subprocess.PIPE
    )
    assert where.stdout.decode().startswith(str(code_of_it))  # another checkout's code would prove nothing
    first = Command(config, run, tmp_path / "first.log", options=["--local"])
    try:
        first.until(worker_pid("student-feed", 300))
        first.kill_everything()
    finally:
        first.clean_up()
    assert (read_json(run / "status.json") or {})["state"] == "running"
    before = set(identities(run))
    assert 0 < len(before) < IMPRESSIONS

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)
    second = Command(config, run, tmp_path / "second.log", options=["--local"])
    try:
        assert second.wait() == 0, second.log.read_text()[-3000:]
    finally:
        second.clean_up()
    rows, summary = Counter(identities(run)), read_json(run / "summary.json")
    assert summary is not None
    counts = summary["counts"]
    assert rows.total() == counts["lake_rows"] == sum(counts["settled"].values())
    assert before <= set(rows)
    lost = counts["dead_letters"] + counts["duplicates_dropped"]
    for group, settled in counts["settled"].items():
        rest = counts["not_applicable"][group] + counts["pending"][group] + lost
        assert counts["impressions_read"] == settled + rest, group
    assert counts["impressions_read"] >= IMPRESSIONS
    assert all(summary["workers"][f"student-{name}"]["trained_rows"] > 2500 for name in ("feed", "shop"))


def identities(run: Path) -> list[tuple[int, str]]:
    """Impression and settlement group of every row of the lake: each once."""
    table = DeltaTable(str(RunDir(run).lake)).to_pyarrow_table(columns=["impression_id", "settlement"])
    found = [(row["impression_id"], row["settlement"]) for row in table.to_pylist()]
    assert len(found) == len(set(found))
    return found

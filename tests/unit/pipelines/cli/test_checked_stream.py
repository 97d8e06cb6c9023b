"""`exfm stream` looks at the config and its data first: a mistake costs seconds, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.support.pipelines.commands import COMMAND
from tests.support.pipelines.raw_configs import small
from tests.support.waiting import PATIENCE_S

RECORDED = {
    "kind": "recorded",
    "path": "clicks.parquet",
    "vertical_value": "feed",
    "event_time": "at",
    "labels": {"ctr": {"column": "clicked"}},
}


def test_a_mistake_stops_a_run_before_anything_is_started_or_made(tmp_path):
    table = pa.table(
        {"at": [1, 2, 3], "user_id": [1, 2, 3], "ad_id": [1, 2, 3], "bid": [0.1, 0.2, 0.3], "clicked": [0, 1, 0]}
    )
    pq.write_table(table, tmp_path / "clicks.parquet")
    raw = small(source=RECORDED, students=[{"name": "fed"}])
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw))
    command = [sys.executable, "-c", COMMAND, "stream", "run.yaml", "--until-end"]
    started, processes = set(), set()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None:
            try:
                processes |= set(children := psutil.Process(run.pid).children(recursive=True))
                started |= {child.name() for child in children}
                run.wait(0.1)
            except (psutil.Error, subprocess.TimeoutExpired):
                continue
        assert run.stdout is not None
        assert run.stderr is not None
        out, error = run.stdout.read(), run.stderr.read()
    assert (run.returncode, out) == (2, "")
    assert "no row has the vertical `fed`: it would learn nothing" in " ".join(error.split())
    assert "Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks.parquet", "run.yaml"]
    assert not [name for name in started if "java" in name or "ray" in name]
    # The server that workers would have been forked from is gone, too.
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []

"""The page that debugs one wrong label, run from its first line to its last on a finished run."""

from __future__ import annotations

import duckdb
import pytest
from deltalake import DeltaTable

from tests.support.documents import fenced
from tests.support.pipelines.small_runs import SNAPSHOTS, finished_once, small
from tests.support.places import ROOT

pytestmark = pytest.mark.broker
PAGE = (ROOT / "docs/guides/debug-one-wrong-label.md").read_text()


def a_late_click(root) -> int:
    """An impression with a late click, of a vertical that has a student of its name."""
    late = DeltaTable(root / "lake" / "late_feedback").to_pyarrow_dataset()
    lake = DeltaTable(root / "lake" / "augmented_examples").to_pyarrow_dataset()
    students = [path.name for path in (root / "predictions").iterdir()]
    found = duckdb.sql(
        "select impression_id from late join lake using (impression_id) "
        f"where task = 'ctr' and settlement = 'ctr' and vertical in {tuple(students)} "
        "and impression_id in (select impression_id from late group by impression_id having count(*) = 1)"
    ).fetchall()
    assert len(late.schema) < len(lake.schema)
    return found[0][0]


def test_every_command_of_the_page_runs(broker, tmp_path, capsys):
    finished_once(small, broker.bootstrap_servers, tmp_path / "run", **SNAPSHOTS)
    run, impression = tmp_path / "run", a_late_click(tmp_path / "run")
    session = "\n".join(fenced(PAGE, "python"))
    for line, here in (
        ('run = Path("runs/demo")', f"run = Path({str(run)!r})"),
        ('servers = "127.0.0.1:24089"', f"servers = {broker.bootstrap_servers!r}"),
        ("""rows("late_feedback", "task = 'ctr'")[1]["impression_id"]""", str(impression)),
    ):
        assert line in session
        session = session.replace(line, here)
    names: dict = {}
    exec(compile(session, "the page", "exec"), names)
    assert names["row"]["label_ctr"] == 0
    assert [click["reason"] for click in names["late"]] == ["after_settlement"]
    assert names["one"] == {name: names["click"][name] for name in ("impression_id", "event_time_ms", "task")}
    of_zero, of_one = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[-2:])
    assert of_zero > 0 > of_one
    assert of_zero - of_one == pytest.approx(1)

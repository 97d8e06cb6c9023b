"""An alarm that is over: what the coordinator's log still has of it."""

from __future__ import annotations

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.why.alarm import why_alarm
from tests.support.pipelines.shown_runs import shown_run

LOG = """\
12:00:00 alarm raised: calibration drift: student-feed: 1.60 times as many positives (docs/operations/alarms.md)
12:01:00 alarm raised: quarantine: 30 of 1,000 rows were left out (docs/operations/alarms.md)
12:02:00 alarm over: calibration drift (student-feed ctr)
12:03:00 alarm over: quarantine (student-feed)
"""


@pytest.mark.parametrize(("name", "at"), [("calibration drift", (0, 2)), ("quarantine", (1, 3)), ("clock off", ())])
def test_the_last_that_is_known_of_an_alarm_is_its_beginning_and_its_end(tmp_path, name, at):
    shown_run(tmp_path, days=0.1, parts=1, rows=10)
    run_dir = RunDir(tmp_path)
    run_dir.logs.mkdir(exist_ok=True)
    (run_dir.logs / "coordinator.log").write_text(LOG)
    [answer] = why_alarm(run_dir, name)
    assert answer.last_seen == [LOG.splitlines()[line] for line in at]

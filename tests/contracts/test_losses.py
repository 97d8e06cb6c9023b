"""What a run lost is said in words, and a run that lost nearly all of it fails: real runs in this process."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipelines.cli.console import main
from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.live.status.stored import read_status
from pipelines.report.results.stored import read_summary
from pipelines.report.screens.report import print_report
from streaming.store.files import read_json
from tests.support.pipelines.small_runs import small, stop_after
from tests.support.pipelines.topics import by_hand, ipc, make_inputs, send

pytestmark = pytest.mark.broker


def fed(config: Config, impressions: list[dict[str, Any]], feedback: list[dict[str, Any]]) -> Config:
    """The config, with these rows on its topics."""
    make_inputs(config)
    ads, events = config.kafka.impressions.topic, config.kafka.feedback.topic
    messages = []
    for topic, rows, schema in ((ads, impressions, config.rows.impression), (events, feedback, config.rows.feedback)):
        for partition in (0, 1):
            mine = [row for row in rows if row["impression_id"] % 2 == partition]
            messages.append((topic, partition, ipc(mine, schema)))
    send(str(config.kafka.bootstrap_servers), messages)
    return config


def stream(config: Config, root: Path, capsys: Any, *options: str) -> tuple[int, str]:
    """Exit code of `exfm stream`, and all that it printed."""
    root.parent.mkdir(parents=True, exist_ok=True)
    path = root.with_suffix(".yaml")
    path.write_text(dump(config))
    with pytest.raises(SystemExit) as ended:
        main(["stream", str(path), "--run-dir", str(root), "--until-end", "--local", *options])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), " ".join((printed.out + printed.err).split())


def begun(config: Config, root: Path) -> RunStatus:
    """Run to its end without the check before it, as where the rows that are lost come later than those checked."""
    return run(config, RunDir(root), local=True, until_end=True)[0]


CTR = {"rows__tasks": [{"name": "ctr", "window_s": 60}], "students": [{"name": "feed", "batch_rows": 256}]}


def test_clicks_that_come_after_their_window_fail_the_run_with_the_window_that_holds_them(broker, tmp_path, capsys):
    config = small(broker.bootstrap_servers, source=None, features__history=[], **CTR)
    shown, _ = by_hand(config, 3000, duplicate_rate=0.0)
    clicked = shown[:2000:20]
    delays_s = [30 if place < 10 else 3000 for place in range(len(clicked))]
    clicks = [
        {"impression_id": row["impression_id"], "event_time_ms": row["event_time_ms"] + 1000 * delay, "task": "ctr"}
        for row, delay in zip(clicked, delays_s, strict=True)
    ]
    fed(config, shown, sorted(clicks, key=lambda click: click["event_time_ms"]))
    assert begun(config, tmp_path / "run").state is RunState.FAILED
    stored = read_status(tmp_path / "run").as_json()
    assert (stored["state"], stored["losses"]["severity"]) == ("failed", "fail")

    code, printed = stream(config, tmp_path / "run", capsys)  # it is finished, and that is no success
    assert code == 1
    assert "feedback 100 read = 10 joined + 0 late + 90 unmatched + 0 duplicate + 0 dead letters" in printed
    assert (
        "the run failed: 90 of 100 rows of feedback (90.0 %) set no label: 90 of 100 `ctr` rows came later than the "
        "window of 60 s: 95 % come within 3,000 s; set rows.tasks.ctr.window_s=3000"
    ) in printed
    assert "mend that and start over with --fresh" in printed

    code, printed = stream(config, tmp_path / "run", capsys, "--set", "losses.fail_share=1")
    assert code == 0


def test_negative_ids_leave_an_empty_lake_and_the_run_fails_with_an_example(broker, tmp_path, capsys):
    config = small(broker.bootstrap_servers, source=None, features__history=[], **CTR)
    shown, _ = by_hand(config, 200, duplicate_rate=0.0)
    fed(config, [row | {"user_id": -7} for row in shown], [])
    assert begun(config, tmp_path / "run").state is RunState.FAILED
    code, printed = stream(config, tmp_path / "run", capsys)
    assert code == 1
    assert (
        "200 of 200 impressions (100 %) are dead letters, most for `out_of_range:user_id` (200), e.g. small-imp"
        in printed
    )
    assert "`user_id` is -7; allowed: at least 0. Widen minimum and maximum of the column under rows.columns" in printed


def test_a_student_of_a_vertical_that_never_comes_has_a_line_and_a_warning_with_those_that_do(broker, tmp_path, capsys):
    students = [{"name": "feed", "batch_rows": 256}, {"name": "sohp", "tasks": ["ctr"], "twin": True}]
    config = small(broker.bootstrap_servers, source__impressions=3000, students=students, features__history=[])
    code, printed = stream(config, tmp_path / "run", capsys)
    assert code == 0
    counts = read_json(tmp_path / "run" / "summary.json")["counts"]
    by_vertical = ", ".join(f"{v} {n:,}" for v, n in sorted(counts["verticals"].items(), key=lambda i: -i[1]))
    assert f"student `sohp` has no row: none is of `sohp`; rows by vertical: {by_vertical}" in printed
    report = io.StringIO()
    print_report(Console(file=report, width=120), read_summary(RunDir(tmp_path / "run")), whole=False)
    assert "sohp: saw no row" in report.getvalue()
    assert re.search(r"^sohp +ctr +0 .* saw no row", report.getvalue(), re.MULTILINE)
    assert sum(counts["verticals"].values()) == counts["lake_rows"]
    assert "has no row" in read_status(tmp_path / "run").as_json()["reason"]


def test_wall_time_and_counters_are_those_of_all_starts(broker, tmp_path):
    config = small(broker.bootstrap_servers, source__impressions=6000)
    root = tmp_path / "run"
    status, _ = run(config, RunDir(root), local=True, watch=stop_after(1500))
    assert status.state is RunState.STOPPED
    first = read_status(root).as_json()
    status, summary = run(config, RunDir(root), local=True)
    assert status.state is RunState.DONE, status.reason
    assert summary is not None
    told, last = summary.run, read_status(root).as_json()
    assert (told.legs, told.started_at) == (2, first["started_at"])
    assert last["wall_s"] == pytest.approx(first["wall_s"] + last["leg_wall_s"], abs=0.01)
    assert told.wall_s > first["wall_s"]
    for name, worker in last["workers"].items():
        assert worker["rows"] >= first["workers"][name]["rows"]
        assert worker["busy_s"] >= first["workers"][name]["busy_s"]
        assert not worker["lag_rows"], f"{name} has finished and is shown as lagging"
    assert last["fraction"] == 1.0
    workers, counts = summary.workers, summary.counts
    assert workers["teacher"].rows == counts.lake_rows
    assert workers["augmentation"].rows == counts.impressions_read + counts.feedback_read

"""What people see of a run that lives: the live screen and `exfm status`, on narrow and wide terminals."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState, WorkerState
from pipelines.live.status.losses import Losses, LossSeverity
from pipelines.live.status.status import RunStatus, StatusAlarm, WorkerStatus
from pipelines.live.workers.report import Report
from pipelines.report.screens.screen import Screen, duration, ne_text, overall, worker_table
from pipelines.report.screens.stored import show_status

WIDTHS = (80, 180)


def rendered(show, width):
    console = Console(width=width, file=io.StringIO())
    show(console)
    return console.file.getvalue()


def row(text, *starts):
    """The one line that begins with these words."""
    pattern = r"\s+".join(map(re.escape, starts))
    return next(line for line in text.splitlines() if re.match(pattern, line))


# --- the live screen ------------------------------------------------------------------------------------------------


def running(state=RunState.RUNNING, **changes):
    status = RunStatus("demo", state)
    for name, kind in [
        ("ingest", "ingest"), ("augmentation", "augmentation"), ("teacher", "teacher"), ("student-feed", "student")
    ]:  # fmt: skip
        worker = WorkerStatus(name, Kind(kind), WorkerState.RUNNING, recent_rows_per_s=12_345.6)
        worker.report = Report(
            name, kind, pid=4242, rows=1_234_567, rss_bytes=777 << 20, lag_rows=65_432, lake_seq=599_999,
            ne={"ctr": 0.9123, "cvr": 0.8765}, teacher_version=17, logit_age_s=75.0,
            freshness={"behind_rows": {"p95": 4096.0}}, progress=(300_000, 600_000),
        )  # fmt: skip
        status.workers[name] = worker
    for name, value in changes.items():
        setattr(status, name, value)
    return status


def table_of(status, width):
    workers = {name: worker.as_json() for name, worker in status.workers.items()}
    return rendered(lambda c: c.print(worker_table(workers, c.width)), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_worker_has_one_line_with_its_numbers(width):
    text = table_of(running(), width)
    line = row(text, "student-feed")
    for word in ("running", "1,234,567", "12,346", "65,432", "ctr 0.9123 cvr 0.8765"):
        assert word in line
    assert len(text.splitlines()) == 5
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text


def test_a_wide_screen_says_more():
    line = row(table_of(running(), 180), "student-feed")
    assert line.split()[-7:] == ["v17", "1m15s", "≤", "4,096", "rows", "4242", "777"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_death_is_told_below_the_table_and_restarts_beside_the_state(width):
    status = running()
    teacher = status.workers["teacher"]
    teacher.state, teacher.restarts, teacher.reason = WorkerState.RESTARTING, 12, "killed by signal 9 " + "x" * 300
    text = table_of(status, width)
    assert "restarting ×12" in row(text, "teacher")
    assert "65,432" in row(text, "student-feed")
    last = text.splitlines()[-1]
    assert last.startswith("teacher: killed by signal 9")
    assert len(last) <= width


def test_a_worker_that_has_not_reported_yet_has_dashes():
    status = running()
    status.workers["teacher"].report = None
    assert row(table_of(status, 180), "teacher").split()[2:] == ["0", "12,346", *"–––––––"]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_overall_line_tells_share_and_state_whatever_the_width(width):
    text = rendered(lambda c: c.print(overall(running(), c.width)), width)
    line = text.splitlines()[0]
    assert len(line) <= width
    for word in ("demo", "running", "50%", "ETA"):
        assert word in line
    failed = rendered(lambda c: c.print(overall(running(RunState.FAILED, reason="teacher: gone"), c.width)), width)
    assert "teacher: gone" in failed
    assert "ETA" not in failed


@pytest.mark.parametrize("width", WIDTHS)
def test_exfm_status_shows_the_same_table(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    value = running().as_json() | {"lake": {"rows": 600_000, "bytes": 5 << 20, "files": 12, "last_lake_seq": 599_999}}
    show_status(value | {"reason": "[red]odd"}, running=True)
    text = capsys.readouterr().out
    assert "demo: running, 50%" in text
    assert "[red]odd" in text
    assert "ctr 0.9123 cvr 0.8765" in row(text, "teacher")
    assert "600,000 rows in 12 files, 5.0 MB" in text


LOST = Losses(
    LossSeverity.WARN,
    lines=("feedback 942 read = 14 joined + 8 late + 920 unmatched + 0 duplicate + 0 dead letters",),
    words=("928 of 942 rows of feedback (98.5 %) set no label",),
)


def test_exfm_status_accounts_for_feedback_and_says_what_is_waited_for(capsys):
    status = running(losses=LOST, reason=LOST.words[0], stage="starting Ray")
    show_status(status.as_json() | {"legs": 3, "wall_s": 600.0}, running=True)
    text = " ".join(capsys.readouterr().out.split())
    assert "10m00s in 3 starts" in text
    assert "starting Ray" in text
    assert LOST.lines[0] in text
    assert text.count(LOST.words[0]) == 1


@pytest.mark.parametrize("width", WIDTHS)
def test_the_live_screen_accounts_for_feedback_and_says_loudly_what_is_lost(width):
    status = running(losses=LOST, reason=LOST.words[0])
    file = io.StringIO()
    with Screen(Console(width=width, file=file, force_terminal=True)) as screen:
        screen.show(status)
    words = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).split())
    assert LOST.lines[0] in words
    assert LOST.words[0] in words


# --- no terminal ----------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(capsys):
    now = [0.0]
    screen = Screen(Console(width=80, force_terminal=False), clock=lambda: now[0])

    def show(status, at):
        now[0] = at
        screen.show(status)
        return capsys.readouterr().out.splitlines()

    return show


def test_without_a_terminal_a_line_is_printed_every_few_seconds_and_at_the_end(plain):
    assert len(plain(running(), 0)) == 1
    assert plain(running(), 4.9) == []
    assert len(plain(running(), 5.1)) == 1
    assert len(plain(running(RunState.DONE), 5.2)) == 1


def test_what_is_waited_for_and_what_is_lost_stand_below_the_line(plain):
    status = running(stage="starting Ray", losses=LOST, reason=LOST.words[0])
    assert [line.strip() for line in plain(status, 0)[1:]] == ["starting Ray", LOST.words[0]]
    assert [line.strip() for line in plain(status, 6)[1:]] == [LOST.words[0]]  # a wait is said once, a loss again


def test_the_line_holds_everyones_rate_and_figure_unbroken(plain):
    (line,) = plain(running(), 0)
    assert "running 50%" in line
    assert "teacher 12,346/s NE 0.9123" in line
    assert "student-feed 12,346/s NE 0.9123" in line


def test_what_is_said_is_not_taken_for_markup(capsys):
    Screen(Console(force_terminal=False)).say("found a run in runs/[bold]x")
    assert capsys.readouterr().out == "found a run in runs/[bold]x\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0, "0s"), (59.4, "59s"), (59.9, "1m00s"), (3599.9, "1h00m"), (90_000, "25h00m")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_many_tasks_stand_two_to_a_line():
    assert ne_text(dict.fromkeys("abc", 0.5)) == "a 0.5000 b 0.5000\nc 0.5000"
    assert ne_text({"ctr": None}) == ne_text(None) == "–"


ALARMS = [
    StatusAlarm("stalled", "alarm", ("teacher",), "t", 130.0, "stalled: x"),
    StatusAlarm("nothing read", "note", (), "t", 75.0, "nothing read: y"),
]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_worker_that_is_stalled_and_a_lag_that_is_unknown_are_seen_in_the_table(width, monkeypatch, capsys):
    status = running()
    status.raise_alarms(ALARMS)
    status.workers["augmentation"].report.lag_rows = None
    status.reason = status.trouble
    text = table_of(status, width)
    assert "stalled" in row(text, "teacher")
    assert "running" not in row(text, "teacher")
    assert "unknown" in row(text, "augmentation")
    assert "65,432" in row(text, "student-feed")
    lines = rendered(lambda c: c.print(overall(status, c.width)), width).splitlines()
    assert lines[-2:] == ["stalled: x", "nothing read: y"]
    monkeypatch.setenv("COLUMNS", str(width))
    show_status(status.as_json(), running=True)
    assert "stalled: x\nnothing read: y\n" in capsys.readouterr().out
    show_status(status.as_json(), running=False)
    assert "nothing read" not in capsys.readouterr().out


def test_without_a_terminal_a_note_is_printed_once():
    status, file = running(), io.StringIO()
    status.raise_alarms(ALARMS)
    times = iter((0.0, 0.0, 10.0, 10.0, 20.0, 20.0))
    with Screen(Console(width=180, file=file), clock=lambda: next(times)) as screen:
        for _ in range(3):
            screen.show(status)
    assert file.getvalue().count("nothing read: y") == 1

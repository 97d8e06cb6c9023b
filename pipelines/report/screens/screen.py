"""One live screen: a line per worker and an overall bar. Plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipelines.live.rules.alarms import Alarm
from pipelines.live.rules.states import RunState, WorkerState
from pipelines.live.status.status import RunStatus
from pipelines.report.screens.losses import STYLES, account_text
from pipelines.report.table import Entry, TextTable, Tone, Toned
from pipelines.report.terminal import rendered
from pipelines.report.words import count

PLAIN_INTERVAL_S = 5.0
WIDE = 110
_TONES: dict[WorkerState, Tone] = {
    WorkerState.RUNNING: "good",
    WorkerState.DONE: "good",
    WorkerState.RESTARTING: "warn",
    WorkerState.FAILED: "bad",
    WorkerState.STARTING: "soft",
}


def duration(seconds: float | None) -> str:
    """
    >>> duration(75), duration(5000), duration(None)
    ('1m15s', '1h23m', '–')
    """
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def ne_text(ne: dict[str, float | None] | None, per_line: int = 2) -> str:
    """
    >>> ne_text({"ctr": 0.91, "cvr": None, "like": 0.87})
    'ctr 0.9100 like 0.8700'
    """
    figures = [f"{task} {value:.4f}" for task, value in (ne or {}).items() if value is not None]
    lines = [" ".join(figures[at : at + per_line]) for at in range(0, len(figures), per_line)]
    return "\n".join(lines) or "–"


def eta_s(status: RunStatus) -> float | None:
    fraction = status.fraction
    if not fraction or status.state in (RunState.DONE, RunState.FAILED, RunState.STOPPED):
        return None
    return status.wall_s * (1 - fraction) / fraction


def worker_table(workers: dict[str, dict[str, Any]], width: int) -> Group:
    """One line per worker, from its entry in status.json; below `WIDE` columns the less urgent figures are left out."""
    wide = width >= WIDE
    head = ["worker", "state", "rows", "rows/s", "lag rows", "NE as learned"]
    head += ["teacher", "logit age", "teacher behind", "pid", "MB"] if wide else []
    rows, notes = [], []
    for name, worker in workers.items():
        state, alarms = worker["state"], worker.get("alarms") or []
        shown = Alarm.STALLED if Alarm.STALLED in alarms else state
        restarts = f" ×{worker['restarts']}" if worker["restarts"] else ""
        lag = count(worker["lag_rows"]) if worker.get("lag_known", True) else "unknown"
        row: list[Entry] = [
            name,
            Toned(shown + restarts, "bad" if shown is Alarm.STALLED else _TONES[WorkerState(state)]),
            count(worker["rows"]),
            count(worker["rows_per_s"]),
            lag,
            ne_text(worker["ne"]),
        ]
        if wide:
            version, rss = worker["teacher_version"], worker["rss_bytes"]
            row += [
                None if version is None else f"v{version}",
                duration(worker["logit_age_s"]),
                _behind(worker.get("freshness")),
                _pids(worker),
                count(None if rss is None else rss / 2**20),
            ]
        rows.append(row)
        if note := worker["reason"] or worker["note"]:
            notes.append(Text(f"{name}: {note}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(rendered(TextTable("", head, rows, names=2)), *notes)


def _behind(freshness: dict[str, Any] | None) -> str:
    """95 % of the rows at most: of augmentation the time from learned to a logit, of a student rows of the lake.

    >>> _behind({"learned_to_logit_s": {"p95": 1.4}}), _behind({"behind_rows": {"p95": 4096.0}}), _behind(None)
    ('≤ 1.4 s', '≤ 4,096 rows', '–')
    """
    freshness = freshness or {}
    seconds, rows = (freshness.get(name, {}).get("p95") for name in ("learned_to_logit_s", "behind_rows"))
    if seconds is not None:
        return f"≤ {seconds:.1f} s" if seconds < 10 else f"≤ {duration(seconds)}"
    return "–" if rows is None else f"≤ {count(rows)} rows"


def _pids(worker: dict[str, Any]) -> str:
    """The process id; with several ranks, that of rank 0 and how many more there are.

    >>> _pids({"pid": 71, "ranks": [{"rank": 0}, {"rank": 1}]}), _pids({"pid": 71}), _pids({"pid": None})
    ('71 +1', '71', '–')
    """
    more = len(worker.get("ranks") or [0]) - 1
    return "–" if worker["pid"] is None else f"{worker['pid']}{f' +{more}' if more else ''}"


def overall(status: RunStatus, width: int) -> Group:
    fraction = status.fraction
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=fraction or 0.0, width=max(8, min(40, width - 56)))
    share = f"{fraction:.0%}" if fraction is not None else f"{status.lake.rows:,} rows"
    eta = eta_s(status)
    rest = f"ETA {duration(eta)}" if eta is not None else ""
    head.add_row(Text(status.name, style="bold"), str(status.state), bar, share, duration(status.wall_s), rest)
    reason = [Text(status.reason, style=STYLES[status.losses.severity] or "yellow")] if status.reason else []
    waits = [Text(status.waits_for, style="dim")] if status.waits_for else []
    notes = [Text(words, style="dim") for words in status.notes]
    if status.follows is not None:
        notes.append(Text(follows_text(status.follows), style="dim"))
    return Group(head, *waits, *reason, *notes)


def follows_text(follows: dict[str, Any]) -> str:
    """Line about the run whose lake a run follows.

    >>> follows_text({"run": "runs/ads", "state": "running", "ended": False})
    'follows the lake of runs/ads, which is running'
    """
    return f"follows the lake of {follows['run']}, which is {follows['state']}"


class Screen:
    """Shows a RunStatus whenever `show` is called; a context manager."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(file=sys.stderr)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._clock = clock
        self._printed, self._printed_end = -PLAIN_INTERVAL_S, False
        self._waited_for: str | None = None
        self._noted: set[tuple[str, str]] = set()

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def show(self, status: RunStatus) -> None:
        if self._live:
            workers = {name: worker.as_json() for name, worker in status.workers.items()}
            width = self._console.width
            account = account_text(status.losses.lines)  # the loud words are the status's reason
            self._live.update(Group(overall(status, width), worker_table(workers, width), account), refresh=True)
            return
        ended = status.state in (RunState.DONE, RunState.FAILED, RunState.STOPPED)
        if self._printed_end or (self._clock() - self._printed < PLAIN_INTERVAL_S and not ended):
            return
        self._printed, self._printed_end = self._clock(), ended
        share = f"{status.fraction:.0%}" if status.fraction is not None else f"{status.lake.rows:,} rows"
        parts = [f"{duration(status.wall_s):>6} {status.state} {share}"]
        if (eta := eta_s(status)) is not None:
            parts[0] += f" ETA {duration(eta)}"
        for worker in status.workers.values():
            report = worker.report
            rate = f"{worker.recent_rows_per_s:,.0f}/s" if worker.recent_rows_per_s else str(worker.state)
            ne = next((f" NE {v:.4f}" for v in ((report.ne if report else None) or {}).values() if v), "")
            parts.append(f"{worker.name} {rate}{ne}")
        self._console.print(" | ".join(parts), highlight=False, markup=False, soft_wrap=True)
        waited_for, self._waited_for = self._waited_for, status.waits_for
        for words in (self._waited_for if self._waited_for != waited_for else None, status.reason):
            if words is not None and not ended:
                self._console.print(f"       {words}", highlight=False, markup=False, soft_wrap=True)
        noted = {(alarm.state, alarm.since): alarm.words for alarm in status.alarms}
        for key, words in noted.items():
            if words in status.notes and key not in self._noted:
                self._console.print(f"       {words}", highlight=False, markup=False, soft_wrap=True)
        self._noted = set(noted)

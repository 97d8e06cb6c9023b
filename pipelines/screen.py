"""One live screen: a line per worker, an overall bar. Plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipelines.states import RunState, WorkerState
from pipelines.status import RunStatus, WorkerStatus

PLAIN_INTERVAL_S = 5.0
_COLOURS = {
    WorkerState.RUNNING: "green",
    WorkerState.DONE: "cyan",
    WorkerState.RESTARTING: "yellow",
    WorkerState.FAILED: "red",
    WorkerState.STARTING: "dim",
}


def number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def duration(seconds: float | None) -> str:
    """
    >>> duration(75), duration(5000), duration(None)
    ('1m15s', '1h23m', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
    return f"{int(seconds) // 3600}h{int(seconds) % 3600 // 60:02d}m"


def ne_text(ne: dict[str, float | None] | None) -> str:
    return " ".join(f"{task} {value:.4f}" for task, value in (ne or {}).items() if value is not None) or "–"


def eta_s(status: RunStatus) -> float | None:
    fraction = status.fraction
    if not fraction or status.state in (RunState.DONE, RunState.FAILED, RunState.STOPPED):
        return None
    return status.wall_s * (1 - fraction) / fraction


def worker_table(workers: list[WorkerStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for title, justify in (
        ("worker", "left"),
        ("state", "left"),
        ("rows", "right"),
        ("rows/s", "right"),
        ("lag rows", "right"),
        ("NE so far", "left"),
        ("teacher", "right"),
        ("logit age", "right"),
        ("", "left"),
    ):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for worker in workers:
        report = worker.report
        state = Text(str(worker.state) + (f" ×{worker.restarts}" if worker.restarts else ""))
        state.stylize(_COLOURS[worker.state])
        version = report.teacher_version if report else None
        table.add_row(
            worker.name,
            state,
            number(report.rows if report else None),
            number(worker.recent_rows_per_s),
            number(report.lag_rows if report else None),
            ne_text(report.ne if report else None),
            "–" if version is None else f"v{version}",
            duration(report.logit_age_s if report else None),
            Text(worker.reason or (report.note if report and report.note else ""), style="dim"),
        )
    return table


def overall(status: RunStatus, width: int = 40) -> Group:
    fraction = status.fraction
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=1.0, completed=fraction or 0.0, width=width)
    share = f"{fraction:.0%}" if fraction is not None else f"{status.lake['rows']:,} rows"
    eta = eta_s(status)
    rest = f"ETA {duration(eta)}" if eta is not None else ""
    head.add_row(Text(status.name, style="bold"), str(status.state), bar, share, duration(status.wall_s), rest)
    return Group(head, Text(status.reason or "", style="yellow")) if status.reason else Group(head)


class Screen:
    """Shows a RunStatus whenever `show` is called; a context manager."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(file=sys.stderr)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._clock = clock
        self._printed = -PLAIN_INTERVAL_S

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def show(self, status: RunStatus) -> None:
        if self._live:
            self._live.update(Group(overall(status), worker_table(list(status.workers.values()))), refresh=True)
            return
        ended = status.state in (RunState.DONE, RunState.FAILED, RunState.STOPPED)
        if self._clock() - self._printed < PLAIN_INTERVAL_S and not ended:
            return
        self._printed = self._clock()
        share = f"{status.fraction:.0%}" if status.fraction is not None else f"{status.lake['rows']:,} rows"
        parts = [f"{duration(status.wall_s):>6} {status.state} {share}"]
        if (eta := eta_s(status)) is not None:
            parts[0] += f" ETA {duration(eta)}"
        for worker in status.workers.values():
            report = worker.report
            rate = number(worker.recent_rows_per_s) + "/s" if worker.recent_rows_per_s else str(worker.state)
            ne = next((f" NE {v:.4f}" for v in ((report.ne if report else None) or {}).values() if v), "")
            parts.append(f"{worker.name} {rate}{ne}")
        self._console.print(" | ".join(parts), highlight=False, soft_wrap=True)

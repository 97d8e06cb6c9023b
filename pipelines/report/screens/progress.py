"""Progress on stderr: share, rows per second, time left. A bar on a terminal, a line every half minute in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

Advance = Callable[..., None]
LINE_EVERY_S = 30.0


class _RowsColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = f"{task.speed:,.0f} rows/s" if task.speed else ""
        return Text(f"{task.completed:,.0f} of {task.total or 0:,.0f} rows  {speed}")


@contextmanager
def rows_bar(doing: str, total: int) -> Iterator[Advance]:
    """Yields a function to call with the number of rows done so far, and with their total where `total` was unknown."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _lines(doing, total)
        return
    columns = (TextColumn(doing), BarColumn(), _RowsColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda rows, of=total: progress.update(task, completed=rows, total=of)


@contextmanager
def share_bar() -> Iterator[Callable[[str, float], None]]:
    """Yields a function to call with the current activity and its share from 0 to 1. Nothing is shown before."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _share_lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(doing: str, share: float) -> None:
            if doing not in tasks:
                tasks[doing] = progress.add_task(doing, total=1.0)
            progress.update(tasks[doing], completed=share)

        yield advance


def _share_lines(clock: Callable[[], float] = time.monotonic) -> Callable[[str, float], None]:
    """Short work prints nothing.

    >>> from contextlib import redirect_stderr
    >>> now = iter([0.0, 10.0, 40.0])
    >>> advance = _share_lines(clock=lambda: next(now))
    >>> with redirect_stderr(sys.stdout):
    ...     advance("sorting", 0.1), advance("sorting", 0.4)
    sorting: 40 %
    (None, None)
    """
    last_line = clock()

    def advance(doing: str, share: float) -> None:
        nonlocal last_line
        if (now := clock()) - last_line >= LINE_EVERY_S:
            last_line = now
            print(f"{doing}: {100 * share:.0f} %", file=sys.stderr, flush=True)

    return advance


def _lines(doing: str, total: int, clock: Callable[[], float] = time.monotonic) -> Advance:
    """Short work prints nothing.

    >>> from contextlib import redirect_stderr
    >>> now = iter([0.0, 10.0, 40.0, 50.0])
    >>> advance = _lines("training", 4_000, clock=lambda: next(now))
    >>> with redirect_stderr(sys.stdout):
    ...     advance(500), advance(1_000), advance(1_500)
    training: 1,000 of 4,000 rows, 25/s, 2 min left
    (None, None, None)
    """
    began = last_line = clock()

    def advance(rows: int, of: int = total) -> None:
        nonlocal last_line
        if (now := clock()) - last_line < LINE_EVERY_S:
            return
        last_line = now
        speed = rows / (now - began)
        left = f", {(of - rows) / speed / 60:.0f} min left" if speed and of > rows else ""
        print(f"{doing}: {rows:,} of {of:,} rows, {speed:,.0f}/s{left}", file=sys.stderr, flush=True)

    return advance

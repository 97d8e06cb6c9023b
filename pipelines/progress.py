"""A progress bar over rows, on stderr: share, rows per second, time left. Nothing where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

Advance = Callable[..., None]


class _Rows(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = f"{task.speed:,.0f} rows/s" if task.speed else ""
        return Text(f"{task.completed:,.0f} of {task.total or 0:,.0f} rows  {speed}")


@contextmanager
def rows_bar(doing: str, total: int) -> Iterator[Advance]:
    """Call what it yields with the number of rows done so far, and of how many where that was not known before."""
    console = Console(file=sys.stderr)
    columns = (TextColumn(doing), BarColumn(), _Rows(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda rows, of=total: progress.update(task, completed=rows, total=of)

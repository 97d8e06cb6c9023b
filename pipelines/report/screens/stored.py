"""The status of another process's run: once, as `exfm status` shows it, and again and again, as `exfm top` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from pipelines.live.rules.states import ENDED
from pipelines.report.screens.losses import account_text
from pipelines.report.screens.screen import duration, follows_text, worker_table


def show_status(value: dict[str, Any], running: bool) -> None:
    """Print the status of a run; `value` is its status.json."""
    console = Console()
    console.print(Group(*_status_lines(value, running, console.width)))


def watch_status(read: Callable[[], tuple[dict[str, Any], bool]], every_s: float = 1.0) -> None:
    """Show the status repeatedly, every `every_s` seconds, until the run ends or Ctrl-C; `read` returns the
    arguments of `show_status`. The terminal is as it was afterwards, with the last status printed."""
    console = Console()
    value, running = read()
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            lines = _status_lines(value, running, console.width)
            live.update(Group(*lines, Text("Ctrl-C leaves this view; the run goes on", style="dim")), refresh=True)
            if not running:
                break
            time.sleep(every_s)
            value, running = read()
    show_status(value, running)


def table_text(worker: str, table: str, counts: dict[str, int]) -> str:
    """Line on an embedding table whose ids come and go.

    >>> table_text("teacher", "user_id", {"rows": 1000, "taken": 998, "admitted": 1205, "missed": 0})
    'table user_id of teacher: 998 of 1,000 rows taken; admitted 1,205'
    """
    more = ", ".join(f"{what} {count:,}" for what, count in counts.items() if what not in ("rows", "taken") and count)
    taken = f"table {table} of {worker}: {counts['taken']:,} of {counts['rows']:,} rows taken"
    return f"{taken}; {more}" if more else taken


def _status_lines(value: dict[str, Any], running: bool, width: int) -> Iterator[RenderableType]:
    state = value["state"]
    if not running and state not in ENDED:
        state = f"{state} when last seen ({value['updated_at']}); its coordinator (pid {value['pid']}) is gone"
    share = "" if value["fraction"] is None else f", {value['fraction']:.0%}"
    took = duration(value["wall_s"]) + (f" in {value['legs']} starts" if value["legs"] > 1 else "")
    yield Text.from_markup(f"[bold]{escape(value['name'])}[/bold]: {escape(state)}{share}, {took}")
    if value["reason"]:
        yield Text(value["reason"], style="yellow")
    if value["waits_for"]:
        yield Text(value["waits_for"], style="dim")
    if running:
        for alarm in value["alarms"]:
            if alarm["severity"] == "note":
                yield Text(alarm["words"], style="dim")
    yield worker_table(value["workers"], width)
    for name, worker in value["workers"].items():
        for table, counts in worker.get("tables", {}).items():
            yield Text(table_text(name, table, counts), style="dim")
    if value["losses"]:
        yield account_text(value["losses"]["lines"])
    lake, broker = value["lake"], value["broker"]
    restarts = f", restarted {broker['restarts']} times" if broker.get("restarts") else ""
    size = f"{lake['rows']:,} rows in {lake['files']} files, {lake['bytes'] / 2**20:.1f} MB"
    followed = value.get("follows")
    whose = f"broker: {broker['bootstrap_servers']}{restarts}" if followed is None else follows_text(followed)
    yield Text(f"lake: {size} · {whose}")
    if running and value.get("metrics_url"):
        yield Text(f"metrics: {value['metrics_url']}")
    if disk := value["disk"]:
        yield Text("disk, MB: " + ", ".join(f"{part} {size / 2**20:,.1f}" for part, size in disk.items() if size))

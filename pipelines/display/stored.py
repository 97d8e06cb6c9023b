"""The status of another process's run, as `exfm status` shows it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from pipelines.display.losses import losses_text
from pipelines.display.screen import duration, worker_table
from pipelines.status import ENDED


def show_status(value: dict[str, Any], running: bool) -> None:
    console = Console()
    state = value["state"]
    if not running and state not in ENDED:
        state = f"{state} when last seen ({value['updated_at']}); its coordinator (pid {value['pid']}) is gone"
    share = "" if value["fraction"] is None else f", {value['fraction']:.0%}"
    took = duration(value["wall_s"]) + (f" in {value['legs']} starts" if value.get("legs", 1) > 1 else "")
    console.print(f"[bold]{escape(value['name'])}[/bold]: {state}{share}, {took}", highlight=False)
    if value["reason"]:
        console.print(f"[yellow]{escape(value['reason'])}[/yellow]", highlight=False)
    if value.get("waits_for"):
        console.print(escape(value["waits_for"]), style="dim", highlight=False)
    if running:
        for alarm in value.get("alarms") or ():  # releases before did not write it
            if alarm["severity"] == "note":
                console.print(escape(alarm["words"]), style="dim", highlight=False)
    console.print(worker_table(value["workers"], console.width))
    if value.get("losses"):  # releases before did not write it
        console.print(losses_text(value["losses"], words=False))
    lake, broker = value["lake"], value["broker"]
    restarts = f", restarted {escape(str(broker['restarts']))} times" if broker.get("restarts") else ""
    console.print(
        f"lake: {lake['rows']:,} rows in {lake['files']} files, {lake['bytes'] / 2**20:.1f} MB · "
        f"broker: {escape(str(broker['bootstrap_servers']))}{restarts}",
        highlight=False,
    )
    if disk := value.get("disk"):  # releases before did not write it
        used = ", ".join(f"{part} {size / 2**20:,.1f}" for part, size in disk.items() if size)
        console.print(f"disk, MB: {used}", highlight=False)

"""A replay's report, small and made up, and browsers that show pages."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.lab.replay.report import About, ReplayReport
from pipelines.lab.replay.settings import Spec
from pipelines.lab.replay.verdict import Verdict
from pipelines.lab.report.text import markdown
from pipelines.report.cells import MEAN, Cell, Key, Measure, cells

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOUR_MS = 3_600_000
GOLDEN = Path("tests/fixtures/replay_report.md")
"""`report()` in Markdown."""
ODD = "<i>odd</i> & long"
FIGURES = ("ne", "ne/calibration_free", "ne/as_learned", "auc", "gauc", "calibration", "log_loss", "brier")


def interval(metric: str, value: float, reach: float = 0.2, n: int | None = None) -> list[Measure]:
    """A gain with all that belongs to one."""
    low, high = value - reach, value + reach
    ends = [Measure(f"{metric}/{of}", value, low, high) for of in ("rows", "seeds")]
    more = [Measure(f"{metric}/se", reach / 2), Measure(f"{metric}/p", 0.001), Measure(f"{metric}/seed_sd", 0.1)]
    return [Measure(metric, value, low, high, n), *more, *ends]


def arm(gain: float | None = None, rows: int = 100, positives: int = 30) -> Iterator[Measure]:
    yield from (Measure(name, 0.9, 0.898, 0.902, 100) for name in FIGURES)
    yield from (Measure(f"ne/tenth/{k}", 0.9 + k / 100) for k in range(10))
    yield from (Measure("rows/1", rows), Measure("positives/1", positives))
    yield from (Measure("cost_ratio", 1.2), Measure("seconds_per_row", 0.0002))
    yield from (Measure("serving/flops", 2000), Measure("serving/parameters", 1000))
    yield from (Measure("training_flops", 3.2e9), Measure("training_flops_with_teacher", 21.5e9))
    for k in range(3):
        yield Measure(f"bin/{k}", k / 10 + 0.04, k / 10, k / 10 + 0.1, 100)
        yield Measure(f"bin/{k}/predicted", k / 10 + 0.05, k / 10, k / 10 + 0.1)
    yield from (Measure("calibration/error", 0.01), Measure("calibration/wrong_from", 640))
    yield from (Measure("calibration/sign", 1), Measure("clipped/share", 0.0), Measure("clipped/cut", 0.0))
    kept = {"threshold": 0.3, "shown": 10.0, "share": 0.1, "clicks": 4.0, "recall": 0.4, "rate": 0.4}
    yield from (Measure(f"top/0.1/{name}", value) for name, value in kept.items())
    if gain is None:
        return
    yield from [*interval("gain", gain, n=100), *interval("transfer/teacher", 0.5)]
    yield from interval("gain/calibration_free", gain + 0.1, n=100)
    for k, value in enumerate((gain, -gain)):
        yield from interval(f"gain/window/{k}", value, n=50)
        yield from (Measure(f"gain/window/{k}/p", 1e-9), Measure(f"window/{k}/share", 0.1 + k / 2))
        yield Measure(f"window/{k}/times", (k + 0.5) * HOUR_MS, k * HOUR_MS, (k + 1) * HOUR_MS)
    yield from (Measure("gain/after/64", gain, -9.0, 9.0, 64), Measure("gain/after/128", gain, 0.1, 2 * gain, 128))
    yield from (Measure("watched/log_e", 5.0), Measure("watched/found", 1), Measure("watched/stopped_at", 128))
    yield from (Measure("watched/rows_to_stop", 9000), Measure("gain/segment/new <users>", gain, n=40))
    yield from (Measure("gain/segment/new <users>/too few/positives", 9), *interval("gain/segment/evening", -gain))
    for name, count, log_e in (("new <users>", 9, 0.0), ("evening", 30, 9.0)):
        yield from (Measure(f"segment/{name}/positives", count), Measure(f"segment/{name}/log_e", log_e))
        yield from (Measure(f"segment/{name}/found", log_e > 0), Measure(f"segment/{name}/calibration", 1.01))


def cells_of(condition: str, gain: float = 0.5, **of_wide: Any) -> list[Cell]:
    """One student and task under a condition; arms `none`, `wide`, and one whose name is markup."""
    arms = {"none": arm(), "wide": arm(gain, **of_wide), ODD: arm(-gain)}
    found = [cell for name, measures in arms.items() for cell in cells(Key(condition, "feed", "ctr", name), measures)]
    for name, value in (("wide", gain), (ODD, -gain)):
        found += cells(Key(condition, MEAN, "ctr", name), interval("gain", value))
    return found


def report(gain: float = 0.5, findings: tuple[dict[str, str], ...] = (), **changes: Any) -> ReplayReport:
    """A replay of one condition; `changes`: fields of the report that are others."""
    arms = {name: {} for name in ("none", "wide", ODD)}
    verdict = Verdict(
        task="ctr", baseline="none", arm="wide", decision="ship", arms=2, stopped_at={"feed": 128},
        cost={"training": 1.2, "flops": 2.0, "parameters": 1.0},
        words="Ship wide: on ctr it has 0.50 % lower NE than none.",
    )  # fmt: skip
    about = About(
        config="small", config_hash="abc", source="lake", one_stream=True, rows={"1": 100},
        events_ms=(0, 2 * HOUR_MS), date="2026-01-02", code=("0.1",), versions={"torch": "2"},
        best_twins={"feed": "none"}, errors="clusters of user_id", command="exfm replay spec.yaml",
    )  # fmt: skip
    whole: dict[str, Any] = {
        "about": about, "spec": Spec(config="-", seeds=(1, 2), arms=arms, top=(0.1,)),
        "cells": tuple(cells_of("fresh", gain)), "verdicts": (verdict,), "notes": ("one seed <script>",),
        "data": {"rows": 100, "findings": list(findings), "tables": []},
    }  # fmt: skip
    return ReplayReport(**whole | changes)


def shown_by_chromium(page: Path, width: int = 390, dark: bool = False) -> str:
    """The document as Chromium holds it after loading, its scripts run. Raises CalledProcessError where it fails."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={page.parent / 'browser'}", f"--window-size={width},900", "--virtual-time-budget=2000",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []), "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


if __name__ == "__main__":
    GOLDEN.write_text(markdown(report()))

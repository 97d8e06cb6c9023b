"""A run directory as a page finds it: config, status and predictions of runs that nobody has run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.config.settings import Config, dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.kinds import Kind
from pipelines.live.rules.states import RunState, WorkerState
from pipelines.live.status.status import RunStatus, StatusAlarm, WorkerStatus
from pipelines.live.workers.report import Report
from tests.support.pipelines.raw_configs import small

DAY_MS = 86_400_000
BEGIN_MS = 1_704_067_200_000
STALLED = StatusAlarm(
    "stalled", "alarm", ("student-feed",), "2026-11-29T20:00:00+00:00", 320.0, "stalled: student-feed makes no progress"
)


def shown_run(root: Path, students: int = 2, *, days: float = 2.0, parts: int = 2, rows: int = 2000) -> Config:
    """Write the folder of a run that has ended, with an alarm and a reason for refusals; returns its config."""
    raw = small()
    names = [*(student["name"] for student in raw["students"]), *(f"more_{n:02d}" for n in range(students - 2))]
    raw["students"] = [{"name": name, "verticals": ["feed"]} for name in names]
    config = parse(raw)
    run_dir = RunDir(root)
    root.mkdir(parents=True, exist_ok=True)
    run_dir.config.write_text(dump(config))
    status = RunStatus("small", RunState.RUNNING)
    workers = {"ingest": Kind.INGEST, "augmentation": Kind.AUGMENTATION, "teacher": Kind.TEACHER}
    workers |= {f"student-{name}": Kind.STUDENT for name in names}
    for at, (name, kind) in enumerate(workers.items()):
        report = Report(name, str(kind), pid=1, rows=1000 + at, lag_rows=at, lake_seq=999, ne={"ctr": 0.9})
        status.workers[name] = WorkerStatus(name, kind, WorkerState.RUNNING, report=report, recent_rows_per_s=120.0)
    status.raise_alarms([STALLED])
    value = status.as_json() | {"state": "stopped"}
    value["counts"] = {
        "impressions_read": 80_160,
        "pending": {"ctr": 7, "cvr": 5},
        "dead_letters_by_reason": {"impression": {"null:<b>age</b>": 3}, "feedback": {"undecodable": 9}},
    }
    run_dir.status.write_text(json.dumps(value))
    for name in names:
        predictions(run_dir.predictions(name), days, parts, rows)
    return config


def predictions(folder: Path, days: float, parts: int, rows: int) -> None:
    """Parts of a log of predictions; `cvr` has no label yet, and the champion was asked in the later half."""
    folder.mkdir(parents=True)
    rng, length_ms = np.random.default_rng(5), int(days * DAY_MS / parts)
    for part in range(parts):
        seq = np.arange(part * rows, (part + 1) * rows)
        logits = rng.normal(-2.0, 1.0, rows)
        columns = {
            "lake_seq": seq,
            "impression_id": 7 * seq,
            "event_time_ms": BEGIN_MS + part * length_ms + np.sort(rng.integers(0, length_ms, rows)),
            "label_ctr": (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.int8),
            "label_cvr": pa.nulls(rows, pa.int8()),
        }
        for spread, model in enumerate(("student", "no_teacher", "teacher")):
            for task in ("ctr", "cvr"):
                columns[f"{model}_{task}"] = (logits + rng.normal(0, 0.2 * (1 + spread), rows)).astype(np.float32)
        if part >= parts // 2:
            columns |= {f"champion_{task}": columns[f"no_teacher_{task}"] + np.float32(0.1) for task in ("ctr", "cvr")}
        pq.write_table(pa.table(columns), folder / f"{seq[0]:014d}-{seq[-1]:014d}.parquet")


DRAWN = "document.querySelectorAll('#charts .curve').length > 0"
"""Holds in a browser once curves are on the page."""
CUT_OFF = """(() => {
  const wide = document.scrollingElement.scrollWidth - innerWidth, found = wide > 0 ? [`the page: ${wide} px`] : [];
  for (const text of document.querySelectorAll("main svg text")) {
    const own = text.getBoundingClientRect(), whole = text.ownerSVGElement.getBoundingClientRect();
    const outside = own.left < whole.left - 1 || own.right > whole.right + 1 || own.bottom > whole.bottom + 1;
    if (outside) found.push(text.textContent);
    for (const box of text.ownerSVGElement.querySelectorAll("rect.box")) {
      const its = box.getBoundingClientRect();
      const touches = own.left < its.right && own.right > its.left && own.top < its.bottom && own.bottom > its.top;
      const beyond = own.left < its.left || own.right > its.right || own.bottom > its.bottom;
      if (touches && beyond) found.push(text.textContent);
    }
  }
  for (const svg of document.querySelectorAll("main svg")) {
    const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    texts.forEach(([words, a], at) => texts.slice(at + 1).forEach(([others, b]) => {
      const over = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (a.left < b.right && b.left < a.right && over > 4) found.push(`${words} / ${others}`);
    }));
  }
  return found;
})()"""
"""Words in a browser that are wider than their picture or their box, or lie on others; and how much too wide the page
is."""

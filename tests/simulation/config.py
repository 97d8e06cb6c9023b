"""The config of the service that a history is played to."""

from __future__ import annotations

from functools import cache
from typing import Any

from pipelines.core.config.settings import Config, parse
from tests.simulation.history import ADS, EVENTS, LARGE, Settings

EXAMPLES, LETTERS = "examples", "dead-letters"
LAG = 2


@cache
def _base(codecs: tuple[str, str], partitions: int, examples: int) -> Config:
    topics = zip(("impressions", "feedback"), (ADS, EVENTS), codecs, strict=True)
    kafka: dict[str, Any] = {key: {"topic": t, "codec": c, "partitions": partitions} for key, t, c in topics}
    kafka |= {"examples": {"topic": EXAMPLES, "partitions": examples}, "dead_letters": {"topic": LETTERS}}
    student = {"name": "feed", "model": {"width": 4, "trunk": {"name": "dlrm", "mlp": [4], "bottom": [4]}}}
    raw = {
        "name": "simulated",
        "rows": {"columns": [{"name": "age", "minimum": 0, "maximum": 99}], "tasks": [{"name": "ctr", "window_s": 1}]},
        "features": {"sparse": [{"name": "age", "rows": 100}]},
        "pace": {"mode": "lockstep", "lag": LAG},
        "kafka": kafka | {"bootstrap_servers": "simulated:1"},
        "teacher": {"model": {"width": 4, "layers": 1, "num_fmb": 2, "num_lcb": 2, "rank": 2, "mlp": [4], "head": [4]}},
        "students": [student],
    }
    return parse(raw)


def config_of(settings: Settings) -> Config:
    base = _base(settings.codecs, settings.partitions, settings.examples)
    tasks = [{"name": name, "window_s": window / 1000, "given": given} for name, window, given in settings.tasks]
    rows = type(base.rows)(
        impression_id="string" if settings.string_ids else "int64", columns=base.rows.columns, tasks=tasks
    )
    settlement = type(base.settlement)(
        lateness_s=settings.lateness / 1000,
        dedup_horizon_s=settings.horizon / 1000,
        max_future_skew_s=None if settings.skew is None else settings.skew / 1000,
        by="partition" if settings.workers else "stream",
        partitioner="kafka",
    )
    blocks = {"block_rows": settings.block_rows, "first_block_rows": LARGE}
    pace = base.pace.model_copy(
        update={"mode": settings.pace, "commit_interval_s": settings.interval_s, "max_rows_ahead": LARGE, **blocks}
    )
    buffers = {"buffer_rows": settings.buffer_rows, "idle_s": settings.idle_s}
    augmentation = base.augmentation.model_copy(update=buffers | {"workers": max(1, settings.workers)})
    changes = {"rows": rows, "settlement": settlement, "pace": pace, "augmentation": augmentation}
    return base.model_copy(update=changes)

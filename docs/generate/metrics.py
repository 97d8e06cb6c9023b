"""The page of metrics, from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from docs.generate.markdown import GENERATED, cell, table

if TYPE_CHECKING:
    from pipelines.track.catalogue import Metered


def metrics_page() -> str:
    from pipelines.track.catalogue import MLFLOW, RUN, SERVER
    from pipelines.track.dashboards import ALERTS, DASHBOARDS, RECORDINGS

    text = [
        "# Metrics",
        GENERATED,
        "[Monitoring](../../operations/monitoring.md#prometheus-and-grafana) says how they are scraped. A counter has "
        "`_total` behind its name, a histogram `_bucket`.",
        "## Of a run",
        "Each has the label `run`. A field is one of `status.json`; a part in braces is a label.",
        *_catalogue(RUN),
        "## Of a server",
        "Of `exfm serve`. Each has the label `process`; a field is one of `ServingMetrics.as_json`.",
        *_catalogue(SERVER),
        "## In MLflow",
        "While a worker learns, at the end of a run (`final/…`), and of a replay (`…/gain_…`). A part in braces stands "
        "for a task, a model, a feature, or a quantile (`p50`, `p95`).",
        table(
            "series | unit | meaning | metric above",
            [f"| `{s.name}` | {s.unit} | {cell(s.meaning)} | {_code(s.metric)} |" for s in MLFLOW],
        ),
        "## Rules",
        "Written by `exfm metrics --files`, beside an alert for each of [the alarms](../../operations/alarms.md).",
        table("rule | expression", [f"| `{name}` | {_code(text)} |" for name, text in RECORDINGS.items()]),
        table("alert | when | meaning", [f"| `{a.name}` | {_code(a.expression)} | {a.summary} |" for a in ALERTS]),
        "## Dashboards",
        table(
            "dashboard | panels",
            [f"| {name} | {cell(', '.join(panel.title for panel in panels))} |" for name, panels in DASHBOARDS.items()],
        ),
    ]
    return "\n\n".join(text)


def _catalogue(catalogue: Iterable[Metered]) -> list[str]:
    rows = [
        f"| `{s.name}` | {s.type} | {', '.join(s.labels)} | {_code(s.path)} | {cell(s.meaning)} |" for s in catalogue
    ]
    return [table("metric | type | labels | field | meaning", rows)]


def _code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""

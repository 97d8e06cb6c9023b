"""Files for Prometheus and Grafana, from the catalogue and the table of alarms: `exfm metrics --files DIR`.

    prometheus.yml      what to scrape
    exfm.rules.yml      shares that are worth a name of their own, and an alert for each alarm
    grafana/NAME.json   a dashboard for each of DASHBOARDS

They are not kept anywhere: those of a release are what it writes, so they name the metrics that it has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from pipelines.live.rules.alarms import ALARMS, Alarm

PORT = 9464
JOB = "exfm"
SPAN = "5m"
"""Rates are taken over this."""
SEVERITIES = {"alarm": "critical", "note": "info"}


def _rate(name: str, by: str = "") -> str:
    summed = f"rate({name}[{SPAN}])"
    return f"sum by ({by}) ({summed})" if by else summed


def _share(part: str, whole: str, by: str = "run") -> str:
    return f"{_rate(part, by)} / {_rate(whole, by)}"


def _quantile(q: float, name: str, by: str, of: str = "") -> str:
    return f"histogram_quantile({q:g}, {_rate(f'{name}_bucket{of}', f'le, {by}')})"


RECORDINGS = {
    "exfm:feedback_joined:ratio": _share("exfm_feedback_joined_total", "exfm_feedback_read_total"),
    "exfm:feedback_late:ratio": _share("exfm_feedback_late_total", "exfm_feedback_read_total"),
    "exfm:feedback_unmatched:ratio": _share("exfm_feedback_unmatched_total", "exfm_feedback_read_total"),
    "exfm:dead_letters:ratio": _share('exfm_dead_letters_total{kind="impression"}', "exfm_impressions_read_total"),
    "exfm:row_busy:seconds": _share("exfm_worker_busy_seconds_total", "exfm_worker_rows_total", "run, worker"),
}
"""Recording rules: the last five minutes of each run."""


class AlertRule(NamedTuple):
    """An alert of Prometheus that no alarm of a run can raise: who would raise it is gone, or is a server."""

    name: str
    expression: str
    for_s: int
    severity: str
    summary: str


_FAILED_REQUESTS = 'exfm_requests_total{code=~"5.."}'
ALERTS = (
    AlertRule("ExfmTargetDown", f'up{{job="{JOB}"}} == 0', 60, "warning", "A run or a server does not answer."),
    AlertRule(
        "ExfmRunSilent",
        "time() - exfm_run_updated_timestamp_seconds > 60 "
        'and on (run) exfm_run_state{state=~"starting|running|draining"}',
        0,
        "critical",
        "A run that is not over has not written its status for a minute: its coordinator is gone.",
    ),
    AlertRule(
        "ExfmVersionRefused",
        "increase(exfm_refused_versions_total[10m]) > 0",
        0,
        "critical",
        "A server has refused a version; the one before goes on answering.",
    ),
    AlertRule(
        "ExfmRequestsFail",
        f"{_share(_FAILED_REQUESTS, 'exfm_requests_total', 'model')} > 0.01",
        120,
        "critical",
        "More than 1 % of the requests for a model fail.",
    ),
)


def rules_file() -> str:
    """Recording and alert rules: one alert for each alarm, and ALERTS."""
    recordings = [{"record": name, "expr": expression} for name, expression in RECORDINGS.items()]
    alerts = [_alarm_rule(alarm) for alarm in ALARMS] + [_alert_rule(alert) for alert in ALERTS]
    groups = [{"name": "exfm", "rules": recordings}, {"name": "exfm alarms", "rules": alerts}]
    return yaml.safe_dump({"groups": groups}, sort_keys=False, width=120)


def _alarm_rule(alarm: Alarm) -> dict[str, Any]:
    """The run has decided already; a failed one raises no alarm any more."""
    if alarm is Alarm.FAILED:
        expression, about = 'exfm_run_state{state="failed"}', ""
    else:
        expression, about = f'exfm_alarm_seconds{{alarm="{alarm}"}}', ": {{ $labels.about }}"
    return {
        "alert": alert_name(alarm),
        "expr": expression,
        "labels": {"severity": SEVERITIES[alarm.severity]},
        "annotations": {
            "summary": alarm.sentence,
            "description": f"{{{{ $labels.run }}}}{about}",
            "remedy": alarm.remedy,
        },
    }


def _alert_rule(alert: AlertRule) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": f"{alert.for_s}s",
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary},
    }


def alert_name(alarm: Alarm) -> str:
    """Name of an alarm's alert.

    >>> alert_name(Alarm.NE_ABOVE), alert_name(Alarm.STALLED)
    ('ExfmNeTooHigh', 'ExfmStalled')
    """
    return "Exfm" + "".join(word.capitalize() for word in alarm.split())


def scrape_file(targets: Sequence[str] = (f"127.0.0.1:{PORT}",)) -> str:
    """Configuration of a Prometheus that scrapes runs and servers."""
    value = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["exfm.rules.yml"],
        "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": list(targets)}]}],
    }
    return yaml.safe_dump(value, sort_keys=False, width=120)


class Panel(NamedTuple):
    """A panel of a dashboard: its title, Grafana's name of its unit, and queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


_RUN = 'run=~"$run"'
_OF = '{run=~"$run"}'
_STUDENT = '{run=~"$run",worker=~"$student"}'
_STUDENT_TASK = "{{worker}} {{task}}"


def _lines(title: str, unit: str, expression: str, legend: str) -> Panel:
    return Panel(title, unit, ((expression, legend),))


DASHBOARDS: dict[str, tuple[Panel, ...]] = {
    "run": (
        Panel("State", "none", ((f"exfm_run_state{_OF}", "{{run}} {{state}}"),), "stat"),
        Panel("Active alarms", "none", ((f"count(exfm_alarm_seconds{_OF}) or vector(0)", "alarms"),), "stat"),
        Panel(
            "Since the last status", "s", ((f"time() - exfm_run_updated_timestamp_seconds{_OF}", "{{run}}"),), "stat"
        ),
        _lines("Rows a second", "short", _rate(f"exfm_worker_rows_total{_OF}", "run, worker"), "{{worker}}"),
        _lines("Rows that wait", "short", f"exfm_worker_lag_rows{_OF}", "{{worker}}"),
        _lines("Rows that wait by partition", "short", f"exfm_partition_lag_rows{_OF}", "{{partition}}"),
        _lines(
            "Event time behind, by partition",
            "s",
            f"time() - exfm_partition_event_timestamp_seconds{_OF}",
            "{{partition}}",
        ),
        _lines("Event time behind the clock", "s", f"exfm_worker_lag_event_seconds{_OF}", "{{worker}}"),
        _lines(
            "Event time read", "dateTimeAsIso", f"1000 * exfm_settlement_watermark_timestamp_seconds{_OF}", "{{run}}"
        ),
        _lines("Impressions whose window is open", "short", f"exfm_impressions_pending{_OF}", "{{group}}"),
        Panel(
            "Feedback, shares",
            "percentunit",
            tuple(
                (_share(f"exfm_feedback_{fate}_total{_OF}", f"exfm_feedback_read_total{_OF}"), fate)
                for fate in ("joined", "late", "unmatched", "duplicate")
            ),
        ),
        _lines(
            "Dead letters an hour",
            "short",
            f"sum by (kind, reason) (increase(exfm_dead_letters_total{_OF}[1h]))",
            "{{kind}} {{reason}}",
        ),
        _lines("Age of the snapshot that scores", "s", f"exfm_teacher_age_seconds{_OF}", "{{run}}"),
        _lines("Rows that the snapshot lacks", "short", f"exfm_teacher_lag_rows{_OF}", "{{run}}"),
        _lines(
            "From learned to a logit, p95",
            "s",
            _quantile(0.95, "exfm_learned_to_logit_seconds", "run", _OF),
            "{{run}}",
        ),
        _lines("CPU", "short", _rate(f"exfm_worker_cpu_seconds_total{_OF}", "worker"), "{{worker}}"),
        _lines(
            "Time by phase",
            "s",
            _rate(f"exfm_worker_phase_seconds_total{_OF}", "worker, phase"),
            "{{worker}} {{phase}}",
        ),
        _lines("Memory", "bytes", f"exfm_worker_memory_bytes{_OF}", "{{worker}}"),
        _lines("Restarts", "short", f"exfm_worker_restarts_total{_OF}", "{{worker}}"),
    ),
    "student": (
        _lines("NE of the last window", "none", f"exfm_ne_ratio{_STUDENT}", f"{_STUDENT_TASK} {{{{model}}}}"),
        _lines("Gain over the twin", "percentunit", f"exfm_gain_ratio{_STUDENT}", _STUDENT_TASK),
        _lines("Calibration", "none", f"exfm_calibration_ratio{_STUDENT}", f"{_STUDENT_TASK} {{{{model}}}}"),
        _lines("Positives", "percentunit", f"exfm_positives_ratio{_STUDENT}", _STUDENT_TASK),
        _lines("Rows a second", "short", _rate(f"exfm_worker_rows_total{_STUDENT}", "worker"), "{{worker}}"),
        _lines("Rows that wait", "short", f"exfm_worker_lag_rows{_STUDENT}", "{{worker}}"),
        _lines("From an event to its logit", "s", f"exfm_logit_age_seconds{_STUDENT}", "{{worker}}"),
        *(
            Panel(
                f"Teacher behind the row, {unit}",
                "s" if unit == "seconds" else "short",
                tuple(
                    (
                        _quantile(q, f"exfm_teacher_behind_{unit}", "worker", _STUDENT),
                        f"{{{{worker}}}} p{round(100 * q)}",
                    )
                    for q in (0.5, 0.95)
                ),
            )
            for unit in ("rows", "seconds")
        ),
        _lines(
            "Time a row",
            "s",
            _share(f"exfm_worker_busy_seconds_total{_STUDENT}", f"exfm_worker_rows_total{_STUDENT}", "worker"),
            "{{worker}}",
        ),
        _lines("Rows left out as not finite", "short", f"exfm_quarantined_rows_total{_STUDENT}", "{{worker}}"),
        Panel("Champion", "none", ((f"exfm_student_champion{_STUDENT}", "{{worker}} {{champion}}"),), "stat"),
    ),
    "serving": (
        _lines("Requests a second", "reqps", _rate("exfm_requests_total", "model, code"), "{{model}} {{code}}"),
        Panel(
            "Time of a request",
            "s",
            tuple(
                (_quantile(q, "exfm_request_seconds", "model"), f"{{{{model}}}} p{100 * q:g}")
                for q in (0.5, 0.95, 0.99)
            ),
        ),
        _lines("Rows a second", "short", _rate("exfm_rows_total", "model"), "{{model}}"),
        _lines("Rows refused a second", "short", _rate("exfm_refused_rows_total", "model"), "{{model}}"),
        Panel("Version that answers", "none", (("exfm_version_info", "{{model}} {{version}}"),), "stat"),
        _lines("Age of the version", "s", "exfm_version_age_seconds", "{{model}}"),
        _lines(
            "From a step to its first answer, p95", "s", _quantile(0.95, "exfm_freshness_seconds", "model"), "{{model}}"
        ),
        _lines(
            "From a step to its version, p95", "s", _quantile(0.95, "exfm_step_to_served_seconds", "model"), "{{model}}"
        ),
        _lines("Versions refused", "short", "exfm_refused_versions_total", "{{process}}"),
    ),
    "lake": (
        _lines("Rows", "short", f"exfm_lake_rows{_OF}", "{{run}}"),
        _lines("Rows a second", "short", f"deriv(exfm_lake_rows{_OF}[{SPAN}])", "{{run}}"),
        _lines("Files", "short", f"exfm_lake_files{_OF}", "{{run}}"),
        _lines("Bytes of the lake", "bytes", f"exfm_lake_bytes{_OF}", "{{run}}"),
        _lines("Bytes of the run, by kind", "bytes", f"exfm_disk_bytes{_OF}", "{{part}}"),
        _lines("Bytes free", "bytes", f"exfm_disk_free_bytes{_OF}", "{{run}}"),
        _lines("Memory of what has not settled", "bytes", f"exfm_settlement_state_bytes{_OF}", "{{run}}"),
        _lines("Entries that MLflow did not take", "short", f"exfm_tracking_dropped_total{_OF}", "{{run}}"),
    ),
}
"""Panels by dashboard, in the order in which they are read."""

VARIABLES = {
    "run": ("label_values(exfm_run_state, run)", ("run", "student", "lake")),
    "student": (f"label_values(exfm_ne_ratio{{{_RUN}}}, worker)", ("student",)),
}
"""Choices of a reader: where their values are from, and which dashboards have it."""


def dashboard(name: str) -> str:
    """A dashboard as Grafana imports it. Panels stand three in a row."""
    panels = []
    for number, panel in enumerate(DASHBOARDS[name]):
        panels.append(
            {
                "id": number + 1,
                "title": panel.title,
                "type": panel.kind,
                "datasource": _SOURCE,
                "gridPos": {"x": number % 3 * 8, "y": number // 3 * 8, "w": 8, "h": 8},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + n), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
                    for n, (expression, legend) in enumerate(panel.queries)
                ],
            }
        )
    variables: list[dict[str, Any]] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    for variable, (query, where) in VARIABLES.items():
        if name in where:
            variables.append(
                {"name": variable, "type": "query", "query": query, "datasource": _SOURCE, "refresh": 2}
                | {"multi": True, "includeAll": True, "allValue": ".*"}
            )
    value = {
        "uid": f"exfm-{name}",
        "title": f"ExFM: {name}",
        "tags": ["exfm"],
        "schemaVersion": 39,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(value, indent=1) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def files() -> dict[str, str]:
    """Every file by its path."""
    texts = {"prometheus.yml": scrape_file(), "exfm.rules.yml": rules_file()}
    return texts | {f"grafana/{name}.json": dashboard(name) for name in DASHBOARDS}

"""Rules and dashboards of this release ask for what its metrics are; held by hand everywhere, and by Prometheus where
there is one."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pipelines.live.rules.alarms import ALARMS, Alarm
from pipelines.track.catalogue import RUN, SERVER, MetricType, exposition
from pipelines.track.dashboards import ALERTS, DASHBOARDS, RECORDINGS, alert_name, files, rules_file
from tests.support.prometheus import needs_promtool, promtool, recorded_server, recorded_status

SELECTOR = re.compile(r"(exfm_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)=(~?)"([^"]*)"')
QUERIES = [
    pytest.param(expression, id=f"{name}: {panel.title} {n}")
    for name, panels in DASHBOARDS.items()
    for panel in panels
    for n, (expression, _) in enumerate(panel.queries)
]


def chosen(expression: str) -> str:
    """The query as Grafana asks it, where everything is chosen."""
    return expression.replace("$run", ".*").replace("$student", ".*")


@pytest.fixture(scope="module")
def recorded():
    """Every sample of a run and of a server: its name and labels."""
    pages = [exposition(RUN, recorded_status(), {"run": "demo"})[0].decode(), recorded_server()]
    return [
        (sample.name, sample.labels)
        for page in pages
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def found(selector: tuple[str, str], recorded) -> bool:
    name, matchers = selector
    wanted = [(label, value if regex else re.escape(value)) for label, regex, value in MATCHER.findall(matchers or "")]
    return any(
        name == sample and all(re.fullmatch(value, labels.get(label, "")) for label, value in wanted)
        for sample, labels in recorded
    )


@pytest.mark.parametrize("expression", QUERIES)
def test_what_a_panel_asks_for_is_in_the_recorded_pages(expression, recorded):
    selectors = SELECTOR.findall(chosen(expression))
    assert selectors
    assert [selector for selector in selectors if not found(selector, recorded)] == []


def test_a_metric_that_is_not_there_is_found_missing(recorded):
    assert not found(("exfm_worker_rowz_total", ""), recorded)
    assert not found(("exfm_worker_rows_total", 'worker="nobody"'), recorded)


def test_rules_name_metrics_of_the_catalogue():
    names = {series.sample for series in (*RUN, *SERVER)}
    names |= {f"{series.name}_bucket" for series in (*RUN, *SERVER) if series.type is MetricType.HISTOGRAM}
    rules = [rule for group in yaml.safe_load(rules_file())["groups"] for rule in group["rules"]]
    assert len(rules) == len(RECORDINGS) + len(ALARMS) + len(ALERTS)
    assert {name for rule in rules for name, _ in SELECTOR.findall(rule["expr"])} <= names
    assert {rule["record"] for rule in rules if "record" in rule} == RECORDINGS.keys()


def test_every_alarm_has_an_alert_of_its_words():
    rules = {rule.get("alert"): rule for group in yaml.safe_load(rules_file())["groups"] for rule in group["rules"]}
    for alarm in Alarm:
        rule = rules[alert_name(alarm)]
        assert rule["annotations"]["summary"] == alarm.sentence
        assert rule["annotations"]["remedy"] == alarm.remedy
        assert rule["labels"]["severity"] == ("info" if alarm.is_note else "critical")


def test_dashboards_are_what_grafana_imports():
    for name in DASHBOARDS:
        value = json.loads(files()[f"grafana/{name}.json"])
        assert value["title"] == f"ExFM: {name}"
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in value["panels"]]
        assert len({*places}) == len(places) == len(DASHBOARDS[name])
        variables = {variable["name"] for variable in value["templating"]["list"]}
        asked = {name for name in ("run", "student") if f"${name}" in json.dumps(value["panels"])}
        assert variables == {"datasource", *asked}


@needs_promtool
def test_promtool_takes_rules_and_configuration(tmp_path):
    for name in ("prometheus.yml", "exfm.rules.yml"):
        (tmp_path / name).write_text(files()[name])
    said = promtool("check", "config", "prometheus.yml", cwd=tmp_path)
    assert f"SUCCESS: {len(RECORDINGS) + len(ALARMS) + len(ALERTS)} rules found" in said


def fires(alert: str, at: str, labels: dict[str, str]) -> dict:
    return {"eval_time": at, "alertname": alert, "exp_alerts": [{"exp_labels": labels}] if labels else []}


@needs_promtool
def test_alerts_fire_and_end_with_the_alarms(tmp_path):
    """Of the recorded rules `exp_annotations` are left out: the other test has them."""
    rules = yaml.safe_load(rules_file())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    stalled = {"alarm": "stalled", "severity": "critical", "about": "teacher", "run": "live"}
    series = [
        ('exfm_alarm_seconds{run="live",alarm="stalled",severity="alarm",about="teacher"}', "_x3 120+60x5 stale _x10"),
        ('exfm_run_state{run="live",state="running"}', "1x9 stale"),
        ('exfm_run_state{run="live",state="failed"}', "_x10 1x9"),
        ('exfm_run_updated_timestamp_seconds{run="live"}', "0+60x4 240x20"),
        ('up{job="exfm",instance="a"}', "1x4 0x20"),
        ('exfm_requests_total{model="feed",code="200",process="1"}', "0+100x20"),
        ('exfm_requests_total{model="feed",code="500",process="1"}', "0x4 0+10x20"),
        ('exfm_refused_versions_total{process="1"}', "0x4 1x20"),
    ]
    tests = [
        fires("ExfmStalled", "2m", {}),
        fires("ExfmStalled", "4m", stalled),
        fires("ExfmStalled", "12m", {}),
        fires("ExfmRunFailed", "9m", {}),
        fires("ExfmRunFailed", "12m", {"severity": "critical", "run": "live", "state": "failed"}),
        fires("ExfmRunSilent", "4m", {}),
        fires("ExfmRunSilent", "6m", {"severity": "critical", "run": "live"}),
        fires("ExfmRunSilent", "12m", {}),  # it is over
        fires("ExfmTargetDown", "4m", {}),
        fires("ExfmTargetDown", "7m", {"severity": "warning", "job": "exfm", "instance": "a"}),
        fires("ExfmRequestsFail", "4m", {}),
        fires("ExfmRequestsFail", "12m", {"severity": "critical", "model": "feed"}),
        fires("ExfmVersionRefused", "4m", {}),
        fires("ExfmVersionRefused", "6m", {"severity": "critical", "process": "1"}),
    ]
    value = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "alert_rule_test": tests,
            }
        ],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(value))
    promtool("test", "rules", "tests.yml", cwd=tmp_path)

"""The catalogue over the recorded status of a run: every metric is there, named as Prometheus asks, and true."""

from __future__ import annotations

import math
import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from pipelines.track.catalogue import RUN, SERVER, Metered, MetricType, exposition
from tests.support.prometheus import needs_promtool, promtool, recorded_server, recorded_status

NOT_IN_A_DEMO = {"exfm_rank_rows", "exfm_rank_memory_bytes", "exfm_webhook_notices", "exfm_webhook_failures"}
"""A worker of several ranks, and webhooks."""
OPEN = "application/openmetrics-text"


def text_of(value, accept=""):
    return exposition(RUN, value, {"run": "demo"}, accept)[0].decode()


@pytest.fixture(scope="module")
def status():
    return recorded_status()


def samples(text, parse=plain):
    return {
        (s.name, *sorted((k, v) for k, v in s.labels.items() if k != "run")): s
        for family in parse(text)
        for s in family.samples
    }


def test_every_metric_of_a_run_is_in_the_status_of_one(status):
    found = {series.name for series in RUN if list(series.readings(status))}
    assert {series.name for series in RUN} - found == NOT_IN_A_DEMO


def test_samples_are_what_the_status_says(status):
    text, feed = samples(text_of(status)), status["workers"]["student-feed"]
    of_feed = ("worker", "student-feed")
    assert text["exfm_worker_rows_total", of_feed].value == feed["rows"]
    assert text["exfm_worker_state", ("state", feed["state"]), of_feed].value == 1
    ne = feed["windows"]["ctr"]["ne"]
    for model in ("student", "no_teacher"):
        assert text["exfm_ne_ratio", ("model", model), ("task", "ctr"), of_feed].value == ne[model]
    assert text["exfm_gain_ratio", ("task", "ctr"), of_feed].value == 1 - ne["student"] / ne["no_teacher"]
    for reason, rows in status["counts"]["dead_letters_by_reason"]["impression"].items():
        assert text["exfm_dead_letters_total", ("kind", "impression"), ("reason", reason)].value == rows
    assert text["exfm_disk_bytes", ("part", "lake")].value == status["disk"]["lake"]
    [(key, alarm)] = [(key, sample) for key, sample in text.items() if key[0] == "exfm_alarm_seconds"]
    assert dict(key[1:]) == {"alarm": "tracking behind", "severity": "note", "about": "MLflow"}
    assert alarm.value == status["alarms"][0]["for_s"]


def test_a_time_of_day_is_in_seconds_since_1970():
    updated = next(series for series in RUN if series.path == "updated_at")
    assert list(updated.readings({"updated_at": "2026-11-29T20:00:00+00:00"})) == [((), 1795982400.0)]


def test_what_is_not_known_has_no_sample(status):
    worker = status["workers"]["teacher"] | {"lag_rows": None}
    text = samples(text_of(status | {"workers": {"teacher": worker}}))
    assert not any(name == "exfm_worker_lag_rows" for name, *_ in text)


def test_a_histogram_of_moving_bounds_gets_fixed_ones_and_loses_no_row(status):
    recorded = status["workers"]["student-feed"]["freshness"]["behind_rows"]
    buckets = {
        float(dict(key[1:])["le"]): sample.value
        for key, sample in samples(text_of(status)).items()
        if key[0] == "exfm_teacher_behind_rows_bucket" and ("worker", "student-feed") in key
    }
    bounds = sorted(buckets)
    assert bounds[:-1] == [2.0**k for k in range(-4, 25)]
    assert bounds[-1] == math.inf
    assert [buckets[a] for a in bounds] == sorted(buckets.values())
    assert buckets[math.inf] == recorded["rows"] == sum(rows for _, rows in recorded["histogram"])
    for bound in bounds:
        assert buckets[bound] == sum(rows for upper, rows in recorded["histogram"] if upper <= bound)


def test_openmetrics_has_the_range_of_the_lake_that_was_done_last_as_exemplar(status):
    found = samples(text_of(status, OPEN), open_metrics)
    teacher, last = found["exfm_worker_rows_total", ("worker", "teacher")], status["workers"]["teacher"]["lake_seq"]
    assert teacher.exemplar.labels == {"lake_from": str(last - 511), "lake_to": str(last)}
    assert found["exfm_worker_rows_total", ("worker", "ingest")].exemplar is None


def test_names_are_unique_and_tell_their_units():
    names = [series.name for series in (*RUN, *SERVER)]
    assert len({*names}) == len(names)
    assert [name for name in names if not re.fullmatch(r"exfm(_[a-z]+)+", name) or name.endswith("_total")] == []
    assert all(series.meaning.endswith(".") for series in (*RUN, *SERVER))
    fields = {series.name: series.path.rpartition(".")[2] for series in (*RUN, *SERVER)}
    seconds = {name for name, field in fields.items() if field.endswith("_s") and not field.endswith("per_s")}
    assert {name for name in seconds if "_seconds" not in name} == set()
    assert {name for name, field in fields.items() if field.endswith("bytes") and "bytes" not in name} == set()


def test_the_catalogue_has_what_a_server_says_and_no_more():
    said = {family.name: family for family in plain(recorded_server())}
    assert set(said) <= {series.name for series in SERVER}
    missing = {series.name for series in SERVER} - set(said)
    assert missing <= {f"exfm_log_{fate}_rows" for fate in ("written", "dropped", "unidentified")}
    for series in SERVER:
        if series.name in said:
            assert {*said[series.name].samples[0].labels} - {"le"} == {"process", *series.labels}
            assert said[series.name].documentation == series.meaning


def test_a_server_has_the_figures_that_the_catalogue_names():
    value = {
        "models": {"feed": {"requests": {200: 3}, "seconds": {"histogram": [(0.1, 2), (math.inf, 1)], "sum": 9.0}}}
    }
    text = exposition(SERVER, value, {"process": "7"})[0].decode()
    assert 'exfm_requests_total{code="200",model="feed",process="7"} 3.0' in text
    assert 'exfm_request_seconds_bucket{le="0.1",model="feed",process="7"} 2.0' in text
    assert 'exfm_request_seconds_bucket{le="+Inf",model="feed",process="7"} 3.0' in text
    assert 'exfm_request_seconds_sum{model="feed",process="7"} 9.0' in text


def test_a_counter_that_a_restart_took_back_stays_at_its_most(status):
    feed = status["workers"]["student-feed"]
    before = feed["freshness"]["behind_rows"] | {"rows": 10**6, "histogram": [[4.0, 10**6]]}
    text = samples(text_of(status | {"ahead": {
        "workers.student-feed.rows": 10**6, "counts.settled.ctr": 10**6, "counts.dead_letters": 9,
        "workers.student-feed.freshness.behind_rows": before, "workers.gone.rows": 5,
    }}))  # fmt: skip
    of_feed = ("worker", "student-feed")
    assert text["exfm_worker_rows_total", of_feed].value == 10**6
    assert text["exfm_impressions_settled_total", ("group", "ctr")].value == 10**6
    assert text["exfm_impressions_settled_total", ("group", "cvr")].value == status["counts"]["settled"]["cvr"]
    assert text["exfm_teacher_behind_rows_bucket", ("le", "4.0"), of_feed].value == 10**6
    assert ("exfm_worker_rows_total", ("worker", "gone")) not in text


@pytest.mark.parametrize("value", [{}, {"workers": {}}, {"workers": {"a": {}}, "alarms": [], "counts": None}])
def test_a_status_without_anything_is_an_empty_page(value):
    assert text_of(value) == ""


def test_labels_are_the_braces_of_a_path():
    series = Metered("a", MetricType.GAUGE, "x.{one}.{two=of,three}.y", "")
    assert list(series.readings({"x": {"1": [{"of": 2, "three": 3, "y": 4}, {"y": 5}]}})) == [
        (("1", "2", "3"), 4),
        (("1", "", ""), 5),
    ]


@needs_promtool
def test_promtool_finds_nothing_wrong_with_either_page(status):
    assert promtool("check", "metrics", text=text_of(status)) == ""
    assert promtool("check", "metrics", text=recorded_server()) == ""

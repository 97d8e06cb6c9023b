"""Who is told of an alarm, when, and what: by a clock that is moved by hand, and over HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pipelines.core.config.sections import WebhookSettings
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.alarms import Alarm
from pipelines.live.status.status import StatusAlarm
from pipelines.track.webhooks import ALL, HOLD_S, AlarmNotices, Notice, Webhooks, send_failed, silence, silences
from streaming.errors import BadInput, StreamingError
from tests.support.pipelines.small_runs import small
from tests.support.streams.scripted import HandClock
from tests.support.waiting import eventually

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
STALLED = StatusAlarm("stalled", "alarm", ("teacher",), NOON.isoformat(), 130.0, "stalled: teacher", "teacher", "page")
HOT = StatusAlarm("hot partition", "note", (), NOON.isoformat(), 30.0, "hot partition: ads/1", "augmentation", "page")


class Told:
    """Notices of a run, and who looks at its alarms."""

    def __init__(self, tmp_path):
        self.clock, self.file, self.sent = HandClock(), tmp_path / "silences.json", []
        self.kept = tmp_path / "notices.json"
        self.start()

    def start(self):
        """Begin with what is kept, as a new process does."""
        self.notices = AlarmNotices("live", self.file, self.kept, self.send, self.clock, self.now)

    def now(self):
        return NOON + timedelta(seconds=self.clock())

    def send(self, notice, *, again=False):
        if not again:
            self.sent.append(f"{'over: ' * notice.over}{notice.alarm} of {notice.about}")

    def after(self, seconds, *alarms):
        """What is sent in one look, so much later."""
        self.clock.advance(seconds)
        before = len(self.sent)
        self.notices.look(alarms)
        return self.sent[before:]


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path)


def test_an_alarm_is_sent_once_and_once_more_when_it_is_over(told):
    assert told.after(0, STALLED) == ["stalled of teacher"]
    assert [told.after(60, STALLED) for _ in range(9)] == [[]] * 9
    assert told.after(1) == []  # it may come back
    assert told.after(30) == ["over: stalled of teacher"]
    assert told.after(500) == []
    assert told.after(1, STALLED) == ["stalled of teacher"]


def test_an_alarm_that_comes_and_goes_is_one(told):
    assert told.after(0, STALLED) == ["stalled of teacher"]
    assert [told.after(20, *alarms) for alarms in ([], [STALLED], [], [STALLED])] == [[]] * 4


def test_alarms_of_one_name_about_two_workers_are_two(told):
    other = StatusAlarm("stalled", "alarm", ("student-feed",), NOON.isoformat(), 1.0, "stalled", "student-feed", "page")
    assert told.after(0, STALLED, other) == ["stalled of teacher", "stalled of student-feed"]


def test_a_stall_of_all_workers_is_one_notice_and_what_is_left_of_it_another(told):
    stuck = [
        StatusAlarm("stalled", "alarm", workers, NOON.isoformat(), 1.0, "stalled", about, "page")
        for workers, about in ((("teacher", "student-feed"), "all workers"), (("student-feed",), "student-feed"))
    ]
    assert told.after(0, STALLED) == ["stalled of teacher"]
    assert told.after(1, *stuck, STALLED) == ["stalled of all workers"]
    assert told.after(31, STALLED, stuck[1]) == ["stalled of student-feed", "over: stalled of all workers"]
    assert told.after(30) == ["over: stalled of teacher", "over: stalled of student-feed"]


def test_what_is_silenced_is_sent_when_the_silence_ends_before_it_does(told):
    silence(told.file, ["stalled"], 10, told.now())
    assert told.after(0, STALLED, HOT) == ["hot partition of augmentation"]
    assert told.after(599, STALLED, HOT) == []
    assert told.after(1, STALLED, HOT) == ["stalled of teacher"]


def test_what_was_over_before_the_silence_is_nobodys_concern(told):
    silence(told.file, [], 10, told.now())
    assert [told.after(20, *alarms) for alarms in ([STALLED], [], [], [])] == [[]] * 4


def test_the_end_of_a_run_is_the_end_of_its_alarms_and_a_failure_is_one(told):
    told.after(0, STALLED)
    told.notices.close("it diverged")
    told.notices.close("it diverged")
    assert told.sent[1:] == ["over: stalled of teacher", "run failed of live"]


def test_a_coordinator_that_was_killed_and_comes_back_tells_the_end_of_what_was_sent(told):
    told.after(0, STALLED, HOT)
    told.start()
    assert told.after(20, HOT) == []
    assert told.after(10, HOT) == ["over: stalled of teacher"]
    assert told.after(500, HOT) == []
    told.start()
    told.notices.close()
    assert told.sent[-1] == "over: hot partition of augmentation"
    assert json.loads(told.kept.read_text()) == []


@pytest.mark.parametrize("text", ["{", '{"a": 1}', "[3]", '[{"workers": []}]'])
def test_what_was_sent_is_not_known_from_a_damaged_file(told, text):
    told.kept.write_text(text)
    told.start()
    assert told.after(0, STALLED) == ["stalled of teacher"]


@pytest.mark.parametrize("minutes", [float("nan"), float("inf"), 1e12, -1.0])
def test_a_silence_is_for_a_year_at_most(tmp_path, minutes):
    with pytest.raises(BadInput, match="cannot be: give 0 to 525,600"):
        silence(tmp_path / "silences.json", [], minutes, NOON)


def test_silences_are_by_name_and_end_by_themselves(tmp_path):
    file = tmp_path / "silences.json"
    assert silence(file, ["stalled"], 60, NOON) == {"stalled": "2026-11-23T13:00:00+00:00"}
    assert set(silence(file, [], 30, NOON)) == {"stalled", ALL}
    assert set(silences(file, NOON + timedelta(minutes=45))) == {"stalled"}
    assert set(silence(file, ["stalled"], 0, NOON)) == {ALL}
    with pytest.raises(BadInput, match="no alarm is named `stuck`; choose from run failed, stalled, "):
        silence(file, ["stuck"], 1, NOON)


@pytest.mark.parametrize("text", ["{", "[1]", '{"stalled": 3}', '{"stalled": "soon"}'])
def test_a_damaged_file_silences_nothing(tmp_path, text):
    file = tmp_path / "silences.json"
    file.write_text(text)
    assert silences(file, NOON) == {}


class Service:
    """An HTTP server that answers with `codes`, one after the other, then 200; and what it was sent."""

    def __init__(self, codes=()):
        service = self
        self.bodies, self.codes = [], list(codes)

        class Request(BaseHTTPRequestHandler):
            def do_POST(self):
                service.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(service.codes.pop(0) if service.codes else 200)
                self.end_headers()

            def log_message(self, *args):
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Request)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/secret-path"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def service(monkeypatch):
    service = Service()
    monkeypatch.setenv("HOOK", service.url)
    monkeypatch.setenv("PAGER_KEY", "k3y")
    yield service
    service.close()


def notice(over=False, alarm=Alarm.STALLED, severity="alarm"):
    return Notice("live", alarm, "teacher", severity, "stalled: teacher makes no progress", NOON.isoformat(), over)


def posted(service, settings, *notices, **options):
    webhooks = Webhooks([WebhookSettings.model_validate(settings)], wait_s=0.01)
    for each in notices:
        webhooks.send(each, **options)
    webhooks.close()
    return webhooks


SLACK = {"format": "slack", "url": {"env": "HOOK"}}


def test_slack_gets_a_text(service):
    posted(service, SLACK, notice(), notice(over=True))
    began, over = service.bodies
    assert set(began) == set(over) == {"text"}
    assert "*live*: stalled: teacher makes no progress" in began["text"]
    assert "docs/operations/alarms.md#stalled" in began["text"]
    assert over["text"] == ":white_check_mark: *live*: over: stalled (teacher)"


def test_a_start_that_fails_is_told_and_what_was_sent_before_is_over(service, tmp_path):
    slack, files = [WebhookSettings.model_validate(SLACK)], (tmp_path / "silences.json", tmp_path / "notices.json")
    AlarmNotices("live", *files, lambda notice, again: None).look([STALLED])
    send_failed(slack, "live", *files, "no broker answers at kafka:9092")
    send_failed(slack, "live", *files, "no broker answers at kafka:9092")  # tried again, and told once
    over, failed = service.bodies
    assert over["text"] == ":white_check_mark: *live*: over: stalled (teacher)"
    assert "*live*: run failed: no broker answers at kafka:9092" in failed["text"]


def test_a_start_that_failed_is_over_when_the_run_runs(told):
    told.kept.write_text(json.dumps([replace(STALLED, state="run failed", about="live").as_json()]))
    told.start()
    assert told.after(HOLD_S) == ["over: run failed of live"]


def test_a_secret_that_cannot_be_read_hides_no_failure(tmp_path, caplog):
    hook = WebhookSettings.model_validate({"format": "slack", "url": {"env": "NO_SUCH_HOOK"}})
    send_failed([hook], "live", tmp_path / "silences.json", tmp_path / "notices.json", "no broker")
    assert "NO_SUCH_HOOK" in caplog.text


def test_a_run_without_a_broker_tells_it(service, tmp_path):
    hooks = [SLACK]
    config = small("127.0.0.1:1", kafka__connect_timeout_s=0.2, alarms__webhooks=hooks, tracking__enabled=False)
    with pytest.raises(StreamingError, match=r"127\.0\.0\.1:1"):
        run(config, RunDir(tmp_path / "run"), local=True)
    [failed] = service.bodies
    assert "run failed: " in failed["text"]
    assert "127.0.0.1:1" in failed["text"]


def test_pagerduty_gets_a_trigger_and_a_resolve_of_the_same_key(service):
    settings = {"format": "pagerduty", "url": service.url, "key": {"env": "PAGER_KEY"}}
    posted(service, settings, notice(), notice(over=True))
    began, over = service.bodies
    assert over == {"routing_key": "k3y", "dedup_key": "exfm/live/stalled/teacher", "event_action": "resolve"}
    assert began.items() >= {"routing_key": "k3y", "dedup_key": over["dedup_key"], "event_action": "trigger"}.items()
    assert began["payload"]["severity"] == "critical"
    assert began["payload"].keys() >= {"summary", "source"}  # what its API asks for


def test_alertmanager_gets_labels_that_stay_and_an_end(service):
    settings = {"format": "alertmanager", "url": service.url}
    posted(service, settings, notice())
    posted(service, settings, notice(), again=True)
    posted(service, settings, notice(over=True))
    [began], [again], [over] = service.bodies
    assert began == again
    assert began["labels"] == over["labels"]
    assert began["labels"] == {"alertname": "stalled", "run": "live", "about": "teacher", "severity": "critical"}
    assert ("endsAt" in began, "endsAt" in over) == (False, True)


def test_others_than_alertmanager_get_no_repeats_and_nobody_notes_unasked(service):
    posted(service, SLACK, notice(), again=True)
    posted(service, SLACK, notice(alarm=Alarm.HOT_PARTITION, severity="note"))
    assert service.bodies == []
    posted(service, SLACK | {"notes": True}, notice(alarm=Alarm.HOT_PARTITION, severity="note"))
    assert len(service.bodies) == 1


def test_a_service_that_fails_is_tried_again_and_what_it_never_takes_is_counted(service):
    service.codes = [503, 503, 503, 200] + [500] * 4
    webhooks = posted(service, SLACK, notice(), notice(over=True))
    assert webhooks.as_json() == {"sent": 1, "failed": 1, "problem": "slack did not take `stalled`: it answered 500"}
    assert len(service.bodies) == 8


def test_a_service_that_is_gone_is_named_without_its_address(monkeypatch, caplog):
    service = Service()
    service.close()
    monkeypatch.setenv("HOOK", service.url)
    webhooks = posted(service, SLACK, notice())
    assert webhooks.as_json()["problem"] == "slack did not take `stalled`: Connection refused"
    assert "secret-path" not in caplog.text


def test_a_secret_that_is_not_there_is_said_at_the_start(monkeypatch):
    monkeypatch.delenv("HOOK", raising=False)
    with pytest.raises(BadInput, match="environment variable HOOK, which is not set"):
        Webhooks([WebhookSettings.model_validate(SLACK)])


def test_a_secret_that_is_no_address_is_said_without_it(monkeypatch):
    monkeypatch.setenv("HOOK", "hooks.slack.com/secret-path")
    with pytest.raises(BadInput, match="slack: the secret is no address") as refused:
        Webhooks([WebhookSettings.model_validate(SLACK)])
    assert "secret-path" not in str(refused.value)


def test_an_answer_that_is_no_http_and_an_address_that_cannot_be_end_no_thread(service, monkeypatch, caplog, capsys):
    webhooks = Webhooks([WebhookSettings.model_validate(SLACK)], wait_s=0.01)
    monkeypatch.setenv("HOOK", service.url.replace("secret-path", "secret path"))  # InvalidURL
    webhooks.send(notice())
    webhooks.send(notice(over=True))
    webhooks.close()
    assert webhooks.as_json()["failed"] == 2
    assert "secret" not in caplog.text + capsys.readouterr().err


class Deaf:
    """A port that takes connections and never answers."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.settings = {"format": "alertmanager", "url": f"http://127.0.0.1:{self.socket.getsockname()[1]}/"}


@pytest.fixture
def deaf():
    deaf = Deaf()
    with deaf.socket:
        yield deaf


def test_a_service_that_does_not_answer_keeps_no_other_waiting_and_no_end_of_a_run(service, deaf, monkeypatch):
    monkeypatch.setattr("pipelines.track.webhooks.WAITING", 2)
    webhooks = Webhooks([WebhookSettings.model_validate(each) for each in (deaf.settings, SLACK)])
    alarms = [Alarm.STALLED, Alarm.DISK, Alarm.CLOCK, Alarm.QUARANTINE]
    for count, alarm in enumerate(alarms, 1):
        webhooks.send(notice(alarm=alarm))
        eventually(lambda count=count: len(service.bodies) == count)
    began = time.monotonic()
    webhooks.close(1.0)
    assert time.monotonic() - began < 8  # it tries for longer
    assert webhooks.as_json()["problem"] == "alertmanager did not take `quarantine`: more notices wait than are kept"


def test_no_repeat_waits_behind_another(deaf):
    webhooks = Webhooks([WebhookSettings.model_validate(deaf.settings)])
    webhooks.send(notice(alarm=Alarm.DISK))
    for _ in range(2000):
        webhooks.send(notice(), again=True)
    webhooks.close(0.1)
    assert webhooks.as_json()["failed"] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"format": "slack", "url": "https://hooks.slack.com/x"}, "Slack's `url` is a secret"),
        ({"format": "alertmanager"}, "alertmanager needs its `url`"),
        ({"format": "alertmanager", "url": "localhost:9093"}, "begins with http"),
        ({"format": "pagerduty"}, "pagerduty needs its integration `key`"),
        ({"format": "slack", "url": {"env": "A"}, "key": {"env": "B"}}, "no other format has one"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        WebhookSettings.model_validate(settings)

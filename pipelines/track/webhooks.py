"""Alarms sent to people: Slack, PagerDuty, Alertmanager. Each alarm once, and once more when it is over.

    look      what has begun, and what has been over for HOLD_S      pure, by a clock        AlarmNotices
    silences  RUN/silences.json: alarms that nobody is called for, and until when            silences, silence
    send      a thread for each service posts JSON (`FORMATS`); nothing waits for it         Webhooks
    sent      RUN/notices.json: what a coordinator that is started again finds sent          AlarmNotices

An alarm that comes and goes is one alarm. Of alarms of one name at one look, one that names all of another's workers
is sent in its place. One that is silenced is sent when the silence ends before it does. The log of
the coordinator has all of them, webhooks or not.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.core.config.sections import WebhookSettings
from pipelines.live.rules.alarms import Alarm
from pipelines.live.status.status import StatusAlarm
from streaming.errors import BadInput, StreamingError
from streaming.store.files import read_json, write_json

HOLD_S = 30.0
"""An alarm is over once it has not been raised for this long."""
REPEAT_S = 60.0
"""Alertmanager takes an alert that is not sent again for over."""
ALL = "all"
"""In place of an alarm's name: every alarm is silenced."""
TRIES, WAIT_S, TIMEOUT_S, CLOSE_S = 4, 2.0, 10.0, 15.0
WAITING = 1000
LONGEST_MINUTES = 365 * 24 * 60

log = logging.getLogger(__name__)


class Notice(NamedTuple):
    """Beginning or end of an alarm, as it is sent. `key`: the same for its beginning and its end; `since`: ISO 8601."""

    run: str
    alarm: Alarm
    about: str
    severity: str
    words: str
    since: str
    over: bool

    @property
    def key(self) -> str:
        return f"exfm/{self.run}/{self.alarm}/{self.about}"


def _slack(notice: Notice, key: str | None) -> Any:
    if notice.over:
        return {"text": f":white_check_mark: *{notice.run}*: over: {notice.alarm} ({notice.about})"}
    sign = ":rotating_light:" if notice.severity == "alarm" else ":information_source:"
    return {"text": f"{sign} *{notice.run}*: {notice.words}\n{notice.alarm.sentence} See {notice.alarm.remedy}"}


def _pagerduty(notice: Notice, key: str | None) -> Any:
    event = {"routing_key": key, "dedup_key": notice.key, "event_action": "resolve" if notice.over else "trigger"}
    if notice.over:
        return event
    payload = {
        "summary": f"{notice.run}: {notice.words}"[:1024],
        "source": notice.run,
        "severity": "critical" if notice.severity == "alarm" else "info",
        "timestamp": notice.since,
        "component": notice.about,
        "class": str(notice.alarm),
        "custom_details": {"meaning": notice.alarm.sentence, "remedy": notice.alarm.remedy},
    }
    return event | {"payload": payload}


def _alertmanager(notice: Notice, key: str | None) -> Any:
    alert = {
        "labels": {"alertname": str(notice.alarm), "run": notice.run, "about": notice.about}
        | {"severity": "critical" if notice.severity == "alarm" else "info"},
        "annotations": {
            "summary": notice.alarm.sentence,
            "description": notice.words,
            "remedy": notice.alarm.remedy,
        },
        "startsAt": notice.since,
    }
    return [alert | ({"endsAt": datetime.now(UTC).isoformat(timespec="seconds")} if notice.over else {})]


class WebhookFormat(NamedTuple):
    """Format of a service: the body of a notice, its address if none is given, and whether it asks for repeats."""

    body: Callable[[Notice, str | None], Any]
    url: str | None = None
    repeats: bool = False


FORMATS = {
    "slack": WebhookFormat(_slack),
    "pagerduty": WebhookFormat(_pagerduty, "https://events.pagerduty.com/v2/enqueue"),
    "alertmanager": WebhookFormat(_alertmanager, repeats=True),
}


class _Service:
    """One service with a queue and a thread of its own: one that is gone keeps no other waiting."""

    def __init__(self, settings: WebhookSettings, wait_s: float) -> None:
        self.sent = self.failed = 0
        self.problem: str | None = None
        self._settings, self._wait_s = settings, wait_s
        _address(settings)  # what is not there is said now
        _key(settings)
        self._queue: queue.Queue[Notice | None] = queue.Queue(WAITING)
        self._keys: set[str] = set()  # of what waits
        self._thread = threading.Thread(target=self._work, name=f"webhook {settings.format}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, notice: Notice, *, again: bool) -> None:
        if notice.severity != "alarm" and not self._settings.notes:
            return
        if again and (not FORMATS[self._settings.format].repeats or notice.key in self._keys):
            return
        self._keys.add(notice.key)  # first: the thread may have taken it before the next line
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            self._keys.discard(notice.key)
            self._fail(notice, "more notices wait than are kept")

    def close(self, until: float) -> None:
        with suppress(queue.Full):
            self._queue.put(None, timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (notice := self._queue.get()) is not None:
            self._keys.discard(notice.key)
            for attempt in range(TRIES):
                try:
                    body = FORMATS[self._settings.format].body(notice, _key(self._settings))
                    _post(_address(self._settings), body)
                except Exception as error:  # whatever it is, the next notice is sent, and no traceback has a secret
                    if attempt == TRIES - 1:
                        self._fail(notice, _words(error))
                    else:
                        time.sleep(self._wait_s * 2**attempt)
                else:
                    self.sent += 1
                    break

    def _fail(self, notice: Notice, why: str) -> None:
        self.failed += 1
        self.problem = f"{self._settings.format} did not take `{notice.alarm}`: {why}"
        log.warning("%s", self.problem)


class Webhooks:
    """Threads that post notices, one for each service. A service that does not answer is tried TRIES times; what it
    does not take is logged and counted, and neither training nor another service waits.

    Raises BadInput where a secret is not there, or is no address.
    """

    def __init__(self, settings: Sequence[WebhookSettings], wait_s: float = WAIT_S) -> None:
        self._services = [_Service(each, wait_s) for each in settings]
        for service in self._services:
            service.start()

    def send(self, notice: Notice, *, again: bool = False) -> None:
        """Queue a notice. `again`: it was sent before, for those who ask for repeats; none is queued behind another."""
        for service in self._services:
            service.send(notice, again=again)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Send what waits, for at most `wait_s`."""
        until = time.monotonic() + wait_s
        for service in self._services:
            service.close(until)

    def as_json(self) -> dict[str, Any]:
        return {
            "sent": sum(service.sent for service in self._services),
            "failed": sum(service.failed for service in self._services),
            "problem": next((service.problem for service in self._services if service.problem), None),
        }


class AlarmNotices:
    """Tells of a run's alarms from look to look: one notice when an alarm begins, one when it is over. `clock` never
    jumps; `now` is the time of day."""

    def __init__(
        self,
        run: str,
        silences_file: Path,
        sent_file: Path,
        send: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`send(notice, again=...)`: as `Webhooks` has it. `sent_file`: what was sent and is not over, as a coordinator
        of before has left it, and as this one leaves it."""
        self._run, self._file, self._send, self._clock, self._now = run, silences_file, send, clock, now
        self._closed, self._sent_file = False, sent_file
        self._raised = {(alarm.state, alarm.about): alarm for alarm in _sent_before(sent_file)}
        self._seen_s = dict.fromkeys(self._raised, clock())
        self._sent_s = dict.fromkeys(self._raised, -REPEAT_S)

    def look(self, alarms: Sequence[StatusAlarm]) -> None:
        """Take in the active alarms."""
        now_s, hushed = self._clock(), silences(self._file, self._now())
        for alarm in alarms:
            key = alarm.state, alarm.about
            if key not in self._raised:
                log.warning("alarm raised: %s (%s)", alarm.words, alarm.remedy)
            self._raised[key], self._seen_s[key] = alarm, now_s
            again = key in self._sent_s
            of_more = (other for other in alarms if {*alarm.workers} < {*other.workers})
            if not again and any(alarm.state == other.state for other in of_more):
                continue  # the other says it
            if not ({alarm.state, ALL} & hushed.keys()) and now_s - self._sent_s.get(key, -REPEAT_S) >= REPEAT_S:
                self._send(self._notice(alarm), again=again)
                self._sent_s[key] = now_s
                if not again:
                    self._keep()
        for key, seen_s in list(self._seen_s.items()):
            if now_s - seen_s >= HOLD_S:
                self._end(key)

    def close(self, reason: str | None = None) -> None:
        """Tell that all are over, since the run is, once; `reason`: why it failed."""
        if self._closed:
            return
        self._closed = True
        for key in list(self._raised):
            self._end(key)
        if reason is not None and not ({ALL, Alarm.FAILED} & silences(self._file, self._now()).keys()):
            self._send(self._notice(_failed(self._run, reason, self._now())))

    def _end(self, key: tuple[str, str]) -> None:
        alarm = self._raised.pop(key)
        del self._seen_s[key]
        log.warning("alarm over: %s (%s)", alarm.state, alarm.about)
        if self._sent_s.pop(key, None) is not None:
            self._send(self._notice(alarm, over=True))
            self._keep()

    def _keep(self) -> None:
        try:
            write_json(self._sent_file, [self._raised[key].as_json() for key in self._sent_s])
        except StreamingError as error:
            log.warning("%s is not written: %s", self._sent_file, error)

    def _notice(self, alarm: StatusAlarm, *, over: bool = False) -> Notice:
        return Notice(self._run, Alarm(alarm.state), alarm.about, alarm.severity, alarm.words, alarm.since, over)


def send_failed(settings: Sequence[WebhookSettings], run: str, silences: Path, sent: Path, reason: str) -> None:
    """Tell, where services are set, that a run failed before it had a loop that tells it; once, until it has one.
    `silences`, `sent`: its files, as of `AlarmNotices`."""
    if not settings or any(alarm.state == Alarm.FAILED for alarm in _sent_before(sent)):
        return
    try:
        webhooks = Webhooks(settings)
        AlarmNotices(run, silences, sent, webhooks.send).close(reason)
        webhooks.close()
        write_json(sent, [_failed(run, reason, datetime.now(UTC)).as_json()])
    except StreamingError as error:  # what failed is said to whoever sees it
        log.warning("nobody was told that the run failed: %s", error)


def _sent_before(file: Path) -> list[StatusAlarm]:
    """Alarms that were sent and not said to be over. A file that cannot be read has none."""
    try:
        alarms = [StatusAlarm(**each | {"workers": tuple(each["workers"])}) for each in read_json(file) or []]
        return [alarm for alarm in alarms if alarm.state in [*Alarm]]
    except (StreamingError, TypeError, KeyError) as error:
        log.warning("%s is not read: %s", file, error)
        return []


def silences(file: Path, now: datetime) -> dict[str, str]:
    """Alarms that are silenced, and until when (ISO 8601). A file that cannot be read silences nothing."""
    try:
        stored: Mapping[str, str] = read_json(file) or {}
        return {name: until for name, until in stored.items() if datetime.fromisoformat(until) > now}
    except (StreamingError, ValueError, AttributeError, TypeError) as error:
        log.warning("%s is not read: %s", file, error)
        return {}


def silence(file: Path, names: Sequence[str], minutes: float, now: datetime) -> dict[str, str]:
    """Silence alarms (none named: all) for so long; 0 ends it. Gives all silences. Raises BadInput for another name."""
    unknown = [name for name in names if name not in [*Alarm]]
    if unknown:
        raise BadInput(f"no alarm is named `{unknown[0]}`; choose from {', '.join(Alarm)}")
    if not 0 <= minutes <= LONGEST_MINUTES:
        raise BadInput(f"--minutes {minutes:g} cannot be: give 0 to {LONGEST_MINUTES:,}, which is a year")
    until = (now + timedelta(minutes=minutes)).isoformat(timespec="seconds")
    stored = silences(file, now) | dict.fromkeys(names or [ALL], until)
    stored = {name: end for name, end in stored.items() if datetime.fromisoformat(end) > now}
    write_json(file, stored)
    return stored


def _failed(run: str, reason: str, now: datetime) -> StatusAlarm:
    alarm = Alarm.FAILED
    words = f"{alarm}: {reason}"
    return StatusAlarm(alarm, alarm.severity, (), now.isoformat(timespec="seconds"), 0.0, words, run, alarm.remedy)


def _address(settings: WebhookSettings) -> str:
    url = settings.url
    if url is None or isinstance(url, str):
        return url or str(FORMATS[settings.format].url)
    address = url.read("alarms.webhooks[].url")
    if not address.startswith(("http://", "https://")):
        raise BadInput(
            f"alarms.webhooks[].url of {settings.format}: the secret is no address: http:// or https:// first"
        )
    return address


def _key(settings: WebhookSettings) -> str | None:
    return None if settings.key is None else settings.key.read("alarms.webhooks[].key")


def _post(url: str, body: Any) -> None:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", "User-Agent": "exfm"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        answer.read()


def _words(error: Exception) -> str:
    """Words of an error, without the address, which may be a secret."""
    if isinstance(error, urllib.error.HTTPError):
        return f"it answered {error.code}"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(reason, "strerror", None) or type(reason).__name__)

"""An alarm of a run: since when, the figures and limits that it is judged by, and what to do."""

from __future__ import annotations

from typing import Any

from pipelines.cli.tools.stored_config import config_of
from pipelines.core.config.sections import AlarmLimits
from pipelines.core.run_dir.logs import as_text
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.rules.alarms import REMEDIES, Alarm
from pipelines.live.status.stored import StoredAlarm, StoredStatus, StoredWorker, read_status
from pipelines.why.answer import AlarmAnswer
from streaming.errors import BadInput

FIGURES = (
    "state", "rows_per_s", "lag_rows", "lag_known", "lag_event_time_s", "silent_s", "teacher_version",
    "teacher_lag_rows", "logit_age_s", "ne", "note", "restarts",
)  # fmt: skip
LOG_LINES = 5
LOG_BYTES = 4 << 20
"""So much of the end of the coordinator's log is searched for an alarm that is over."""


def why_alarm(run_dir: RunDir, name: str | None = None) -> list[AlarmAnswer]:
    """Every active alarm of this name, or the one that is over; None: all that are active.

    Raises BadInput where no run lies there, or no alarm has that name."""
    status, limits = read_status(run_dir.root), config_of(run_dir).alarms
    if name is None:
        return active_alarms(status, limits)
    known = [str(alarm) for alarm in Alarm]
    if name not in known:
        raise BadInput(f"no alarm is named `{name}`; choose from {', '.join(known)}")
    active = [answer for answer in active_alarms(status, limits) if answer.alarm == name]
    return active or [_over(run_dir, name, limits)]


def active_alarms(status: StoredStatus, limits: AlarmLimits) -> list[AlarmAnswer]:
    """All alarms that stand in a status."""
    return [_active(status, alarm, limits) for alarm in status.alarms]


def _active(status: StoredStatus, alarm: StoredAlarm, limits: AlarmLimits) -> AlarmAnswer:
    more = alarm.model_extra or {}
    workers = list(more.get("workers") or ())
    figures = {worker: _figures(status.workers[worker]) for worker in workers if worker in status.workers}
    words = alarm.words
    if not status.lives:
        words += "; as of the run's last status, it does not run now"
    return AlarmAnswer(
        alarm.state,
        True,
        words,
        alarm.severity,
        more.get("since"),
        more.get("for_s"),
        workers,
        figures,
        _limits(limits),
        more.get("remedy") or REMEDIES,
    )


def _figures(worker: StoredWorker) -> dict[str, Any]:
    values = worker.model_dump(mode="json")
    return {name: values[name] for name in FIGURES if values.get(name) is not None}


def _limits(limits: AlarmLimits) -> dict[str, Any]:
    return limits.model_dump(mode="json", exclude_none=True)


def _over(run_dir: RunDir, name: str, limits: AlarmLimits) -> AlarmAnswer:
    seen = _logged(run_dir, name)
    words = "it does not stand now" + ("; the coordinator's log names it last as below" if seen else "")
    return AlarmAnswer(name, False, words, limits=_limits(limits), remedy=Alarm(name).remedy, last_seen=seen)


def _logged(run_dir: RunDir, name: str) -> list[str]:
    """The last lines of the coordinator's log that name the alarm."""
    path = run_dir.logs / "coordinator.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            lines = [as_text(line) for line in file.read().decode(errors="replace").splitlines()]
    except FileNotFoundError:
        return []
    return [line for line in lines if f"{name}:" in line or f"alarm over: {name} (" in line][-LOG_LINES:]

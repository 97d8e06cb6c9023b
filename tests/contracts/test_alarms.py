"""A status that cannot lie: real runs in this process that have not failed and are not well, on a real broker."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.console import main
from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.loop.live_run import LiveRun
from pipelines.live.rules.states import RunState
from pipelines.live.status.status import RunStatus
from pipelines.live.status.stored import read_status
from pipelines.live.workers.teacher.worker import TeacherWorker
from tests.support.pipelines.commands import Command
from tests.support.pipelines.small_runs import small
from tests.support.pipelines.topics import by_hand, ipc, make_inputs, send

pytestmark = pytest.mark.broker

WITHIN_S = 90.0
FAST: dict[str, Any] = {"alarms__stalled_s": 3.0, "alarms__unread_s": 2.0}


def live(servers: str, **changes: Any) -> Config:
    """Topics that others feed, in free pace."""
    config = small(
        servers, source=None, features__history=[], pace__mode="free", pace__block_rows=200,
        augmentation__idle_s=0.3, **FAST, **changes,
    )  # fmt: skip
    make_inputs(config)
    return config


def show(config: Config, rows: list[dict[str, Any]]) -> None:
    schema, topic = config.rows.impression, config.kafka.impressions.topic
    send(str(config.kafka.bootstrap_servers), [(topic, n, ipc(rows[n::2], schema)) for n in (0, 1)])


class Watched:
    """Runs a config until `steps` are through; each waits for a status, and then acts. Keeps what it waited for."""

    def __init__(self, config: Config, root: Path, *steps: tuple[Callable[[RunStatus], bool], Callable[[], None]]):
        self.config, self.root = config, root
        self.seen: list[dict[str, Any]] = []
        self._steps, self._began = list(steps), time.monotonic()

    def attend(self, live_run: LiveRun) -> None:
        if not self._steps or time.monotonic() - self._began > WITHIN_S:
            live_run.stop("enough")
            return
        awaited, act = self._steps[0]
        if awaited(live_run.status):
            self.seen.append(read_status(self.root).as_json())
            self._steps.pop(0)
            act()

    def run(self, **options: Any) -> list[dict[str, Any]]:
        status, _ = run(self.config, RunDir(self.root), local=True, attend=self.attend, **options)
        assert status.state is RunState.STOPPED, status.reason
        assert not self._steps, f"waited in vain; last: {status.as_json()}"
        return self.seen


def told(state: str, of: str | None = None) -> Callable[[RunStatus], bool]:
    return lambda status: any(alarm.state == state and (of is None or of in alarm.workers) for alarm in status.alarms)


def nothing() -> None:
    """There is nothing to do."""


def shown(root: Path, capsys: Any, *options: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["status", "--run-dir", str(root), *options])
    assert not ended.value.code
    return str(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.ray
def test_a_broker_that_does_not_answer_leaves_the_lag_unknown(own_broker, tmp_path, capsys):
    running = own_broker.status()
    assert running is not None
    config = live(running.bootstrap_servers, kafka__request_timeout_s=5.0, kafka__connect_timeout_s=3.0)
    path, root = tmp_path / "live.yaml", tmp_path / "run"
    path.write_text(dump(config))
    command = Command(path, root, tmp_path / "log", until_end=False)
    try:
        command.until(lambda status: [a for a in status["alarms"] if a["state"] == "nothing read"])
        os.kill(running.pid, signal.SIGSTOP)
        [alarm] = command.until(lambda status: [a for a in status["alarms"] if a["state"] == "lag unknown"])
        said = " ".join(shown(root, capsys).split())
        away = json.loads(shown(root, capsys, "--json"))
        os.kill(running.pid, signal.SIGCONT)
        command.until(lambda status: not any(a["state"] == "lag unknown" for a in status["alarms"]))
        back = read_status(root).as_json()
    finally:
        os.kill(running.pid, signal.SIGCONT)
        command.clean_up()
    assert (alarm["severity"], alarm["workers"]) == ("alarm", ["augmentation"])
    assert (away["workers"]["augmentation"]["lag_rows"], away["workers"]["augmentation"]["lag_known"]) == (None, False)
    assert not any(a["state"] == "nothing read" for a in away["alarms"])  # nobody knows
    assert "lag unknown: how many rows wait for augmentation cannot be known: the broker has not answered" in said
    assert " unknown " in said
    assert (back["workers"]["augmentation"]["lag_rows"], back["workers"]["augmentation"]["lag_known"]) == (0, True)


def test_topics_that_bring_nothing_are_noted_with_the_time(broker, tmp_path, capsys):
    config = live(broker.bootstrap_servers)
    show(config, by_hand(config, 400, duplicate_rate=0.0)[0])
    screens: list[str] = []
    look = lambda: screens.append(" ".join(shown(tmp_path / "run", capsys).split()))  # noqa: E731
    silent = told("nothing read")  # the topic of feedback is, before the first impression is read
    read = lambda status: status.workers["augmentation"].lag_rows == 0  # noqa: E731
    [seen] = Watched(config, tmp_path / "run", (lambda status: silent(status) and read(status), look)).run()
    [note] = [alarm for alarm in seen["alarms"] if alarm["state"] == "nothing read"]
    assert (note["severity"], seen["workers"]["augmentation"]["lag_rows"]) == ("note", 0)
    assert "nothing read" not in (seen["reason"] or "")
    assert re.search(r"nothing read: topics? `.*` \(since \d\d:\d\d:\d\d UTC, \d+ s\)", screens[0])


def test_a_teacher_that_stands_still_stalls_a_run_in_lockstep_and_is_named(broker, tmp_path, monkeypatch, capsys):
    config = small(broker.bootstrap_servers, source__impressions=6000, pace__block_rows=256, **FAST)
    step = TeacherWorker.step
    monkeypatch.setattr(TeacherWorker, "step", lambda worker: worker.place.version < 3 and step(worker))
    [seen] = Watched(config, tmp_path / "run", (told("stalled", "augmentation"), nothing)).run()
    named = {name for alarm in seen["alarms"] if alarm["state"] == "stalled" for name in alarm["workers"]}
    assert {"teacher", "augmentation"} <= named
    assert "rows wait" in seen["reason"]
    assert "waiting for snapshot" in seen["reason"]
    assert seen["workers"]["teacher"]["alarms"] == ["stalled"]


def test_rows_that_are_refused_in_masses_are_told_with_the_commonest_reason(broker, tmp_path, capsys):
    config = live(broker.bootstrap_servers)
    good, _ = by_hand(config, 200, duplicate_rate=0.0)
    show(config, [row | {"user_id": -7} if number % 2 else row for number, row in enumerate(good)])
    screens: list[str] = []

    def look() -> None:
        screens.append(" ".join(shown(tmp_path / "run", capsys).split()))
        screens.append(shown(tmp_path / "run", capsys, "--json"))

    [seen] = Watched(config, tmp_path / "run", (told("mass dead letters"), look)).run()
    [alarm] = [alarm for alarm in seen["alarms"] if alarm["state"] == "mass dead letters"]
    assert "100 of 200 impressions were refused in the last" in alarm["words"]
    assert "most for `out_of_range:user_id` (100)" in alarm["words"]
    assert "mass dead letters: 100 of 200 impressions" in screens[0]
    assert any(each["words"].startswith("mass dead letters: ") for each in json.loads(screens[1])["alarms"])

"""`/metrics` of a run over HTTP: what is there, what is not, and that a damaged status is said."""

from __future__ import annotations

import json
import socket
import struct
import urllib.error
import urllib.request

import pytest

from pipelines.cli.console import main
from pipelines.live.rules.kinds import Kind
from pipelines.live.status.file import StatusFile
from pipelines.live.status.status import RunStatus, WorkerStatus
from pipelines.live.status.stored import earlier_attempts
from pipelines.live.workers.report import Report
from pipelines.track.endpoint import metrics_served
from streaming.errors import BadInput
from tests.support.prometheus import recorded_status

ALARM = {"state": "stalled", "severity": "alarm", "words": "stalled"}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "status.json").write_text(json.dumps(recorded_status()))
    return tmp_path


def asked(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_metrics_are_those_of_the_status_that_is_there_now(root):
    with metrics_served(root, 0) as url:
        kind, text = asked(url)
        assert kind.startswith("text/plain; version=")
        assert 'exfm_run_state{run="demo",state="running"} 1.0' in text
        (root / "status.json").write_text(json.dumps(recorded_status() | {"state": "done"}))
        assert 'exfm_run_state{run="demo",state="done"} 1.0' in asked(url)[1]
        assert asked(url, Accept="application/openmetrics-text")[1].endswith("# EOF\n")


def test_a_count_that_a_restart_takes_back_waits_and_one_that_begins_anew_begins_anew(root):
    file, worker = StatusFile(root / "status.json"), "student-feed"

    def coordinator():
        status = RunStatus.resuming("demo", earlier_attempts(root))
        file.write(status.as_json)  # before any worker has reported
        return status

    def shown(status, rows, notices):
        status.workers[worker] = WorkerStatus(worker, Kind.STUDENT, report=Report(worker, "student", rows=rows))
        status.webhooks = {"sent": notices}
        file.write(status.as_json)
        lines = dict(line.rsplit(" ", 1) for line in asked(url)[1].splitlines())
        names = f'exfm_worker_rows_total{{run="demo",worker="{worker}"}}', 'exfm_webhook_notices_total{run="demo"}'
        return [float(lines[name]) for name in names]

    (root / "status.json").unlink()
    with metrics_served(root, 0) as url:
        first = coordinator()
        assert [shown(first, 1000, 7), shown(first, 900, 7)] == [[1000, 7], [1000, 7]]
        coordinator()  # killed before a worker has reported
        assert shown(coordinator(), 700, 0) == [1000, 0]  # killed before it has caught up
        last = coordinator()
        assert [shown(last, 800, 0), shown(last, 1200, 1)] == [[1000, 0], [1200, 1]]
    assert json.loads((root / "status.json").read_text())["ahead"] == {}


def test_a_connection_that_is_reset_prints_no_traceback(root, capfd):
    with metrics_served(root, 0) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset at its end
                connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert asked(url)
    assert "Traceback" not in capfd.readouterr().err


def test_there_is_nothing_else(root):
    with metrics_served(root, 0) as url:
        for request in (url.replace("/metrics", "/"), url + "/../config.yaml"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                asked(request)
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(urllib.request.Request(url, b"{}", method="POST"), timeout=30)


def test_a_status_that_cannot_be_read_is_503_with_the_reason(root):
    (root / "status.json").write_text("{")
    with metrics_served(root, 0) as url:
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            asked(url)
        assert "status.json" in refused.value.read().decode()


@pytest.mark.parametrize("damage", [{"disk_free_bytes": "much"}, {"alarms": [ALARM | {"for_s": []}]}])
def test_a_field_that_is_no_figure_is_said_without_a_traceback(root, damage, capsys):
    (root / "status.json").write_text(json.dumps(recorded_status() | damage))
    assert exfm("metrics", root) == 2
    assert "status.json is damaged (" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said(root):
    with metrics_served(root, 0) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        with (
            pytest.raises(BadInput, match=rf"127\.0\.0\.1:{port}: Address already in use; give another"),
            metrics_served(root, port),
        ):
            pass


def test_without_a_port_nothing_is_served(root):
    with metrics_served(root, None) as url:
        assert url is None


def exfm(*arguments):
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    return ended.value.code


def test_the_command_prints_them_and_writes_files(root, tmp_path, capsys):
    assert not exfm("metrics", root)
    assert 'exfm_worker_lag_rows{run="demo",worker="teacher"}' in capsys.readouterr().out
    assert not exfm("metrics", "--files", tmp_path / "files")
    assert (tmp_path / "files" / "grafana" / "student.json").exists()
    assert exfm("metrics") == 2
    assert "missing folder of a run: RUN as the last argument; or --files DIR" in capsys.readouterr().err


def test_the_command_silences_and_says_until_when(root, capsys):
    assert not exfm("silence", root, "stalled", "--minutes", 5)
    assert capsys.readouterr().out.startswith("stalled: silent until ")
    assert not exfm("silence", root, "stalled", "--minutes", 0)
    assert capsys.readouterr().out == "no alarm is silenced\n"
    assert exfm("silence", root, "stuck") == 2
    assert "no alarm is named `stuck`; choose from" in capsys.readouterr().err

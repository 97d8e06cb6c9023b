"""A file system that becomes read-only under a run: one line, no restarts, no tracebacks."""

from __future__ import annotations

import errno
import logging

import pytest

from pipelines.core.run_dir.logs import LogForm
from pipelines.live.rules.causes import Died
from pipelines.live.rules.restarts import Cause
from pipelines.live.status.file import StatusFile
from streaming.errors import StreamingError

READ_ONLY = OSError(errno.EROFS, "Read-only file system", "/data/run/status.json")


def committing() -> StreamingError:
    error = StreamingError("21 rows could not be committed")
    error.__cause__ = READ_ONLY
    return error


@pytest.mark.parametrize("error", [READ_ONLY, committing(), Exception("Read-only file system (os error 30)")])
def test_a_worker_is_not_started_again_and_says_what_to_do(error):
    died = Died.of(error)
    assert died.cause is Cause.PERMANENT
    assert "the file system has become read-only" in str(died)
    assert "mount it writable again" in str(died)


def test_status_and_logs_are_left_out_without_a_word_on_the_screen(tmp_path, monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise READ_ONLY

    status, handler = StatusFile(tmp_path / "status.json"), LogForm(1.0).handler(tmp_path / "worker.log")
    status.write(lambda: {"state": "running"})
    before = status.path.read_text()
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    status.write(lambda: {"state": "failed"})
    assert status.path.read_text() == before
    monkeypatch.setattr(handler.stream, "write", refuse, raising=False)
    handler.emit(logging.LogRecord("name", logging.ERROR, __file__, 1, "worker failed", (), None))
    assert capsys.readouterr() == ("", "")

"""Logs as one JSON object a line: whatever is said, and as people read it."""

from __future__ import annotations

import json
import logging

import pytest

from pipelines.core.run_dir.logs import LogForm, LogPosition, as_text


@pytest.fixture
def log(tmp_path):
    position = LogPosition()
    handler = LogForm(1.0, "json", "demo").handler(tmp_path / "teacher.log", lambda: position)
    logger = logging.Logger("of.a.part")
    logger.addHandler(handler)
    yield logger, tmp_path / "teacher.log"
    handler.close()


def test_a_line_is_an_object_whatever_is_said(log):
    logger, path = log
    logger.warning('a "quoted"\nline of %s', "straße \x00")
    try:
        raise KeyError("gone")
    except KeyError:
        logger.exception("failed")
    said, failed = (json.loads(line) for line in path.read_text().splitlines())
    assert said["message"] == 'a "quoted"\nline of straße \x00'
    assert (said["level"], said["logger"], said["run"], said["worker"]) == ("WARNING", "of.a.part", "demo", "teacher")
    assert said["time"].endswith("Z")
    assert not {"lake_seq", "block", "trace_id", "exc"} & said.keys()
    assert failed["exc"].splitlines()[-1] == "KeyError: 'gone'"


def test_people_read_it_with_its_position_and_its_traceback(tmp_path):
    handler = LogForm(1.0, "json", "demo").handler(tmp_path / "a.log", lambda: LogPosition(99, 7, "0f" * 16))
    logger = logging.Logger("of.a.part")
    logger.addHandler(handler)
    try:
        raise KeyError("gone")
    except KeyError:
        logger.exception("failed")
    handler.close()
    first, *more = as_text((tmp_path / "a.log").read_text().rstrip("\n")).splitlines()
    assert first.endswith("Z ERROR of.a.part failed (lake_seq 99, block 7)")
    assert (more[0], more[-1]) == ("Traceback (most recent call last):", "KeyError: 'gone'")


@pytest.mark.parametrize("line", ["", "{", '{"time": 1', '{"a": "b"}', "{} is no line of ours"])
def test_what_is_no_such_line_is_shown_as_it_is(line):
    assert as_text(line) == line

"""The end of a log that goes on: every line once, however often the log is rotated."""

from __future__ import annotations

from itertools import count, islice

import pytest

from pipelines.cli.tools.log_tail import log_lines


@pytest.mark.parametrize("rotations", [3, 1500])
def test_a_log_is_followed_through_its_rotations(tmp_path, monkeypatch, rotations):
    log, numbers = tmp_path / "logs" / "teacher.log", count(1)
    log.parent.mkdir()
    log.write_text("line 0\n")

    def rotate(interval_s):
        with log.open("a") as file:  # while nobody looks, and just before the rotation
            file.write(f"line {next(numbers)}\n")
        log.replace(log.with_name("teacher.log.1"))
        log.write_text(f"line {next(numbers)}\n")

    monkeypatch.setattr("pipelines.cli.tools.log_tail.time.sleep", rotate)
    wanted = 2 * rotations + 1
    followed = log_lines(tmp_path, "teacher", 5, follow=True)
    assert list(islice(followed, wanted)) == [f"line {n}" for n in range(wanted)]

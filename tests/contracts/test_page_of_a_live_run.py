"""`exfm ui` beside a run that lives: ten thousand requests change no digit of it, and its page is drawn whole.

EXFM_SCREENSHOTS names a folder for the pictures of the page.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.core.config.settings import load
from streaming.store.files import read_json
from tests.support.browser import Browser, needs_browser
from tests.support.pipelines.commands import COMMAND, Command, worker_pid
from tests.support.pipelines.shown_runs import CUT_OFF, DRAWN
from tests.support.places import CONFIGS

IMPRESSIONS, REQUESTS, CLIENTS = 60_000, 10_000, 8
STUDENTS = [student.name for student in load(CONFIGS / "demo.yaml").students]

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(3600)]


@contextmanager
def demo(folder: Path, *settings: str):
    """The demo in a process of its own, with its own broker and Ray."""
    folder.mkdir()
    options = [word for setting in (f"source.impressions={IMPRESSIONS}", *settings) for word in ("--set", setting)]
    command = Command(CONFIGS / "demo.yaml", folder / "run", folder / "log", 1800, options=options)
    try:
        yield command
    finally:
        command.clean_up()


@contextmanager
def page_of(run: Path):
    """`exfm ui` over a run; gives its port."""
    words = [sys.executable, "-c", COMMAND, "ui", str(run), "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r":(\d+)/ ", process.stderr.readline())
        assert found is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield int(found[1])
    finally:
        process.kill()
        process.wait()


def paths(number: int) -> str:
    """What a browser asks for most, and now and then what a person does."""
    student = STUDENTS[number % len(STUDENTS)]
    if number % 1000 == 500:
        return f"/why.json?of=impression&name={number}"
    if number % 50 == 25:
        return ("/", f"/why.json?of=student&name={student}", "/why.json?of=alarm&name=stalled")[number // 50 % 3]
    return f"/curves.json?student={student}" if number % 3 == 0 else "/view.json"


def ask(port: int, numbers: range) -> Counter[int]:
    """Answers by code, over one connection."""
    connection, codes = http.client.HTTPConnection("127.0.0.1", port, timeout=300), Counter()
    for number in numbers:
        connection.request("GET", paths(number))
        answer = connection.getresponse()
        answer.read()
        codes[answer.status] += 1
    connection.close()
    return codes


def figures(run: Path):
    """Figures of every student, and counts of every row; not of messages, which the source makes as it likes."""
    summary = read_json(run / "summary.json")
    assert summary is not None
    return summary["students"], {name: count for name, count in summary["counts"].items() if name != "offsets"}


def test_ten_thousand_requests_change_no_digit_of_a_run(tmp_path):
    with demo(tmp_path / "alone") as alone:
        assert alone.wait() == 0, alone.log.read_text()[-3000:]
    with demo(tmp_path / "watched", "source.rate=600") as watched:  # it lasts longer than the requests
        watched.until(worker_pid("student-feed", 1000))
        with page_of(watched.run_dir.root) as port, ThreadPoolExecutor(CLIENTS) as threads:
            shares = [range(first, REQUESTS, CLIENTS) for first in range(CLIENTS)]
            codes = sum(threads.map(lambda numbers: ask(port, numbers), shares), Counter())
            assert watched.process.poll() is None, "the run was over before the requests were"
        assert watched.wait() == 0, watched.log.read_text()[-3000:]
    assert codes == {200: REQUESTS}
    assert figures(tmp_path / "watched" / "run") == figures(tmp_path / "alone" / "run")


@needs_browser
def test_the_page_of_a_live_run_is_drawn_whole(tmp_path):
    pictures = Path(os.environ.get("EXFM_SCREENSHOTS", tmp_path))
    settings = ("source.rate=600", "student_defaults.checkpoint_every_rows=2000")  # a checkpoint adds to the curves
    with demo(tmp_path / "live", *settings) as live:
        live.until(worker_pid("student-feed", 5000))
        with page_of(live.run_dir.root) as port, Browser(tmp_path / "profile") as browser:
            for width in (375, 1280):
                for dark in (False, True):
                    browser.open(f"http://127.0.0.1:{port}/", width, dark=dark)
                    browser.until(DRAWN)
                    browser.screenshot(pictures / f"ui-{width}{'-dark' if dark else ''}.png", 3000)
                    assert browser.asked(CUT_OFF) == []
                    assert "rows/s" in browser.asked("document.querySelector('#picture').textContent")
                    assert live.process.poll() is None, "the run was over before its page was drawn"

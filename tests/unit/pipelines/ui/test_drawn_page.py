"""The page in a browser: what is drawn, on a phone as on a desk, and how soon. Skipped where no Chromium is
installed."""

from __future__ import annotations

import os

import pytest

from pipelines.core.access import Access
from pipelines.core.run_dir.paths import RunDir
from pipelines.ui.server import PageServer, RunPage
from tests.support.browser import Browser, needs_browser
from tests.support.http_servers import served
from tests.support.pipelines.shown_runs import CUT_OFF, DRAWN, shown_run

FIRST_PAINT_MS = 500
LOADS = 8

pytestmark = needs_browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    root = tmp_path_factory.mktemp("shown") / "run"
    shown_run(root, students=50, days=7, rows=500)
    with served(PageServer(RunPage(RunDir(root)), Access(), 0)) as server:
        yield f"http://127.0.0.1:{server.port}/"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [375, 1280])
def test_flow_alarms_students_and_curves_are_drawn_and_nothing_is_cut_off(address, browser, width, dark):
    browser.open(address, width, dark=dark)
    browser.until(DRAWN)
    titles = browser.asked("[...document.querySelectorAll('#picture .title')].map((title) => title.textContent)")
    assert titles == ["Source", "Kafka", "Augmentation", "Lake", "Teacher", "50 students", "Registry"]
    assert browser.asked("document.querySelector('#picture').className") == ("tall" if width < 700 else "")
    assert browser.asked("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)"
    )
    text = browser.asked("document.body.innerText")
    assert "stalled: student-feed makes no progress" in text
    assert "null:<b>age</b>" in text
    assert browser.asked("document.querySelectorAll('[id^=student-]').length") == 51  # the table, a button for each
    assert browser.asked("document.querySelectorAll('#charts path.m4').length") >= 2  # a champion, and its legend
    assert browser.asked(CUT_OFF) == []


@pytest.mark.check
def test_the_first_paint_of_fifty_students_and_a_week_comes_within_half_a_second(address, browser):
    """The soonest of several loads: what else the machine does is not the page's."""
    if os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip(f"cores are taken (load {os.getloadavg()[0]:.0f}): a time would be of what else runs here")
    paints = []
    for _ in range(LOADS):
        browser.open(address, 1280)
        browser.until("performance.getEntriesByName('first-contentful-paint').length")
        paints.append(browser.asked("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        if min(paints) <= FIRST_PAINT_MS:
            break
    assert min(paints) <= FIRST_PAINT_MS, paints

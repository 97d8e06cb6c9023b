"""The page in a browser: what is drawn, on a phone as on a desk. Skipped where no Chromium is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from pipelines.core.access import Access
from pipelines.core.run_dir.paths import RunDir
from pipelines.ui.server import PageServer, RunPage
from tests.support.http_servers import served
from tests.support.pipelines.shown_runs import shown_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser here: none of {', '.join(BROWSERS)}")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    root = tmp_path_factory.mktemp("shown") / "run"
    shown_run(root, students=50, days=7, rows=500)
    with served(PageServer(RunPage(RunDir(root)), Access(), 0)) as server:
        yield f"http://127.0.0.1:{server.port}/"


def drawn(address: str, profile: object, width: int) -> str:
    """The document as the browser has it after its script has run. Virtual time may be over before the browser says
    which curves are in sight: then it is opened once more."""
    text = ""
    for _ in range(4):
        if "curve m0" in (text := opened(address, profile, width)):
            break
    return text


def opened(address: str, profile: object, width: int) -> str:
    own = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses root inside its sandbox
    options = ["--headless", "--disable-gpu", "--dump-dom", "--virtual-time-budget=4000", *own]
    options += [f"--user-data-dir={profile}", f"--window-size={width},6000"]
    done = subprocess.run([str(BROWSER), *options, address], capture_output=True, text=True, timeout=240, check=True)
    return done.stdout


@pytest.mark.parametrize("width", [500, 1280])  # headless windows are no narrower than 500
def test_flow_alarms_students_and_curves_are_drawn(address, tmp_path, width):
    text = drawn(address, tmp_path, width)
    picture = text[text.index('id="picture"') : text.index('id="counts"')]
    titles = re.findall(r'class="title"[^>]*>([^<]*)<', picture)
    assert titles == ["Source", "Kafka", "Augmentation", "Lake", "Teacher", "50 students", "Registry"]
    assert ('class="tall"' in text) == (width < 700)
    assert "stalled: student-feed makes no progress" in text
    assert text.count('id="student-') == 51  # the table, and a button for each
    assert "null:&lt;b&gt;age&lt;/b&gt;" in text
    assert "<b>age</b>" not in text
    assert text.count('class="curve m0"') >= 2  # those in sight, and their legends

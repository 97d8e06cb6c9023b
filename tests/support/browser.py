"""A headless Chromium, driven through its debugging pipe: any width, light and dark, screenshots. Nothing is installed
for it; tests that need one are skipped where there is none."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser here: none of {', '.join(NAMES)}")
OPTIONS = ("--headless", "--disable-gpu", "--disable-background-networking", "--remote-debugging-pipe")


class Browser:
    """A context: one page of a browser that keeps its profile in `profile`."""

    def __init__(self, profile: Path) -> None:
        own = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses root inside its sandbox
        asks, self._ask = os.pipe()
        answer, answers = os.pipe()
        words = [str(BROWSER), *OPTIONS, *own, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$0" "$@" 3</proc/self/fd/{asks} 4>/proc/self/fd/{answers}', *words],
            pass_fds=(asks, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(asks)
        os.close(answers)
        self._answers, self._number, self._session = os.fdopen(answer, "rb"), 0, ""

    def __enter__(self) -> Browser:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ask)
        self._answers.close()

    def open(self, address: str, width: int, height: int = 4000, *, dark: bool = False) -> None:
        """Open an address in a window of this size; returns once it has been loaded. What is in sight is drawn first,
        so a tall window shows more."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def asked(self, expression: str) -> Any:
        """Value of an expression of JavaScript; a promise is waited for."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str, within_s: float = 60) -> None:
        """Wait until an expression holds."""
        look = f"""(async () => {{
            const end = Date.now() + {1000 * within_s};
            while (!({expression}) && Date.now() < end) await new Promise((go) => setTimeout(go, 50));
            return Boolean({expression});
        }})()"""
        assert self.asked(look), f"not within {within_s} s: {expression}"

    def screenshot(self, path: Path, height: int | None = None) -> None:
        """What is in the window, or the upper part of it, as PNG."""
        width = self.asked("innerWidth")
        clip = {} if height is None else {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        found = self._call("Page.captureScreenshot", format="png", **clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method: str, **values: Any) -> Any:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": values, **session}
        os.write(self._ask, json.dumps(message).encode() + b"\0")
        while True:  # what comes between is an event
            answer = json.loads(self._next())
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self) -> bytes:
        text = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        return bytes(text)

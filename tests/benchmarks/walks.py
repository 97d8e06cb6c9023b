"""Files that a reader opens to follow the code: first-party files whose functions run on four walks.

python -m tests.benchmarks.walks        writes nothing; runs the demo, shorter, in one process
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from typer.testing import CliRunner

from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import Server
from pipelines.serve.model_store import model_store_of
from tests.support.pipelines.served_runs import ROWS, ask, run_with_versions
from tests.support.places import ROOT

PACKAGES = tuple(f"{ROOT / name}/" for name in ("exfm", "streaming", "pipelines"))
DEMO = ROOT / "configs" / "demo.yaml"


class Walk:
    """Files entered while any of `within` runs (of everything, where none is named), until `until` returns.

    Functions are named as in `AugmentationWorker.step`. Code that runs when a module is imported does not count.
    """

    def __init__(self, name: str, within: tuple[str, ...] = (), until: str | None = None) -> None:
        self.name, self.within, self.until = name, within, until
        self.files: dict[str, None] = {}  # in the order of their first call
        self.over = False
        self._depth = threading.local()

    def note(self, event: str, code: CodeType) -> None:
        """Take one call or return of a first-party function."""
        if self.over:
            return
        depth: int = getattr(self._depth, "value", 0)
        if event == "call":
            if code.co_qualname in self.within:
                self._depth.value = depth = depth + 1
            if depth or not self.within:
                self.files.setdefault(str(Path(code.co_filename).relative_to(ROOT)))
            return
        if code.co_qualname in self.within:
            self._depth.value = depth - 1
        self.over = code.co_qualname == self.until and bool(depth or not self.within)


def followed(walks: list[Walk], action: Callable[[], Any]) -> None:
    """Run `action`, and note what it calls in every thread that it starts."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(PACKAGES) and code.co_name != "<module>":
            for walk in walks:
                walk.note(event, code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def command(*args: str) -> Callable[[], None]:
    """A call of `exfm` in this process."""
    from pipelines.cli.console import app

    def call() -> None:
        result = CliRunner().invoke(app, args)
        if result.exit_code:
            raise RuntimeError(f"exfm {' '.join(args)}: {result.output}") from result.exception

    return call


def served_request(root: Path) -> Callable[[], None]:
    """A prediction request to a server of one version, without a network; `root`: a new run directory."""
    run_with_versions(root, "v00000100")
    server = Server(model_store_of(RunDir(root), ["feed"], "champion"))
    body = json.dumps({"rows": ROWS}).encode()

    def request() -> None:
        answer = ask(server.app, "POST", "/v1/models/feed:predict", body)
        if answer.code != 200:
            raise RuntimeError(f"the server answered {answer.code}: {answer.body.decode()}")

    return request


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        start = Walk("`exfm stream` to the first row settled", until="SettledFeed.next")
        gradient = Walk(
            "an impression to a gradient",
            within=("AugmentationWorker.step", "StudentWorker.step"),
            until="Student.train_step",
        )
        small = ["--until-end", "--local", "--set", "source.impressions=20000"]
        followed([start, gradient], command("stream", str(DEMO), "--run-dir", run, *small))
        replay = Walk("a replay")
        arms = ["--arm", "none: model.arm.kind=none", "--students", "feed", "--jobs", "1"]
        followed([replay], command("replay", run, *arms, "--out", f"{folder}/replay"))
        request = Walk("a served request")
        followed([request], served_request(Path(folder) / "served"))
        for walk in (start, gradient, replay, request):
            print(f"{walk.name}: {len(walk.files)} files")
            for file in walk.files:
                print(f"    {file}")


if __name__ == "__main__":
    main()

"""A student in training and a server that follows it live, each in a process of its own: what was learned a moment ago
answers, to the last bit, whichever of the two is killed."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.config.settings import dump, load
from pipelines.core.run_dir.paths import RunDir
from tests.support.pipelines.served_runs import promote, run_with_versions
from tests.support.pipelines.serving_command import ServeCommand, serving
from tests.support.pipelines.training_student import TrainingStudent
from tests.support.waiting import PATIENCE_S, eventually

V1, V2 = "v00000100", "v00000200"


def a_run(root: Path, *settings: str) -> Any:
    ledger = run_with_versions(root, V1, V2)
    path = RunDir(root).config
    path.write_text(dump(load(path, ["students.0.checkpoint_every_rows=1600", *settings])))
    return ledger


def number_of(version: str) -> int:
    return int(version.partition("+")[2] or 0)


def until(found: Callable[[], Any], server: ServeCommand) -> Any:
    value = eventually(lambda: server.process.poll() is not None or found(), look_s=0.02)
    assert server.process.poll() is None
    return value


def answering(server: ServeCommand, above: int) -> int:
    """The number of the version that answers, once it is above this."""
    return int(until(lambda: (n := number_of(server.ask()[1].get("version", ""))) > above and n, server))


def model_of(server: ServeCommand) -> dict[str, Any]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/models", timeout=PATIENCE_S).read()
    (model,) = json.loads(text)["models"]
    return dict(model)


@pytest.mark.check
def test_what_a_student_learned_answers_within_two_seconds_to_the_last_bit_and_through_kills(tmp_path):
    ledger = a_run(tmp_path, "registry.increments_every_s=0.5")
    student = TrainingStudent(tmp_path)
    try:
        with serving(tmp_path, "--follow", "live") as server:
            seen = answering(server, above=0)
            seen = answering(server, above=seen + 6)
            fresh = until(lambda: within_two_seconds(server), server)
            promote(ledger, V2)  # what is served live follows the student, and nothing else
            student.kill()  # somewhere in its steps, or while it writes
            code, said = server.ask()
            assert (code, number_of(said["version"]) >= seen) == (200, True)
            student = TrainingStudent(tmp_path)
            server.kill()  # while it reads, or not
        with serving(tmp_path, "--follow", "live") as server:
            answering(server, above=seen + 2)
            end_alike(student, server)
    finally:
        student.kill()
    print(fresh)


def within_two_seconds(server: ServeCommand) -> dict[str, Any] | None:
    """What is known of half a dozen increments or more, where most of them answered so soon: any of them, and its
    first request, may have waited for a core."""
    server.ask()
    fresh = dict(model_of(server)["freshness"])
    return fresh if fresh["answered"]["count"] >= 6 and fresh["answered"]["p50_s"] <= 2 else None


def end_alike(student: TrainingStudent, server: ServeCommand) -> None:
    """The student ends; what it learned last is what answers, to the bit."""
    last = student.end()
    name = f"v{last['lake_seq'] + 1:08d}+"
    said = until(lambda: (now := server.ask()[1])["version"].startswith(name) and now, server)
    assert [row["ctr"] for row in said["predictions"]] == last["predictions"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs g++, which is not installed")
@pytest.mark.timeout(900)
def test_increments_are_served_as_compiled_code_too(tmp_path):
    a_run(tmp_path, "registry.increments_every_s=0.5")
    student = TrainingStudent(tmp_path)
    try:
        with serving(tmp_path, "--follow", "live", "--compile") as server:
            seen = answering(server, above=0)
            answering(server, above=seen + 3)
            assert model_of(server)["compiled"] is True
            last = student.end()
            name = f"v{last['lake_seq'] + 1:08d}+"
            said = until(lambda: (now := server.ask()[1])["version"].startswith(name) and now, server)
            found = [row["ctr"] for row in said["predictions"]]
            assert found == pytest.approx(last["predictions"], abs=1e-6)  # sums in another order
    finally:
        student.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hail_of_kills_on_the_student_costs_no_answer(tmp_path):
    a_run(tmp_path, "registry.increments_every_s=0.1")
    student = TrainingStudent(tmp_path, 200)
    codes: Counter[int] = Counter()
    try:
        with serving(tmp_path, "--follow", "live") as server:
            seen = answering(server, above=0)
            for life in range(15):
                until_s = time.monotonic() + 1 + 0.37 * (life % 5)
                while time.monotonic() < until_s:
                    codes[server.ask()[0]] += 1
                student.kill()
                codes[server.ask()[0]] += 1
                student = TrainingStudent(tmp_path, 200)
                seen = answering(server, above=seen)
            end_alike(student, server)
    finally:
        student.kill()
    assert set(codes) == {200}

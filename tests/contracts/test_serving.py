"""`exfm serve` in processes of its own: versions are swapped under load, and a process that is killed is replaced."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.support.certificates import certificate
from tests.support.pipelines.commands import COMMAND
from tests.support.pipelines.served_runs import promote, run_with_versions
from tests.support.pipelines.serving_command import predicted, serving
from tests.support.waiting import PATIENCE_S, eventually

V1, V2 = "v00000100", "v00000200"


def swapped_under_load(root: Path, swaps: int) -> None:
    """Two callers ask without a pause while another champion is named again and again: each answer is a version's,
    whole, and no request fails."""
    ledger = run_with_versions(root, V1, V2)
    known = {version: predicted(root, version) for version in (V1, V2)}
    assert known[V1] != known[V2]
    answers: Counter[tuple[int, str, bool]] = Counter()
    over = threading.Event()
    with serving(root) as server:

        def load() -> None:
            while not over.is_set():
                code, said = server.ask()
                own = [row["ctr"] for row in said.get("predictions", ())] == known.get(said.get("version", ""))
                answers[code, said.get("version", ""), own] += 1

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        for swap in range(swaps):
            version = (V2, V1)[swap % 2]
            promote(ledger, version)
            eventually(lambda version=version: server.ask()[1]["version"] == version, look_s=0.02)
        over.set()
        for thread in threads:
            thread.join()
    assert set(answers) == {(200, V1, True), (200, V2, True)}


def test_versions_are_swapped_under_load_without_a_failed_or_a_mixed_answer(tmp_path):
    swapped_under_load(tmp_path, 6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_swaps_under_load_leave_no_failed_or_mixed_answer(tmp_path):
    swapped_under_load(tmp_path, 1000)


@pytest.mark.check
def test_a_process_that_is_killed_under_load_is_back_within_seconds(tmp_path):
    """It was forked from a process that has everything imported; the port answers by the others meanwhile. What a
    dying process had begun to answer is lost, and nothing else."""
    run_with_versions(tmp_path, V1)
    over, lost, answered = threading.Event(), [], []
    with serving(tmp_path, "--processes", "2") as server:

        def load() -> None:
            while not over.is_set():
                try:
                    answered.append(server.ask()[0])
                except (ConnectionError, http.client.HTTPException) as error:
                    lost.append(error)

        doomed = min(server.answering(2))
        forked_from = psutil.Process(doomed).ppid()
        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(2.5)  # work: a process that lives too short a time is not started at once again
        os.kill(doomed, signal.SIGKILL)
        began = time.monotonic()
        fresh = server.answering(2, without=doomed)
        took = time.monotonic() - began
        parents = {psutil.Process(pid).ppid() for pid in fresh}
        over.set()
        for thread in threads:
            thread.join()
    assert len(fresh) == 2
    assert parents == {forked_from} != {server.process.pid}
    assert set(answered) == {200}
    assert len(lost) <= len(threads)
    print(f"answers again after {took:.2f} s")
    assert took < PATIENCE_S / 2  # 3 s on a machine at rest (docs/guides/serve.md); tests share theirs


def test_a_process_that_is_killed_is_replaced_and_the_port_goes_on_answering(tmp_path):
    run_with_versions(tmp_path, V1)
    with serving(tmp_path, "--processes", "2") as server:
        assert server.ask()[0] == 200
        doomed = min(server.answering(2))
        os.kill(doomed, signal.SIGKILL)
        assert [server.ask()[0] for _ in range(20)] == [200] * 20
        started = [psutil.Process(pid) for pid in server.answering(2, without=doomed)]
    psutil.wait_procs(started, timeout=PATIENCE_S)
    assert not any(process.is_running() for process in started)


@pytest.mark.check
def test_processes_speak_tls_and_ask_for_the_token_of_a_file(tmp_path):
    run_with_versions(tmp_path / "run", V1)
    files, token = certificate(tmp_path), tmp_path / "token"
    token.write_text("s3cret-token-of-this-server\n")
    options = ("--tls-cert", files.cert, "--tls-key", files.key, "--token-file", token, "--processes", 2)
    with serving(tmp_path / "run", *map(str, options)) as server:
        request = urllib.request.Request(f"https://127.0.0.1:{server.port}/v1/models")
        trusting = ssl.create_default_context(cafile=files.cert)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=PATIENCE_S, context=trusting)
        request.add_header("Authorization", "Bearer s3cret-token-of-this-server")
        for _ in range(4):
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=trusting) as answer:
                assert V1 in answer.read().decode()


@pytest.mark.check
def test_a_port_that_is_taken_is_said_in_words(tmp_path):
    run_with_versions(tmp_path, V1)
    with serving(tmp_path) as server:
        words = ["serve", "--run-dir", str(tmp_path), "--port", str(server.port)]
        done = subprocess.run([sys.executable, "-c", COMMAND, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{server.port}" in done.stderr
    assert "Traceback" not in done.stderr

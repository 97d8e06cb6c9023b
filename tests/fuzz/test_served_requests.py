"""Requests of every kind, many at a time, against a server behind real sockets: each gets its own answer or words,
and the server goes on."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import RequestLimits, Server
from pipelines.serve.model_store import model_store_of
from pipelines.serve.prediction_request import PredictionRequest
from tests.support.pipelines.odd_requests import KINDS, MAX_BYTES, MAX_ROWS, Odd, odd_request, sound
from tests.support.pipelines.odd_requests import http as request_of
from tests.support.pipelines.served_runs import live, run_with_versions
from tests.support.waiting import PATIENCE_S, eventually

V1 = "v00000100"
BODY_S, REQUEST_S = 1.5, 2.0
CALLERS = 8


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    run_with_versions(root, V1)
    server = Server(model_store_of(RunDir(root), ["feed"], "champion"), RequestLimits(MAX_BYTES, MAX_ROWS, BODY_S))
    access = logging.getLogger("exfm.access")
    access.disabled = True
    with live(server, REQUEST_S, max_bytes=MAX_BYTES) as port:
        yield port, model_store_of(RunDir(root), ["feed"], "champion").version("feed")
    access.disabled = False


def said(odd: Odd, port: int) -> tuple[int, bytes] | None:
    """The code and the body of the answer; None where the connection was closed without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as at:
        try:
            for n, part in enumerate(odd.parts):
                time.sleep(0.02 * (n > 0))  # work: parts of a request come one after the other
                at.sendall(part)
            if odd.leaves:
                return None
            response = http.client.HTTPResponse(at)
            response.begin()
            return response.status, response.read()
        except (ConnectionError, http.client.HTTPException):
            return None


def trouble(odd: Odd, answer: tuple[int, bytes] | None, known: Any) -> str | None:
    """What is wrong with an answer."""
    if answer is None:
        return f"{odd.kind}: no answer" if odd.codes and not odd.leaves else None
    code, body = answer
    if code >= 500 or (odd.codes and code not in odd.codes):
        return f"{odd.kind}: {code} {body!r}"
    if code >= 400 and not body.strip():
        return f"{odd.kind}: {code} without a word"
    if odd.rows is not None:
        columns = {name: [row[name] for row in odd.rows] for name in odd.rows[0]}
        own = known.answer(PredictionRequest(columns, {}, len(odd.rows))).probabilities[:, 0].tolist()
        if [row["ctr"] for row in json.loads(body)["predictions"]] != own:
            return f"{odd.kind}: the predictions of other rows: {body!r}"
    return None


def fuzz(served: Any, count: int, seed: int) -> Counter[str]:
    """How many requests of each kind and code were answered."""
    port, known = served
    found: list[str] = []
    codes: Counter[str] = Counter()
    lock = threading.Lock()

    def call(caller: int) -> None:
        random = np.random.default_rng([seed, caller])
        for _ in range(count // CALLERS):
            odd = odd_request(random)
            answer = said(odd, port)
            wrong = trouble(odd, answer, known)
            with lock:
                codes[f"{odd.kind} {answer and answer[0]}"] += 1
                found.extend([wrong] if wrong else [])

    callers = [threading.Thread(target=call, args=(n,)) for n in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not found, found[:5]
    odd = sound(np.random.default_rng(0))
    assert trouble(odd, said(odd, port), known) is None  # it lives
    return codes


def test_each_of_some_hundred_requests_gets_its_own_answer_or_words(served):
    codes = fuzz(served, 600, seed=0)
    assert codes["sound 200"] > 100
    assert len({kind.rsplit(" ", 1)[0] for kind in codes}) >= len(KINDS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 6))
def test_each_of_many_thousand_requests_gets_its_own_answer_or_words(served, seed):
    assert fuzz(served, 4000, seed=seed).total() == 4000


def test_connections_that_send_nothing_or_dribble_do_not_lock_others_out(served):
    """As many as there may be, each with half a request; they are closed, and everybody else is answered."""
    port, known = served
    half = request_of(b"{}")[:40]
    slow = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(256)]
    for n, each in enumerate(slow):
        each.sendall(half if n % 2 else b"")
    odd = sound(np.random.default_rng(1))
    answer = None

    def served_again() -> bool:
        nonlocal answer
        answer = said(odd, port)
        return answer is None or answer[0] != 503

    eventually(served_again, look_s=0.1)
    assert trouble(odd, answer, known) is None
    words = [each.recv(1000) for each in slow]
    for each in slow:
        each.close()
    assert all(b"did not arrive within" in word for word in words), Counter(word[:20] for word in words)


def sent_without_end(port: int, first: bytes, again: bytes) -> tuple[int, bytes]:
    """How many bytes the server took before it closed the connection, at most 64 MB; and what it said."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as at:
        sent = 0
        try:
            at.sendall(first)
            while sent < 64 << 20:
                at.sendall(again)
                sent += len(again)
        except ConnectionError:
            pass
        try:
            return sent, at.recv(1000)
        except ConnectionError:
            return sent, b""


@pytest.mark.parametrize("endless", ["path", "name", "value", "headers", "trailers", "chunks"])
def test_a_request_that_is_sent_without_end_is_cut_off(served, endless):
    """By its length, long before its time is over: what cannot be a request's head, or a body of the allowed size."""
    port, known = served
    head = request_of(b"").split(b"content-length")[0]
    chunked = head + b"transfer-encoding: chunked\r\n\r\n"
    first, again = {
        "path": (b"POST /", b"a" * 4096),
        "name": (head, b"a" * 4096),
        "value": (head + b"a: ", b"a" * 4096),
        "headers": (head, b"a: b\r\n" * 1000),
        "trailers": (chunked + b"0\r\n", b"a: b\r\n" * 1000),
        "chunks": (chunked, b"1\r\n \r\n" * 1000),
    }[endless]
    sent, said_ = sent_without_end(port, first, again)
    assert sent < 32 << 20  # what the two ends' buffers hold is among it
    assert said_ == b"" or said_.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")), said_
    odd = sound(np.random.default_rng(2))
    assert trouble(odd, said(odd, port), known) is None


def test_a_body_that_goes_on_after_its_refusal_ends_with_the_connection(served):
    port, _ = served
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as at:
        at.sendall(request_of(b"", content_length=10**12))
        began = time.monotonic()

        def dribble() -> None:
            while time.monotonic() - began < PATIENCE_S:
                at.sendall(b" " * 1000)
                time.sleep(0.02)  # work: a body that dribbles

        with pytest.raises(ConnectionError):
            dribble()
    assert time.monotonic() - began < PATIENCE_S / 2

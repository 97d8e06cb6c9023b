"""Requests of every kind that a server may meet: sound, malformed, huge, slow, cut; and what may be said to each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.serve.prediction_request import ARROW, JSON
from streaming.messages.ipc import write_ipc

PREDICT = "/v1/models/feed:predict"
MAX_BYTES, MAX_ROWS = 32_000, 60
"""The limits that the requests here are made for."""


class Odd(NamedTuple):
    """What is sent, in `parts` with a pause before each but the first; `codes` that may answer, none: the connection
    may also just be closed. `rows` of a sound request, whose predictions are known."""

    kind: str
    parts: list[bytes]
    codes: tuple[int, ...]
    rows: list[dict[str, Any]] | None = None
    leaves: bool = False  # without waiting for an answer


def http(body: bytes, kind: str = JSON, path: str = PREDICT, method: str = "POST", **headers: Any) -> bytes:
    told = {"host": "x", "content-type": kind, "content-length": len(body)} | headers
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def rows(random: np.random.Generator, most: int = 20) -> list[dict[str, Any]]:
    count = int(random.integers(1, most))
    users, ads = random.integers(0, 1000, count).tolist(), random.integers(0, 1000, count).tolist()
    bids = random.random(count).astype(np.float32).tolist()
    return [{"user_id": user, "ad_id": ad, "bid": bid} for user, ad, bid in zip(users, ads, bids, strict=True)]


def changed(body: bytes, random: np.random.Generator) -> bytes:
    found = bytearray(body)
    for at in random.integers(0, len(found), random.integers(1, 6)):
        found[at] = random.integers(0, 256)
    return bytes(found[: random.integers(0, len(found))] if random.random() < 0.2 else found)


def sound_bodies(wanted: list[dict[str, Any]]) -> list[tuple[bytes, str]]:
    columns = {name: [row[name] for row in wanted] for name in wanted[0]}
    return [
        (json.dumps({"rows": wanted}).encode(), JSON),
        (json.dumps({"columns": columns}).encode(), JSON),
        (write_ipc(pa.RecordBatch.from_pylist(wanted)), ARROW),
    ]


def sound(random: np.random.Generator) -> Odd:
    wanted = rows(random)
    body, kind = sound_bodies(wanted)[random.integers(3)]
    request = http(body, kind, accept=JSON)
    cuts = sorted(random.integers(0, len(request), 2).tolist()) if random.random() < 0.1 else []
    edges = [0, *cuts, len(request)]
    parts = [request[start:stop] for start, stop in pairwise(edges)]
    return Odd("sound", parts, (200,), wanted)


def edited(random: np.random.Generator) -> Odd:
    body, kind = sound_bodies(rows(random))[random.integers(3)]
    return Odd("edited body", [http(changed(body, random), kind)], (200, 400, 422))


def odd_values(random: np.random.Generator) -> Odd:
    values = [None, "x", "", 2**63, -(2**63), 2**64, 10**400, -1, True, 1e308, [], [1], {}, "\ud800", "é" * 200, 0.5]
    wanted = rows(random)
    for row in wanted:
        row[["user_id", "ad_id", "bid", "other"][random.integers(4)]] = values[random.integers(len(values))]
    return Odd("odd values", [http(json.dumps({"rows": wanted}).encode())], (200, 422))


def no_question(random: np.random.Generator) -> Odd:
    bodies = [
        b"", b"[", b"null", b"[" * 9000, b'{"rows": 1}', b'{"rows": [[1]]}', b'{"columns": {"a": 1}}', b"\xff\xfe{",
        b'{"rows": [], "context": []}', b'{"rows": [], "columns": []}', b'{"\\ud800": 1}', b"1" * 9000,
        gzip.compress(b'{"rows": []}'), random.bytes(int(random.integers(1, 2000))),
    ]  # fmt: skip
    kinds = [JSON, ARROW, "text/csv", "", "application/x-www-form-urlencoded", "é", ";;"]
    body, kind = bodies[random.integers(len(bodies))], kinds[random.integers(len(kinds))]
    return Odd("no question", [http(body, kind)], (400,))


def huge(random: np.random.Generator) -> Odd:
    many = json.dumps({"rows": [{"user_id": 1}] * (MAX_ROWS + 1)}).encode()
    chunks = b"".join(b"1000\r\n" + b" " * 4096 + b"\r\n" for _ in range(MAX_BYTES // 4096 + 2)) + b"0\r\n\r\n"
    chunked = http(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    wide = pa.RecordBatch.from_pydict({f"{n}": [1] for n in range(120)})
    choices = [
        Odd("many rows", [http(many)], (400,)),
        Odd("long body", [http(b" " * (MAX_BYTES * 3))], (413,)),
        Odd("long chunked body", [chunked + chunks], (413,)),
        Odd("wide body", [http(write_ipc(wide)[:MAX_BYTES], ARROW)], (400, 422)),
        Odd("long header", [http(b"", x="y" * 200_000)], ()),
        Odd("long path", [http(b"", path="/v1/models/" + "f" * 9000 + ":predict")], (404,)),
    ]
    return choices[random.integers(len(choices))]


def no_http(random: np.random.Generator) -> Odd:
    wanted = http(json.dumps({"rows": rows(random)}).encode())
    requests = [
        random.bytes(int(random.integers(2, 400))) + b"\r\n\r\n",
        wanted.replace(b"content-length: ", b"content-length: -"),
        wanted.replace(b"content-length: ", b"content-length: x"),
        wanted.replace(b"HTTP/1.1", b"HTTP/9.9"),
        wanted.replace(b"host: x", b"transfer-encoding: chunked"),
        http(b"zz\r\n\r\n").replace(b"content-length: 6", b"transfer-encoding: chunked"),
        wanted.replace(b"host: x", b"expect: 100-continue"),
        wanted.replace(b"host: x", b"connection: upgrade\r\nupgrade: websocket"),
        changed(wanted[:90], random) + wanted[90:],
    ]
    return Odd("no HTTP", [requests[random.integers(len(requests))]], ())


def elsewhere(random: np.random.Generator) -> Odd:
    paths = ["/", "/v1/models/fed:predict", "/v1/models/feed", "/../etc/passwd", "/%00", "/v1/models/%ff:predict"]
    method = ["POST", "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"][random.integers(7)]
    codes = (400,) if method == "BREW" else (404, 405)  # no method of HTTP: refused by who parses it
    return Odd("elsewhere", [http(b"{}", path=paths[random.integers(len(paths))], method=method)], codes)


def stalled(random: np.random.Generator) -> Odd:
    wanted = http(json.dumps({"rows": rows(random)}).encode())
    return Odd("stalled", [wanted[: random.integers(1, len(wanted) - 1)]], (408,))


def cut(random: np.random.Generator) -> Odd:
    wanted = http(json.dumps({"rows": rows(random)}).encode())
    return Odd("cut", [wanted[: random.integers(0, len(wanted))]], (), leaves=True)


KINDS: list[tuple[Callable[[np.random.Generator], Odd], float]] = [
    (sound, 0.34), (edited, 0.2), (odd_values, 0.12), (no_question, 0.1), (huge, 0.06), (no_http, 0.06),
    (elsewhere, 0.05), (cut, 0.05), (stalled, 0.02),
]  # fmt: skip


def odd_request(random: np.random.Generator) -> Odd:
    makers, shares = zip(*KINDS, strict=True)
    return makers[random.choice(len(makers), p=shares)](random)  # type: ignore[no-any-return]

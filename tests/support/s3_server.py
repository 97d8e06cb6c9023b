"""A small server that speaks S3's protocol, for one bucket in memory, and misbehaves on request.

    with S3Server() as server:
        environment = server.environment        # for boto3 and delta-rs
        server.fail(0.01, seed=1)
        server.counts()                         # {"requests": {"GET": 7, …}, "happened": {"503": 1}, …}

It runs in a process of its own: delta-rs keeps Python's lock during some requests. It knows objects (PUT, GET with
ranges, HEAD, DELETE), `If-None-Match: *`, ListObjectsV2, DeleteObjects and multipart uploads; it looks at no signature.
Faults are drawn per request: 503 before anything was done, the connection cut in the middle of an upload or of an
answer, an answer that is lost after the object was stored, and time.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.support.places import ROOT

BUCKET, CONTROL = "bucket", "_control"
PAGE = 1000
UNAVAILABLE, TORN, LOST, SLOW = ALL = "503", "torn", "answer lost", "slow"


class Faults:
    """`share` of the requests fail, in one of `kinds`, drawn with `seed`; every request takes `latency_s`."""

    def __init__(
        self,
        share: float = 0.0,
        seed: int = 0,
        kinds: Sequence[str] = (UNAVAILABLE, TORN, LOST, SLOW),
        latency_s: float = 0.0,
    ) -> None:
        self.share, self.kinds, self.latency_s = share, kinds, latency_s
        self.happened: Counter[str] = Counter()
        self._random, self._lock = random.Random(seed), threading.Lock()

    def draw(self) -> str | None:
        with self._lock:
            kind = self._random.choice(self.kinds) if self._random.random() < self.share else None
            if kind is not None:
                self.happened[kind] += 1
            return kind


@dataclass
class Stored:
    content: bytes
    put_at: float
    tag: str


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


class S3Server:
    """The server's process, until the end of the context."""

    def __enter__(self) -> S3Server:
        words = [sys.executable, "-m", "tests.support.s3_server", str(os.getpid())]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def environment(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        return keys | {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}

    def fail(self, share: float, **more: Any) -> None:
        """Have requests fail from now on, as `Faults` says; counts begin anew."""
        body = json.dumps({"share": share, **more}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/{CONTROL}", body, method="PUT")).close()

    @contextmanager
    def failing(self, share: float, **more: Any) -> Iterator[None]:
        """Context in which requests fail."""
        self.fail(share, **more)
        try:
            yield
        finally:
            self.happened = Counter(self.counts()["happened"])
            self.fail(0.0)

    def counts(self) -> dict[str, Any]:
        """Requests by method, bytes of contents in and out, and faults by kind, since `fail` was last called."""
        with urllib.request.urlopen(f"{self.url}/{CONTROL}") as answer:
            counts: dict[str, Any] = json.loads(answer.read())
            return counts


class _Store:
    """What the server holds, and counts."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.begin(Faults())

    def begin(self, faults: Faults) -> None:
        self.faults, self.requests = faults, Counter[str]()
        self.bytes_in = self.bytes_out = 0

    def counts(self) -> dict[str, Any]:
        counted = {"requests": self.requests, "bytes_in": self.bytes_in, "bytes_out": self.bytes_out}
        return counted | {"happened": self.faults.happened}


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """Callers that hang up are what this is for."""


class _Handler(BaseHTTPRequestHandler):
    store: _Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve(self._listed if self.key is None else self._got)

    def do_HEAD(self) -> None:
        self._serve(self._got)

    def do_PUT(self) -> None:
        self._serve(self._part if "partNumber" in self.query else self._put)

    def do_POST(self) -> None:
        self._serve(self._deleted_many if "delete" in self.query else self._multipart)

    def do_DELETE(self) -> None:
        self._serve(self._deleted)

    # --- the request ---------------------------------------------------------------------------------------------

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, True).items()}

    @property
    def key(self) -> str | None:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2] or None

    def _body(self) -> bytes:
        """Content of the request; boto3 sends it in chunks, with a checksum behind them."""
        if self.headers.get("Transfer-Encoding") == "chunked" or "chunked" in self.headers.get("Content-Encoding", ""):
            content = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():  # the trailing checksum
                pass
            return content
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _control(self) -> None:
        body = self._body()
        if self.command == "PUT":
            self.store.begin(Faults(**json.loads(body)))
        self._answer(200, json.dumps(self.store.counts()).encode(), {})

    def _serve(self, answer: Any) -> None:
        if urlsplit(self.path).path == f"/{CONTROL}":
            self._control()
            return
        store, fault = self.store, self.store.faults.draw()
        time.sleep(store.faults.latency_s + (0.5 if fault == SLOW else 0.0))  # work: a distant store
        with store.lock:
            store.requests["LIST" if self.command == "GET" and self.key is None else self.command] += 1
        if fault == TORN and self.command in ("PUT", "POST"):
            self.rfile.read(min(100, int(self.headers.get("Content-Length", 0))))
            self._cut()
            return
        content = self._body()
        bucket = unquote(urlsplit(self.path).path).lstrip("/").partition("/")[0]
        if fault == UNAVAILABLE:
            self._error(503, "SlowDown")
        elif bucket != BUCKET:
            self._error(404, "NoSuchBucket")
        else:
            with store.lock:
                status, headers, body = answer(content)
                store.bytes_in += len(content)
                store.bytes_out += len(body)
            if fault == LOST:
                self._cut()
                return
            self._answer(status, body, headers, torn=fault == TORN)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, torn: bool = False) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if torn else body)
        if torn and body:
            self._cut()

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode(), {})

    # --- answers: status, headers, body ----------------------------------------------------------------------------

    def _got(self, _: bytes) -> tuple[int, dict[str, str], bytes]:
        found = self.store.objects.get(self.key or "")
        if found is None:
            return 404, {}, b"" if self.command == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>"
        headers = {"ETag": f'"{found.tag}"', "Last-Modified": formatdate(found.put_at, usegmt=True)}
        asked = self.headers.get("Range")
        if asked is not None:
            total = len(found.content)
            first, _, last = asked.removeprefix("bytes=").partition("-")
            low = int(first) if first else max(0, total - int(last))
            high = min(total - 1, int(last)) if first and last else total - 1
            body = found.content[low : high + 1]
            return 206, headers | {"Content-Range": f"bytes {low}-{high}/{total}"}, body
        if self.command == "HEAD":
            headers["Content-Length"] = str(len(found.content))
        return 200, headers, found.content

    def _put(self, content: bytes) -> tuple[int, dict[str, str], bytes]:
        key = self.key or ""
        if self.headers.get("If-None-Match") == "*" and key in self.store.objects:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self.store.objects[key] = stored = Stored(content, time.time(), _md5(content).hex())
        return 200, {"ETag": f'"{stored.tag}"'}, b""

    def _deleted(self, _: bytes) -> tuple[int, dict[str, str], bytes]:
        self.store.objects.pop(self.key or "", None)
        return 204, {}, b""

    def _deleted_many(self, content: bytes) -> tuple[int, dict[str, str], bytes]:
        for element in ElementTree.fromstring(content).iter():
            if element.tag.endswith("Key"):
                self.store.objects.pop(element.text or "", None)
        return 200, {}, b"<DeleteResult/>"

    def _part(self, content: bytes) -> tuple[int, dict[str, str], bytes]:
        self.store.uploads[self.query["uploadId"]][int(self.query["partNumber"])] = content
        return 200, {"ETag": f'"{_md5(content).hex()}"'}, b""

    def _multipart(self, _: bytes) -> tuple[int, dict[str, str], bytes]:
        if "uploads" in self.query:
            self.store.uploads[upload := uuid4().hex] = {}
            text = f"<UploadId>{upload}</UploadId><Key>{escape(self.key or '')}</Key><Bucket>{BUCKET}</Bucket>"
            return 200, {}, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode()
        numbered = self.store.uploads.get(self.query["uploadId"], {})
        parts = [numbered[number] for number in sorted(numbered)]
        content = b"".join(parts)
        tag = f"{_md5(b''.join(map(_md5, parts))).hex()}-{len(parts)}"
        if self.headers.get("If-None-Match") == "*" and self.key in self.store.objects:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self.store.objects[self.key or ""] = Stored(content, time.time(), tag)
        text = f"<ETag>{tag}</ETag><Key>{escape(self.key or '')}</Key>"
        return 200, {}, f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>".encode()

    def _listed(self, _: bytes) -> tuple[int, dict[str, str], bytes]:
        query, found, folders = self.query, [], set()
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("continuation-token") or query.get("start-after") or ""
        for key in sorted(self.store.objects):
            if not key.startswith(prefix) or key <= after:
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                found.append(key)
        more, found = len(found) > PAGE, found[:PAGE]
        lines = []
        for key in found:
            stored = self.store.objects[key]
            at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stored.put_at))
            shown = escape(key)
            lines.append(
                f"<Contents><Key>{shown}</Key><LastModified>{at}</LastModified><ETag>&quot;{stored.tag}&quot;</ETag>"
                f"<Size>{len(stored.content)}</Size></Contents>"
            )
        lines += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
        if more:
            lines.append(f"<NextContinuationToken>{escape(found[-1])}</NextContinuationToken>")
        head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount>"
        text = (
            f"<ListBucketResult>{head}<IsTruncated>{str(more).lower()}</IsTruncated>{''.join(lines)}</ListBucketResult>"
        )
        return 200, {"Content-Type": "application/xml"}, text.encode()


def _main(owner: int) -> None:
    """Serve until the process `owner` is gone."""
    server = _Listening(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": _Store()}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    while os.getppid() == owner:
        time.sleep(0.5)  # work: the tests'


if __name__ == "__main__":
    _main(int(sys.argv[1]))

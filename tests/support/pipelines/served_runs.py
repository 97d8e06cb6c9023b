"""A run directory whose students have versions to serve, and requests to what serves them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from exfm.models.served import ServedStudent, save_served
from pipelines.core.access import Access
from pipelines.core.config.settings import dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import Server
from pipelines.serve.processes import http_server, listening
from pipelines.track.registry.aliases import Action
from pipelines.track.registry.ledger import HAND, POLICY, Ledger
from tests.support.pipelines.raw_configs import small
from tests.support.waiting import PATIENCE_S

ROWS = [
    {"user_id": 1, "ad_id": 5, "bid": 0.1},
    {"user_id": 2, "ad_id": 6, "bid": 2.0},
    {"user_id": 3, "ad_id": 7, "bid": 9.0},
]
STUDENTS = [{"name": name, "tasks": ["ctr"]} for name in ("feed", "shop")]


def run_with_versions(
    root: Path, *versions: str, impression_id: str = "int64", sparse: Sequence[dict[str, Any]] = ()
) -> Ledger:
    """A run whose student `feed` has these versions, of other weights each; the first is champion. `sparse`: features
    that it reads, too."""
    raw = small(tracking={"enabled": False}, teacher={}, students=STUDENTS)
    raw["rows"]["columns"][0]["minimum"] = 0
    raw["rows"]["impression_id"] = impression_id
    raw["features"]["sparse"] = [*raw["features"]["sparse"], *sparse]
    run_dir, config = RunDir(root), parse(raw)
    run_dir.root.mkdir(parents=True, exist_ok=True)
    run_dir.config.write_text(dump(config))
    student, ledger = config.student("feed"), Ledger(run_dir, "feed")
    with ledger.writing() as writing:
        for seed, version in enumerate(versions):
            served = ServedStudent(
                student.model.trunk, student.model.width, config.student_features(student),
                config.student_tasks(student), seed, wide=student.model.wide,
            )  # fmt: skip
            save_served(served, ledger.versions, version)
            writing.add(Action.PUBLISHED, version, by=POLICY, reason="so many rows")
        writing.add(Action.PROMOTED, versions[0], by=POLICY, reason="the first")
    return ledger


def promote(ledger: Ledger, version: str) -> None:
    with ledger.writing() as writing:
        writing.add(Action.PROMOTED, version, by=HAND, reason="tried")


@contextmanager
def live(
    server: Server, request_s: float = 10.0, port: int = 0, max_bytes: int = 8 << 20, access: Access = Access()
) -> Iterator[int]:
    """The server behind HTTP as `exfm serve` has it, in a thread of this process; its port."""
    with listening("127.0.0.1", port) as at:
        http = http_server(server.app, request_s, max_bytes, access)
        thread = threading.Thread(target=http.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        try:
            yield at.getsockname()[1]
        finally:
            http.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


class Said(NamedTuple):
    code: int
    headers: dict[str, str]
    body: bytes


def ask(app: Any, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Said:
    """One request to an ASGI application, without a network."""
    route, _, query = path.partition("?")
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": route, "raw_path": route.encode(), "query_string": query.encode(), "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip

    async def receive() -> Any:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Said(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))

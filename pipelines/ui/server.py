"""The page's server: one document and its data, over files of a run. It writes nothing and asks nothing of workers.

    GET /                       the document, with the view in it
    GET /view.json              the view as it is now
    GET /curves.json            ?student=NAME: NE by event time
    GET /why.json               ?of=impression|student|alarm & name=…: what `exfm why` answers; with & topics=1 the
                                topics are searched for an impression, too
    GET /dead-letters.json      ?kind=impression|feedback & reason=…: a few refused records, as text

Who is let in says `pipelines/core/access.py`. A browser gives the token once, as `?token=…`, and has it as a cookie
from then on.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from pipelines.cli.tools.dead_letters import decoded
from pipelines.cli.tools.stored_config import config_of
from pipelines.core.access import Access, GuardedServer
from pipelines.core.config.evolve import with_roster
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.status.stored import read_status
from pipelines.report import page as report_page
from pipelines.ui.curves import Curves
from pipelines.ui.view import view_of
from pipelines.why.alarm import why_alarm
from pipelines.why.impression import why_impression
from pipelines.why.on_topics import TopicSearch
from pipelines.why.student import why_student
from pipelines.why.words import lines_of
from streaming.delivery.requeue import PLACES, Letters, Place
from streaming.errors import BadInput, StreamingError

COOKIE = "exfm-ui"
EXAMPLES = 5
"""Refused records shown of a reason."""

log = logging.getLogger(__name__)


class RunPage:
    """The page of one run: its document and its data. Raises BadInput where no run lies in `run_dir`."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self._config = config_of(run_dir)
        self._curves = Curves(run_dir)
        self._asking = threading.Lock()  # a search reads the lake: one at a time
        view_of(run_dir, self._config)  # what cannot be shown is said here, once

    def document(self, nonce: str) -> bytes:
        """The whole document, with the view as it is now."""
        view = _json(self.view({})).replace("<", "\\u003c")
        return _template().render(nonce=nonce, title=self._config.name, view=view).encode()

    def view(self, query: dict[str, str]) -> Any:
        return view_of(self.run_dir, self._config)

    def curves(self, query: dict[str, str]) -> Any:
        """NE of a student by event time."""
        config, name = with_roster(self._config, self.run_dir.roster), query.get("student", "")
        students = {student.name: student for student in (*self._config.students, *config.students)}
        if name not in students:
            raise BadInput(f"no student `{name[:80]}`; choose from {', '.join(students)}")
        return self._curves.of(name, config.student_tasks(students[name]))

    def why(self, query: dict[str, str]) -> Any:
        """An answer, as `exfm why` gives it, with its lines."""
        kind, name = query.get("of", ""), query.get("name", "").strip()
        if not name:
            raise BadInput("nothing was asked: give an impression's id, a student's name, or an alarm's")
        with self._asking:
            if kind == "impression":
                search = self._topic_search() if query.get("topics") else None
                answers: list[Any] = [why_impression(self.run_dir, name, search)]
            elif kind == "student":
                answers = [why_student(self.run_dir, name, query.get("version"))]
            elif kind == "alarm":
                answers = list(why_alarm(self.run_dir, name))
            else:
                raise BadInput(f"`{kind}` cannot be asked for; ask for an impression, a student or an alarm")
        return [answer.as_json() | {"lines": lines_of(answer)} for answer in answers]

    def _topic_search(self) -> TopicSearch:
        """A search of the topics where their broker runs: a page starts nothing."""
        status, servers = read_status(self.run_dir.root), self._config.kafka.bootstrap_servers
        if servers is None and status.lives:
            servers = status.broker.bootstrap_servers  # None while it starts
        if servers is None:
            raise BadInput(
                "the run's own broker is not known to run, and this page starts nothing: "
                f"exfm why {self.run_dir.root} impression ID --topics starts it"
            )
        return TopicSearch(self.run_dir, servers)

    def dead_letters(self, query: dict[str, str]) -> Any:
        """A few refused records of a kind and a reason, decoded as far as possible, as text: numbers of 64 bits are
        none of a browser's."""
        most = self._config.kafka.max_message_bytes
        with self._asking:
            letters = Letters(self.run_dir.side_tables, self._config.kafka)
            rows = letters.examples(query.get("kind", ""), query.get("reason", ""), EXAMPLES).to_pylist()
        found = []
        for row in rows:
            place = Place(*(row[name] for name in PLACES))
            record = json.dumps(decoded(row["payload"], place.row, most), indent=1, ensure_ascii=False, default=str)
            found.append(
                {"place": str(place), "detail": row["detail"], "bytes": row["payload_bytes"], "record": record}
            )
        return found


def _json(value: Any) -> str:
    """JSON as browsers read it: null for what is not finite.

    >>> _json({"ne": [0.9, float("nan")]})
    '{"ne": [0.9, null]}'
    """

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [finite(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(value), default=str, allow_nan=False)


@cache
def _template() -> Template:
    folders = [Path(__file__).parent, Path(report_page.__file__).parent]
    environment = Environment(
        loader=FileSystemLoader(folders), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("page.html")


class _Handler(BaseHTTPRequestHandler):
    """Answers GET; everything else is 501."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "exfm", ""
    timeout = 30

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(place.query).items()}
        if (refusal := self._refusal(query)) is not None:
            return self._refuse(*refusal)
        if "token" in query:
            return self._remember(place.path)
        page = self.server.page
        data: dict[str, Callable[[dict[str, str]], Any]] = {
            "/view.json": page.view,
            "/curves.json": page.curves,
            "/why.json": page.why,
            "/dead-letters.json": page.dead_letters,
        }
        if place.path == "/":
            nonce = secrets.token_urlsafe(12)
            return self._answer(200, "text/html; charset=utf-8", page.document(nonce), nonce)
        if place.path not in data:
            return self._refuse(404, f"no such page: {place.path[:80]}")
        try:
            code, value = 200, data[place.path](query)
        except BadInput as error:
            code, value = 400, {"error": str(error)}
        except StreamingError as error:
            code, value = 503, {"error": str(error)}
        except Exception:
            log.exception("answering %s", place.path)
            code, value = 500, {"error": "the page failed on this request; its log says why"}
        self._answer(code, "application/json", _json(value).encode())

    def _refusal(self, query: dict[str, str]) -> tuple[int, str] | None:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        sent = (query.get("token", ""), "" if cookie is None else cookie.value)
        return self.server.access.refusal(self.headers, *sent)

    def _remember(self, path: str) -> None:
        """Keep the token as a cookie, and take it out of the address."""
        self.send_response(303)
        self.send_header("Location", path)
        access = self.server.access
        secure = "" if access.cert is None else "; Secure"
        self.send_header("Set-Cookie", f"{COOKIE}={access.token}; HttpOnly; SameSite=Strict; Path=/{secure}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _refuse(self, code: int, words: str) -> None:
        self._answer(code, "text/plain; charset=utf-8", words.encode())

    def _answer(self, code: int, kind: str, body: bytes, nonce: str = "") -> None:
        own = f"'nonce-{nonce}'" if nonce else "'none'"
        policy = (
            f"default-src 'none'; script-src {own}; style-src {own}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        self.send_response(code)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Log at debug level, without the query, which may hold a token."""
        log.debug("%s %s", self.command, urlsplit(self.path).path if self.command else "")


class PageServer(GuardedServer):
    """A listening server of a run's page. Raises BadInput where the address cannot be listened on."""

    def __init__(self, page: RunPage, access: Access, port: int) -> None:
        self.page = page
        super().__init__(access, port, _Handler)


def serve_page(page: RunPage, access: Access, port: int, ready: Callable[[int], None]) -> None:
    """Serve until interrupted. `ready(port)` is called once requests are taken. Raises as `PageServer` does."""
    with PageServer(page, access, port) as server:
        ready(server.port)
        with suppress(KeyboardInterrupt):
            server.serve_forever()

"""The page's server: what it answers, to whom, and that it leaves a run as it was."""

from __future__ import annotations

import hashlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipelines.core.access import Access
from pipelines.core.run_dir.paths import RunDir
from pipelines.ui.server import PageServer, RunPage
from streaming.lake.side_tables import DEAD_LETTERS, SideTable
from streaming.messages.dead_letters import DEAD_LETTER_SCHEMA, DeadLetter, letters_to_batch
from tests.support.http_servers import served
from tests.support.pipelines.shown_runs import shown_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("shown") / "run"
    shown_run(root)
    return root


def serving(root: Path, access: Access = Access()):
    return served(PageServer(RunPage(RunDir(root)), access, 0))


def get(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


@pytest.fixture(scope="module")
def server(run):
    with serving(run) as server:
        yield server


class Document(HTMLParser):
    """Tags with their attributes, and what is inside the element of an id."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self._at = [], {}, ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._at = dict(attrs).get("id", "")

    def handle_data(self, data):
        self.inside[self._at] = self.inside.get(self._at, "") + data


def test_the_document_is_one_piece_that_loads_nothing_from_elsewhere(server):
    answer, body = get(server, "/")
    document = Document(body)
    assert answer.status == 200
    links = [v for _, attrs in document.tags for k, v in attrs.items() if k in ("src", "href", "action")]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    policy = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    nonces = {attrs["nonce"] for tag, attrs in document.tags if tag in ("script", "style")}
    assert [f"'nonce-{nonce}'" in policy for nonce in nonces] == [True]
    assert not any(k.startswith("on") or k == "style" for _, attrs in document.tags for k in attrs)
    labelled = {attrs.get("for") for tag, attrs in document.tags if tag == "label"}
    assert {attrs["id"] for tag, attrs in document.tags if tag in ("input", "select")} <= labelled


def test_the_document_holds_the_view_and_text_of_a_run_cannot_end_its_script(server):
    _, body = get(server, "/")
    view = json.loads(Document(body).inside["view"])
    assert "<b>" not in body
    assert view == json.loads(get(server, "/view.json")[1])
    assert (view["run"], view["state"], [each["name"] for each in view["students"]]) == (
        "small", "stopped", ["feed", "shop"],
    )  # fmt: skip
    assert view["alarms"][0]["alarm"] == "stalled"
    assert view["alarms"][0]["figures"]["student-feed"]["lag_rows"] == 3
    assert view["dead_letters"] == [
        {"kind": "feedback", "reason": "undecodable", "rows": 9},
        {"kind": "impression", "reason": "null:<b>age</b>", "rows": 3},
    ]
    edges = {(edge["from"], edge["to"]): edge for edge in view["flow"]["edges"]}
    assert edges["lake", "students"]["lag_rows"] == 4
    assert edges["lake", "students"]["rows_per_s"] is None  # nothing runs: a rate would be one of long ago
    assert {"source", "kafka", "augmentation", "lake", "teacher", "students", "registry"} == {*view["flow"]["nodes"]}


def test_curves_are_those_of_the_predictions(server):
    curves = json.loads(get(server, "/curves.json?student=feed")[1])["tasks"]
    ctr = curves["ctr"]
    assert sum(ctr["rows"]) == 4000
    assert ctr["t"] == sorted(ctr["t"])
    assert set(ctr["ne"]) == {"student", "no_teacher", "teacher", "champion"}
    champion = ctr["ne"].pop("champion")
    asked = [value is not None for value in champion]
    assert asked == sorted(asked)  # of the later part alone
    assert 0.4 < sum(asked) / len(asked) <= 0.5
    mean = {model: sum(values) / len(values) for model, values in ctr["ne"].items()}
    assert mean["student"] < mean["no_teacher"] < mean["teacher"] < 1.1
    assert curves["cvr"]["t"] == []


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/curves.json?student=nobody", 400, "no student `nobody`; choose from feed, shop"),
        ("/why.json?of=impression&name=abc", 400, "`abc` is no impression_id"),
        (f"/why.json?of=impression&name={1 << 64}", 400, f"`{1 << 64}` is no impression_id"),
        ("/why.json?of=impression&name=12&topics=1", 400, "this page starts nothing"),
        ("/why.json?of=planet&name=x", 400, "`planet` cannot be asked for"),
        ("/why.json?of=alarm&name=", 400, "nothing was asked"),
        ("/etc/passwd", 404, "no such page"),
        ("/../config.yaml", 404, "no such page"),
    ],
)
def test_what_cannot_be_answered_is_said_in_words(server, path, code, words):
    answer, body = get(server, path)
    assert answer.status == code
    assert words in body


def test_a_search_answers_what_the_command_says(server):
    (answer,) = json.loads(get(server, "/why.json?of=impression&name=12")[1])
    assert (answer["fate"], answer["searched"]) == ("unknown", {"lake": "the run has none yet"})
    assert answer["lines"][0].startswith("impression 12: unknown")
    (student,) = json.loads(get(server, "/why.json?of=student&name=shop")[1])
    assert student["lines"][0].startswith("student shop: running. no version of it is published")
    (alarm,) = json.loads(get(server, "/why.json?of=alarm&name=stalled")[1])
    assert (alarm["active"], alarm["since"]) == (True, "2026-11-29T20:00:00+00:00")


def test_refused_records_are_text_of_their_kind_and_reason_and_a_few(tmp_path):
    shown_run(tmp_path)
    record = b'{"impression_id": 9007199254740993, "bid": NaN}'
    table = SideTable(RunDir(tmp_path).side_tables, DEAD_LETTERS, DEAD_LETTER_SCHEMA)
    letters = [DeadLetter("impression", "null:age", "ads", 0, at, 0, "no age", record) for at in range(9)]
    letters.append(DeadLetter("feedback", "null:age", "clicks", 0, 4, 0, "no age", b"{}"))
    table.append(letters_to_batch(letters), number=1)
    with serving(tmp_path) as server:
        shown = json.loads(get(server, "/dead-letters.json?kind=impression&reason=null%3Aage")[1])
        assert len(shown) == 5
        assert {each["record"] for each in shown} == {'{\n "impression_id": 9007199254740993,\n "bid": NaN\n}'}
        assert [each["detail"] for each in shown] == ["no age"] * 5
        [other] = json.loads(get(server, "/dead-letters.json?kind=feedback&reason=null%3Aage")[1])
        assert (other["place"], other["record"]) == ("clicks:0:4:0", "{}")
        assert get(server, "/dead-letters.json")[1] == "[]"


def test_nothing_but_reading_is_answered(server):
    assert get(server, "/", method="POST")[0].status == 501
    assert get(server, "/view.json", method="DELETE")[0].status == 501


def test_a_site_that_names_another_host_is_refused(server):
    """Its name may lead to loopback (DNS rebinding): the browser would read the answer for it."""
    assert get(server, "/view.json", Host="evil.example:80")[0].status == 403
    assert get(server, "/view.json", Host=f"localhost:{server.port}")[0].status == 200


def test_a_token_opens_the_page_once_and_is_a_cookie_from_then_on(run):
    with serving(run, Access(token="s3cret-token-of-the-page")) as server:
        for path in ("/", "/view.json", "/?token=wrong"):
            answer, body = get(server, path)
            assert answer.status == 401
            assert "s3cret" not in body
        answer, _ = get(server, "/?token=s3cret-token-of-the-page")
        assert (answer.status, answer.getheader("Location")) == (303, "/")
        cookie = answer.getheader("Set-Cookie")
        assert "HttpOnly; SameSite=Strict" in cookie
        assert get(server, "/view.json", Cookie=cookie.partition(";")[0])[0].status == 200
        assert get(server, "/view.json", Authorization="Bearer s3cret-token-of-the-page")[0].status == 200
        assert get(server, "/view.json", Cookie="exfm-ui=other")[0].status == 401


def digest(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_thousand_requests_leave_every_file_as_it_was(server, run):
    before = digest(run)
    paths = ["/", "/view.json", "/curves.json?student=feed", "/why.json?of=student&name=feed"]
    with ThreadPoolExecutor(8) as threads:
        codes = list(threads.map(lambda n: get(server, paths[n % 20 // 19 * (1 + n % 3)])[0].status, range(1000)))
    assert set(codes) == {200}
    assert digest(run) == before

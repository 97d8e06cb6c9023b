"""Who is let in by a server, and what is said to others; the same for students, page and metrics."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from pipelines.cli.console import main
from pipelines.core.access import VARIABLE, Access, GuardedServer, token_from
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import Server
from pipelines.serve.client import Client, Refused
from pipelines.serve.model_store import model_store_of
from pipelines.track.endpoint import MetricsEndpoint
from pipelines.ui.server import PageServer, RunPage
from streaming.errors import BadInput
from tests.support.certificates import certificate
from tests.support.pipelines.served_runs import ROWS, ask, live, run_with_versions
from tests.support.pipelines.shown_runs import shown_run
from tests.support.prometheus import recorded_status
from tests.support.waiting import PATIENCE_S

TOKEN = "s3cret-token-of-this-server"
SERVERS = ["students", "page", "metrics"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    run_with_versions(root / "students", "v00000100")
    shown_run(root / "page")
    (root / "metrics").mkdir()
    (root / "metrics" / "status.json").write_text(json.dumps(recorded_status()))
    return root


@contextmanager
def listening(runs, what, access):
    """A server of this kind; the address of something that it answers."""
    if what == "students":
        server = Server(model_store_of(RunDir(runs / what), ["feed"], "champion"), access=access)
        with live(server, access=access) as port:
            yield f"{access.scheme}://127.0.0.1:{port}/v1/models"
        return
    if what == "page":
        served = PageServer(RunPage(RunDir(runs / what)), access, 0)
        url, serve, close = (
            f"{access.scheme}://127.0.0.1:{served.port}/view.json",
            served.serve_forever,
            served.shutdown,
        )
    else:
        endpoint = MetricsEndpoint(runs / what, 0, access)
        url, serve, close = endpoint.url, endpoint.serve, endpoint.close
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield url
    finally:
        close()
        thread.join()


def code(url, context=None, **headers):
    """HTTP code of an answer, and its text."""
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=PATIENCE_S, context=context
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("what", SERVERS)
def test_with_a_token_only_those_who_have_it_are_answered(runs, what):
    with listening(runs, what, Access(token=TOKEN)) as url:
        for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            refused, words = code(url, **wrong)
            assert refused == 401
            assert "Authorization: Bearer TOKEN" in words
            assert TOKEN not in words
        assert code(url, Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize("what", SERVERS)
def test_with_a_certificate_the_server_speaks_tls_only(runs, what, files):
    trusting = ssl.create_default_context(cafile=files.cert)
    with listening(runs, what, Access(token=TOKEN, cert=files.cert, key=files.key)) as url:
        assert url.startswith("https://127.0.0.1:")
        assert code(url, trusting, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert code(url, trusting)[0] == 401
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            code(url, ssl.create_default_context())
        with pytest.raises((OSError, urllib.error.URLError)):
            code(url.replace("https", "http"), Authorization=f"Bearer {TOKEN}")


@pytest.mark.parametrize("what", SERVERS)
def test_a_client_that_does_not_speak_holds_up_nobody(runs, what, files):
    trusting = ssl.create_default_context(cafile=files.cert)
    with listening(runs, what, Access(cert=files.cert, key=files.key)) as url:
        port = int(url.split(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            assert code(url, trusting)[0] == 200


def test_checks_of_health_of_a_server_of_students_ask_for_no_token(runs):
    server = Server(model_store_of(RunDir(runs / "students"), ["feed"], "champion"), access=Access(token=TOKEN))
    codes = {path: ask(server.app, "GET", path).code for path in ("/healthz", "/readyz", "/metrics", "/openapi.json")}
    assert codes == {"/healthz": 200, "/readyz": 200, "/metrics": 401, "/openapi.json": 401}
    assert ask(server.app, "POST", "/v1/models/feed:predict", b"{}").code == 401
    sent = {"authorization": f"Bearer {TOKEN}"}
    document = json.loads(ask(server.app, "GET", "/openapi.json", headers=sent).body)
    assert document["security"] == [{"token": []}]


def test_the_client_sends_the_token_over_tls(runs, files):
    access = Access(token=TOKEN, cert=files.cert, key=files.key)
    server = Server(model_store_of(RunDir(runs / "students"), ["feed"], "champion"), access=access)
    trusting = ssl.create_default_context(cafile=files.cert)
    with live(server, access=access) as port:
        with Client("127.0.0.1", port, token=TOKEN, tls=trusting) as client:
            assert client.predict("feed", ROWS)["version"] == "v00000100"
        with Client("127.0.0.1", port, tls=trusting) as client, pytest.raises(Refused, match="a token is needed"):
            client.predict("feed", ROWS)


@pytest.mark.parametrize("what", ["page", "metrics"])
def test_without_a_token_a_request_names_loopback_as_its_host(runs, what):
    with listening(runs, what, Access()) as url:
        assert code(url, Host="evil.example")[0] == 403
        assert code(url, Host="localhost:1")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.7", "machine.example"])
def test_another_address_than_loopback_needs_a_token(host):
    with pytest.raises(BadInput, match=r"lets other machines in.*EXFM_TOKEN.*openssl rand.*--token-file"):
        Access(host)
    assert not Access(host, token=TOKEN).only_here


@pytest.mark.parametrize(
    ("token", "words"), [("", "0 characters"), ("short", "5 characters"), ("of sixteen or more", "letters, digits")]
)
def test_a_token_that_is_short_or_that_no_header_holds_is_refused_and_not_shown(token, words):
    with pytest.raises(BadInput, match=words) as refused:
        Access(token=token)
    assert not token or token not in str(refused.value)


def test_a_token_is_in_no_representation():
    assert TOKEN not in repr(Access(token=TOKEN))


def test_the_token_is_that_of_the_file_or_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert token_from(None) is None
    monkeypatch.setenv(VARIABLE, TOKEN)
    (tmp_path / "token").write_text("another-token-in-a-file\n")
    assert (token_from(None), token_from(tmp_path / "token")) == (TOKEN, "another-token-in-a-file")
    with pytest.raises(BadInput, match=r"--token-file .*none cannot be read: No such file"):
        token_from(tmp_path / "none")


def test_what_is_wrong_with_a_certificate_is_said(tmp_path, files):
    other = certificate(tmp_path, "other")
    locked = certificate(tmp_path, "locked", b"password")
    none = tmp_path / "none.pem"
    for cert, key, words in (
        (files.cert, other.key, "KEY_VALUES_MISMATCH"),
        (files.cert, none, "cannot be read: No such file"),
        (files.cert, None, "cannot be used"),
        (None, files.key, "add --tls-cert"),
        (locked.cert, locked.key, "asks for a password"),
    ):
        with pytest.raises(BadInput, match=words):
            Access(cert=cert, key=key)


def test_a_port_that_is_taken_is_said():
    first = GuardedServer(Access(), 0, BaseHTTPRequestHandler)
    with first, pytest.raises(BadInput, match=rf":{first.port}: Address already in use; give another port"):
        GuardedServer(Access(), first.port, BaseHTTPRequestHandler)


@pytest.mark.parametrize("what", ["serve", "ui", "metrics"])
def test_the_commands_refuse_another_address_without_a_token_and_say_what_to_try(runs, what, monkeypatch, capsys):
    monkeypatch.delenv(VARIABLE, raising=False)
    root = runs / {"serve": "students", "ui": "page"}.get(what, what)
    with pytest.raises(SystemExit) as ended:
        main([what, str(root), "--host", "0.0.0.0", *(["--serve", "0"] if what == "metrics" else ["--port", "0"])])
    assert ended.value.code == 2
    assert "make one with openssl rand" in " ".join(capsys.readouterr().err.split())

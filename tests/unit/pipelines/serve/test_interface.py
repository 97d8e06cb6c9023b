"""The OpenAPI document says what the server does: real answers are what it promises, real requests what it asks for."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import pytest
from jsonschema import Draft202012Validator

from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import RequestLimits, Server
from pipelines.serve.client import Client, Refused
from pipelines.serve.model_store import model_store_of
from tests.support.pipelines.served_runs import ROWS, ask, live, run_with_versions

PREDICT = "/v1/models/feed:predict"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    run_with_versions(root, "v00000100")
    return Server(model_store_of(RunDir(root), [], "champion"), RequestLimits(4000, 50, 5.0))


@pytest.fixture(scope="module")
def document(server):
    return json.loads(ask(server.app, "GET", "/openapi.json").body)


def schema_of(document, path, method, code):
    (answer,) = [answer for said, answer in document["paths"][path][method]["responses"].items() if said == str(code)]
    (schema, *_) = [content["schema"] for content in answer["content"].values()]
    return schema | {"components": document["components"]}


def valid(schema, value):
    Draft202012Validator.check_schema(schema)
    return not list(Draft202012Validator(schema).iter_errors(value))


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ({"rows": ROWS}, PREDICT, 200),
        ({"columns": {"ad_id": [1, 2], "bid": [0.5, 1]}, "context": {"user_id": 7}}, PREDICT, 200),
        ({"rows": [ROWS[0], {}]}, PREDICT + "?on_bad_rows=null", 200),
        ({"rows": [ROWS[0], {}]}, PREDICT, 422),
        ({"rows": 1}, PREDICT, 400),
        ({"rows": ROWS, "context": {}, "x": "y" * 9000}, PREDICT, 413),
    ],
)
def test_answers_are_as_the_document_says(server, document, body, path, code):
    said = ask(server.app, "POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
    assert said.code == code
    value = json.loads(said.body)
    assert valid(schema_of(document, PREDICT, "post", code), value)
    assert not valid(schema_of(document, PREDICT, "post", code), value | {"more": 1})
    asked = document["paths"][PREDICT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert valid(asked, body) == (code in (200, 422))


@pytest.mark.parametrize(("method", "path"), [("GET", PREDICT), ("POST", "/v1/models/fed:predict"), ("GET", "/v2")])
def test_what_is_not_here_is_an_error_as_the_document_says(server, document, method, path):
    said = ask(server.app, method, path, b"{}")
    assert valid(schema_of(document, PREDICT, "post", said.code), json.loads(said.body))


def test_every_other_path_answers_as_the_document_says(server, document):
    assert set(document["paths"]) == {PREDICT, "/v1/models", "/healthz", "/readyz", "/metrics", "/openapi.json"}
    for path in set(document["paths"]) - {PREDICT}:
        said = ask(server.app, "GET", path)
        (kind,) = document["paths"][path]["get"]["responses"][str(said.code)]["content"]
        assert said.headers["content-type"].startswith(kind), path
        value = json.loads(said.body) if "json" in kind else said.body.decode()
        assert valid(schema_of(document, path, "get", said.code), value), path


def test_the_client_says_which_rows_are_refused_and_what_else_is_wrong(server):
    with live(server) as port, Client("127.0.0.1", port) as client:
        first = client.predict("feed", [{"ad_id": 5, "bid": 0.1}], {"user_id": 1})
        assert first["version"] == "v00000100"
        with pytest.raises(Refused, match="1 of 2 rows are refused") as refused:
            client.predict("feed", [ROWS[0], {"user_id": -1, "ad_id": 1, "bid": 0.0}])
        assert (refused.value.code, refused.value.rows[0]["row"]) == (422, 1)
        with pytest.raises(Refused, match="no model is named `fed`"):
            client.predict("fed", ROWS)


def test_the_client_asks_once_more_where_the_server_was_restarted_on_its_port(server):
    with ExitStack() as first_life:
        port = first_life.enter_context(live(server))
        with Client("127.0.0.1", port) as client:
            first = client.predict("feed", ROWS)
            first_life.close()
            with live(server, port=port):
                assert client.predict("feed", ROWS) == first


def test_the_client_goes_on_after_an_answer_that_came_too_late(server):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with Client("127.0.0.1", port, timeout_s=0.2) as client:
            with pytest.raises(TimeoutError):
                client.predict("feed", ROWS)
            silent.close()
            with live(server, port=port):
                assert client.predict("feed", ROWS)["version"] == "v00000100"

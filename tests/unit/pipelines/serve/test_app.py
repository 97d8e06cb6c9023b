"""What a server answers: the same predictions in every form of a request, and words for what cannot be answered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from exfm.models.served import load_served
from pipelines.core.run_dir.paths import RunDir
from pipelines.serve.app import RequestLimits, Server
from pipelines.serve.logged import LogSettings, ServedLog
from pipelines.serve.model_store import model_store_of
from pipelines.serve.prediction_request import ARROW
from pipelines.served_model import ServedModel
from streaming.kafka.settings import KafkaSettings
from streaming.messages.ipc import write_ipc
from tests.support.pipelines.served_runs import ROWS, Said, ask, run_with_versions

PREDICT = "/v1/models/feed:predict"
V1 = "v00000100"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return run_with_versions(tmp_path_factory.mktemp("served"), V1)


@pytest.fixture(scope="module")
def server(ledger):
    return Server(model_store_of(RunDir(ledger.path.parents[1]), ["feed"], "champion"), RequestLimits(20_000, 50, 5.0))


def asked(server: Server, value: Any, path: str = PREDICT) -> Said:
    return ask(server.app, "POST", path, json.dumps(value).encode(), {"content-type": "application/json"})


def ctr(body: Any) -> list[float]:
    return [row["ctr"] for row in body["predictions"]]


def counted(metrics: str) -> int:
    """The rows of all requests so far."""
    (line,) = [line for line in metrics.splitlines() if line.startswith("exfm_rows_total") and 'model="feed"' in line]
    return int(float(line.split()[-1]))


def columns_of(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_rows_columns_context_and_arrow_are_predicted_alike_and_as_the_model_itself_does(server, ledger):
    shared = [dict(row, user_id=1) for row in ROWS]
    others = [{k: v for k, v in row.items() if k != "user_id"} for row in shared]
    batch = pa.RecordBatch.from_pylist(shared)
    said = [
        asked(server, {"rows": shared}),
        asked(server, {"columns": columns_of(shared)}),
        asked(server, {"context": {"user_id": 1}, "rows": others}),
        asked(server, {"context": {"user_id": 1}, "columns": columns_of(others)}),
        ask(server.app, "POST", PREDICT, write_ipc(batch), {"content-type": ARROW, "accept": "application/json"}),
    ]
    assert [each.code for each in said] == [200] * 5
    bodies = [json.loads(each.body) for each in said]
    assert all(body == bodies[0] for body in bodies)
    assert (bodies[0]["model"], bodies[0]["version"], said[0].headers["x-exfm-version"]) == ("feed", V1, V1)
    own = ServedModel(load_served(ledger.folder(V1))).predict(shared)
    assert np.array_equal(ctr(bodies[0]), own["ctr"])
    binary = ask(server.app, "POST", PREDICT, write_ipc(batch), {"content-type": ARROW})
    with pa.ipc.open_stream(binary.body) as reader:
        assert reader.read_all()["ctr"].to_pylist() == ctr(bodies[0])


def test_what_curl_sends_unless_it_is_given_another_type_is_read_as_json(server):
    body = json.dumps({"rows": ROWS}).encode()
    assert ask(server.app, "POST", PREDICT, body, {"content-type": "application/x-www-form-urlencoded"}).code == 200


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", 400, "no JSON"),
        (b"{", 400, "no JSON"),
        (b"[1]", 400, 'either "rows"'),
        (b'{"rows": [], "columns": {}}', 400, 'either "rows"'),
        (b'{"rows": [1]}', 400, "a list of objects"),
        (b'{"columns": {"bid": 1}}', 400, "a list of values for each"),
        (b'{"columns": {"bid": [1], "ad_id": [1, 2]}}', 400, "`bid` 1, `ad_id` 2"),
        (b'{"rows": [{"bid": 1}], "context": {"bid": 2}}', 400, "`bid` stands in"),
        (b'{"rows": [], "contxt": {}}', 400, '"contxt"'),
        (json.dumps({"rows": [ROWS[0]] * 51}).encode(), 400, "51 rows, and 50 are allowed"),
        (b'{"rows": [' + b" " * 20_000 + b"]}", 413, "longer than 20,000 bytes"),
        (b"[" * 15_000, 400, "no JSON"),
    ],
)
def test_a_body_that_is_no_question_is_refused_in_words(server, body, code, words):
    said = ask(server.app, "POST", PREDICT, body, {"content-type": "application/json"})
    assert (said.code, words in json.loads(said.body)["error"]) == (code, True), said.body


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"ad_id": 5, "bid": 0.1}, "`user_id` is None"),
        ({"user_id": "x", "ad_id": 5, "bid": 0.1}, "`user_id` is"),
        ({"user_id": 2**70, "ad_id": 5, "bid": 0.1}, "`user_id` is"),
        ({"user_id": 1, "ad_id": 5, "bid": float("nan")}, "`bid` is"),
        ({"user_id": 1, "ad_id": [5], "bid": 0.1}, "`ad_id` is"),
        ({"user_id": None, "ad_id": 5, "bid": 0.1}, "`user_id` is"),
    ],
)
def test_a_row_that_ingestion_would_refuse_is_refused_with_its_words_and_the_others_may_be_had(server, row, words):
    said = asked(server, {"rows": [ROWS[0], row, ROWS[1]]})
    value = json.loads(said.body)
    assert said.code == 422
    assert "1 of 3 rows are refused" in value["error"]
    assert value["refused"][0]["row"] == 1
    assert words in value["refused"][0]["why"]
    whole = json.loads(asked(server, {"rows": ROWS[:2]}).body)["predictions"]
    kept = asked(server, {"rows": [ROWS[0], row, ROWS[1]]}, PREDICT + "?on_bad_rows=null")
    assert kept.code == 200
    assert json.loads(kept.body)["predictions"] == [whole[0], None, whole[1]]


def test_a_value_of_another_kind_in_the_shared_context_refuses_every_row(server):
    said = asked(server, {"context": {"user_id": "x"}, "rows": [{"ad_id": 5, "bid": 1.0}] * 2})
    assert said.code == 422
    assert "2 of 2 rows" in json.loads(said.body)["error"]


def test_no_rows_are_no_mistake(server):
    assert json.loads(asked(server, {"rows": []}).body)["predictions"] == []


def test_a_model_that_is_not_there_and_a_type_that_is_not_read(server):
    assert "choose from feed" in json.loads(asked(server, {"rows": ROWS}, "/v1/models/fed:predict").body)["error"]
    said = ask(server.app, "POST", PREDICT, b"x", {"content-type": "text/csv"})
    assert (said.code, "text/csv" in said.body.decode()) == (400, True)


def test_what_it_says_of_itself(server):
    (model,) = json.loads(ask(server.app, "GET", "/v1/models").body)["models"]
    assert (model["version"], model["follows"], model["tasks"]) == (V1, "champion", ["ctr"])
    assert model["inputs"]["user_id"] == {"type": "int64", "nullable": False}
    assert [ask(server.app, "GET", path).code for path in ("/healthz", "/readyz")] == [200, 200]
    before = ask(server.app, "GET", "/metrics").body.decode()
    asked(server, {"rows": ROWS})
    after = ask(server.app, "GET", "/metrics").body.decode()
    (info,) = [line for line in after.splitlines() if line.startswith("exfm_version_info{")]
    assert all(words in info for words in ('model="feed"', f'version="{V1}"', "} 1"))
    assert counted(after) == counted(before) + len(ROWS)
    paths = json.loads(ask(server.app, "GET", "/openapi.json").body)["paths"]
    assert "user_id" in json.dumps(paths[PREDICT])


def test_columns_that_are_not_read_cost_nothing(server):
    """Each row with names of its own: as a table they would be as many columns as there are rows, and more."""
    rows = [dict(ROWS[0]) | {f"x{n}_{m}": 1 for m in range(5)} for n in range(50)]
    assert asked(server, {"rows": rows}).code == 200
    many = pa.RecordBatch.from_pydict({f"c{n}": [1] for n in range(2001)})
    said = ask(server.app, "POST", PREDICT, write_ipc(many)[:19_000], {"content-type": ARROW})
    assert said.code in (400, 413)


def test_a_key_that_is_no_text_is_answered_in_words(server):
    said = ask(server.app, "POST", PREDICT, b'{"\\ud800": 1, "rows": []}', {"content-type": "application/json"})
    assert said.code == 400
    assert json.loads(said.body)["error"]


def test_an_arrow_question_is_answered_in_arrow_also_where_the_client_takes_anything(server):
    body = write_ipc(pa.RecordBatch.from_pylist(ROWS))
    said = ask(server.app, "POST", PREDICT, body, {"content-type": ARROW, "accept": "*/*"})
    assert said.headers["content-type"] == ARROW


def test_no_body_makes_it_fail(server):
    """Bodies that were sound, with bytes changed or cut: an answer in words each, never a fault of the server."""
    random = np.random.default_rng(0)
    sound = [
        (json.dumps({"rows": ROWS}).encode(), "application/json"),
        (json.dumps({"columns": columns_of(ROWS), "context": {"vertical": "feed"}}).encode(), "application/json"),
        (write_ipc(pa.RecordBatch.from_pylist(ROWS)), ARROW),
    ]
    codes = set()
    for n in range(600):
        body, kind = sound[n % 3]
        changed = bytearray(body)
        for at in random.integers(0, len(changed), random.integers(1, 6)):
            changed[at] = random.integers(0, 256)
        if n % 5 == 0:
            changed = changed[: random.integers(0, len(changed))]
        said = ask(server.app, "POST", PREDICT, bytes(changed), {"content-type": kind})
        assert said.code in (200, 400, 422), (said, bytes(changed))
        if said.code != 200:
            assert json.loads(said.body)["error"]
        codes.add(said.code)
    assert codes == {200, 400, 422}


HOUR = {"name": "hour", "transform": "hour_of_day", "utc_offset": "+01:00"}
ONE_HOUR_MS = 3_600_000


def test_the_hour_is_that_of_the_request_or_now(tmp_path, monkeypatch):
    run_with_versions(tmp_path, V1, sparse=[HOUR])
    server = Server(model_store_of(RunDir(tmp_path), ["feed"], "champion"), RequestLimits(20_000, 50, 5.0))

    def at(hour: int | None) -> list[float]:
        context = {} if hour is None else {"context": {"event_time_ms": hour * ONE_HOUR_MS}}
        return ctr(json.loads(asked(server, {"rows": ROWS, **context}).body))

    assert at(5) != at(6)
    assert at(5) == at(29)
    monkeypatch.setattr("pipelines.serve.app.time.time", lambda: 24.0 * 3600 * 3 + 5.5 * 3600)
    assert at(None) == at(5)
    document = json.loads(ask(server.app, "GET", "/openapi.json").body)
    said = document["paths"][PREDICT]["post"]["requestBody"]["content"]["application/json"]["schema"]["description"]
    assert said.endswith("event_time_ms: left out, the rows are shown now")


def test_a_server_answers_though_no_broker_takes_its_log(ledger):
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:1", connect_timeout_s=0.1)
    served_log = ServedLog(LogSettings(nowhere, "served", share=1.0))
    model_store = model_store_of(RunDir(ledger.path.parents[1]), ["feed"], "champion")
    said = asked(Server(model_store, served_log=served_log), {"rows": [{"impression_id": 7, **ROWS[0]}]})
    served_log.close()
    assert (said.code, served_log.written, served_log.dropped) == (200, 0, 1)

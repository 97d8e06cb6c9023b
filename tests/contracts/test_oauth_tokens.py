"""OAuth tokens in place of a password: printed by a command, renewed before they expire, in no file of a run. On a
broker that ends a session with its token."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from pipelines.core.config.settings import dump
from streaming.errors import NotAdmitted
from streaming.kafka.reader import TopicReader
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics
from streaming.kafka.writer import TopicWriter
from streaming.position import Partition
from tests.support.pipelines.commands import COMMAND
from tests.support.pipelines.secured_broker import USER, secured_broker, unsigned_token
from tests.support.pipelines.small_runs import small
from tests.support.waiting import eventually

pytestmark = pytest.mark.check

ISSUER = f"""
import base64, json, sys, time
USER = {USER!r}
{inspect.getsource(unsigned_token)}
token = unsigned_token(float(sys.argv[2]))
with open(sys.argv[1], "a") as issued:
    print(token, file=issued)
print(token)
"""


@pytest.fixture(scope="module")
def broker():
    return secured_broker()


@pytest.fixture
def issuer(tmp_path):
    """A program that issues tokens: the command for it, and the file that has all of them."""
    (tmp_path / "issuer.py").write_text(ISSUER)

    def lasting(seconds):
        arguments = [tmp_path / "issuer.py", tmp_path / "issued", seconds]
        return {"command": [sys.executable, *map(str, arguments)]}

    lasting.issued = lambda: (tmp_path / "issued").read_text().split()
    return lasting


def settings(broker, token):
    return KafkaSettings(
        bootstrap_servers=broker.secured, security=broker.with_tokens(token), connect_timeout_s=4, give_up_s=5
    )


def test_a_run_is_admitted_by_tokens_and_leaves_none_of_them_anywhere(broker, tmp_path, issuer):
    raw = yaml.safe_load(dump(small(broker.secured, source__impressions=500, students=[])))
    raw["kafka"]["security"] = broker.with_tokens(issuer(60))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    run, shown = tmp_path / "run", ""
    arguments = ["stream", tmp_path / "mine.yaml", "--run-dir", run, "--local"]
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None:
            shown += str([seen.info["cmdline"] for seen in psutil.process_iter(["cmdline"])])
            time.sleep(0.2)  # work: a look at all processes, now and then
        said = process.stdout.read()
    assert process.returncode == 0, said[-3000:]
    tokens = issuer.issued()
    assert tokens
    assert not [token for token in tokens if token in shown + said]
    held = [path for path in run.rglob("*") if path.is_file() and any(t.encode() in path.read_bytes() for t in tokens)]
    assert held == []
    assert yaml.safe_load((run / "config.yaml").read_text())["kafka"]["security"]["sasl_oauth_token"] == issuer(60)


def test_a_connection_outlives_its_tokens(broker, issuer):
    kafka = settings(broker, issuer(2))
    ensure_topics(kafka, {"oauth-lives-on": 1})
    place, found = Partition("oauth-lives-on", 0), []
    with TopicWriter(kafka, place.topic) as writer, TopicReader(kafka, [place]) as reader:
        reader.open()
        first = len(issuer.issued())

        def outlived() -> bool:
            writer.write(0, [b"row"])
            writer.flush()
            found.extend(reader.next_batch(0.3) or [])
            return len(issuer.issued()) >= first + 4  # a writer and a reader, for three lifetimes

        eventually(outlived)
        before = len(found)
        eventually(lambda: outlived() and len(found) >= before + 3)


def test_tokens_that_are_not_admitted_are_one_line(broker, tmp_path):
    (tmp_path / "token").write_text(unsigned_token(-30) + "\n")
    kept = {"file": str(tmp_path / "token")}
    with pytest.raises(NotAdmitted, match=r"the token of kafka\.security\.sasl_oauth_token expired 3\d s ago; see"):
        ensure_topics(settings(broker, kept), {"ads": 1})
    (tmp_path / "token").write_text("opaque")
    with pytest.raises(NotAdmitted) as refused:
        ensure_topics(settings(broker, kept), {"ads": 1})
    said = str(refused.value)
    assert "does not admit the token of kafka.security.sasl_oauth_token ({'file':" in said
    assert "\n" not in said
    assert "opaque" not in said


def test_a_token_from_the_environment_is_taken(broker, monkeypatch):
    monkeypatch.setenv("EXFM_TEST_TOKEN", unsigned_token(60))
    ensure_topics(settings(broker, {"env": "EXFM_TEST_TOKEN"}), {"by-environment": 1})

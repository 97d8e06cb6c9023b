"""Passwords: read from where they are kept, in no file of a run, and wrong ones said in one line. On a broker with
SASL_SSL, SCRAM and ACLs."""

import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
import yaml

from pipelines.cli.console import main
from pipelines.core.config.settings import dump
from streaming.errors import BadInput, NotAdmitted
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import ensure_topics
from tests.support.pipelines.commands import COMMAND
from tests.support.pipelines.secured_broker import PASSWORD, USER, secured_broker
from tests.support.pipelines.small_runs import small


@pytest.fixture(scope="module")
def broker():
    return secured_broker()


@pytest.fixture
def settings(broker):
    def of(**changes):
        return KafkaSettings(bootstrap_servers=broker.secured, security=broker.security(**changes), connect_timeout_s=4)

    return of


def holding(folder, text):
    """Files under `folder` that hold `text`."""
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def stream(config, run_dir, *options):
    arguments = ["stream", config, "--run-dir", run_dir, "--local", *options]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


SECRETS = {
    "HOOK": "http://127.0.0.1:1/services/s3cret-of-slack",
    "PAGER_KEY": "s3cret-of-pagerduty",
    "AWS_SECRET_ACCESS_KEY": "s3cret-of-the-object-store",
    "MLFLOW_TRACKING_PASSWORD": "s3cret-of-mlflow",
    "EXFM_TOKEN": "s3cret-token-of-the-servers",
}
"""What else is secret, in the environment of every command; the first two are named by the config."""
WEBHOOKS = [
    {"format": "slack", "url": {"env": "HOOK"}},
    {"format": "pagerduty", "url": "http://127.0.0.1:1/", "key": {"env": "PAGER_KEY"}},
]


def told(secrets, text):
    return [name for name, secret in secrets.items() if secret in text]


def test_a_run_and_what_is_asked_of_it_show_no_secret_and_it_is_asked_for_when_it_is_resumed(
    broker, tmp_path, monkeypatch, capsys
):
    """Kafka's password is given as plain text: of all ways the one that could leave it anywhere."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    secrets = {**SECRETS, "sasl_plain_password": PASSWORD}
    raw = yaml.safe_load(dump(small(broker.secured, source__impressions=1000, tracking__enabled=True)))
    raw["kafka"]["security"] = broker.security(sasl_plain_password=PASSWORD)
    raw["alarms"]["webhooks"] = WEBHOOKS
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    run, shown = tmp_path / "run", set()
    with stream(tmp_path / "mine.yaml", run) as process:
        while process.poll() is None:
            shown |= {" ".join(seen.info["cmdline"] or []) for seen in psutil.process_iter(["cmdline"])}
            time.sleep(0.2)  # work: a look at all processes, now and then
        said = process.stdout.read()
    assert process.returncode == 0, said[-3000:]
    assert told(secrets, "\n".join(shown)) == []
    assert told(secrets, said) == []
    assert {"config.yaml", "mlflow.db", "status.json", "logs", "summary.json"} <= {path.name for path in run.iterdir()}
    assert {name: holding(run, secret) for name, secret in secrets.items()} == {name: [] for name in secrets}
    asked = [
        ["config", "show", tmp_path / "mine.yaml"],
        ["check", tmp_path / "mine.yaml"],
        ["check", run / "config.yaml"],
    ]
    asked += [
        ["status", run, "--json"],
        ["status", run],
        ["metrics", run],
        ["report", run],
        ["students", run, "--json"],
    ]
    for command in asked:
        with suppress(SystemExit):
            main([*map(str, command)])
        answer = capsys.readouterr()
        assert answer.out, command
        assert told(secrets, answer.out + answer.err) == [], command
    assert yaml.safe_load((run / "config.yaml").read_text())["kafka"]["security"]["sasl_plain_password"] == {
        "redacted": True
    }
    assert run.stat().st_mode & 0o777 == 0o700
    assert [path for path in run.rglob("*") if path.is_file() and path.stat().st_mode & 0o077] == []
    with stream(run / "config.yaml", tmp_path / "another") as process:
        said = process.stdout.read()
    assert process.returncode == 2
    assert told(secrets, said) == []
    assert "kafka.security.sasl_plain_password was given as plain text" in said
    assert "--set 'kafka.security.sasl_plain_password={env: NAME}'" in said


def test_a_wrong_password_is_one_line(settings, monkeypatch):
    monkeypatch.setenv("EXFM_TEST_PASSWORD", "wrong-one")
    with pytest.raises(NotAdmitted) as refused:
        ensure_topics(settings(), {"ads": 1})
    said = str(refused.value)
    assert f"does not admit the user `{USER}` with this password" in said
    assert "'env': 'EXFM_TEST_PASSWORD'" in said
    assert "\n" not in said
    assert "wrong-one" not in said


def test_a_certificate_of_somebody_else_is_one_line(settings, monkeypatch):
    monkeypatch.setenv("EXFM_TEST_PASSWORD", PASSWORD)
    with pytest.raises(NotAdmitted, match=r"no TLS connection.*CERTIFICATE_VERIFY_FAILED.*ssl_cafile"):
        ensure_topics(settings(ssl_cafile=None), {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"env": "NO_SUCH_VARIABLE"}, "environment variable NO_SUCH_VARIABLE, which is not set"),
        ({"file": "/no/such/file"}, "the file /no/such/file: No such file or directory"),
        ({"command": ["no-such-program"]}, "`no-such-program` prints, and it cannot be run"),
    ],
)
def test_a_password_that_is_not_there_is_asked_for_before_a_connection(given, said):
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1", security={"sasl_plain_password": given})
    with pytest.raises(BadInput) as refused:
        ensure_topics(kafka, {"ads": 1})
    assert str(refused.value).startswith("kafka.security.sasl_plain_password is ")
    assert said in str(refused.value)


def test_a_password_from_a_file_or_a_command_is_taken(settings, tmp_path):
    (tmp_path / "password").write_text(PASSWORD + "\n")
    ensure_topics(settings(sasl_plain_password={"file": str(tmp_path / "password")}), {"by-file": 1})
    ensure_topics(settings(sasl_plain_password={"command": ["cat", str(tmp_path / "password")]}), {"by-command": 1})

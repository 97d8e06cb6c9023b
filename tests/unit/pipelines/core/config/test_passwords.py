"""Passwords in a config: where they are read from, and that nothing written or said holds them."""

from pathlib import Path

import pytest
import yaml

from pipelines.core.config.settings import dump, load, parse
from pipelines.core.config.text import override, passwords_in
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.worker_spec import worker_specs
from streaming.errors import BadInput
from tests.support.pipelines.raw_configs import changed, refusal

PASSWORD = "s3cret-of-the-stream"
SETTING = "kafka.security.sasl_plain_password"


def test_a_plain_password_is_in_nothing_that_is_written_and_reaches_the_client():
    config = parse(changed(SETTING, PASSWORD))
    assert PASSWORD not in dump(config) + repr(config) + str(config) + config.model_dump_json()
    assert config.kafka.client_security() == {"sasl_plain_password": PASSWORD}
    assert parse(changed(SETTING, 1234)).kafka.client_security() == {"sasl_plain_password": "1234"}


def test_a_config_that_was_written_down_is_the_same_run_and_lacks_only_the_password():
    config = parse(changed(SETTING, PASSWORD))
    again = parse(yaml.safe_load(dump(config)))
    assert again.hash == config.hash
    assert dump(again) == dump(config)


def test_a_worker_gets_the_password_beside_its_config():
    wanted = worker_specs(parse(changed(SETTING, PASSWORD)), RunDir(Path("run")), "h:1", True)
    for build in (each.build for each in wanted):
        assert PASSWORD not in repr(build)
        assert build.passwords["sasl_plain_password"].get_secret_value() == PASSWORD


@pytest.mark.parametrize(
    "wrong", [["s3cret"], {"env": "A", "file": "b"}, {}, {"enw": "A"}, True, {"command": "s3cret"}, None, 3.5]
)
def test_what_is_no_password_is_refused_without_being_quoted(wrong):
    said = refusal(changed(SETTING, wrong))
    assert "sasl_plain_password: give exactly one of {env: NAME}, {file: PATH}" in said
    assert "s3cret" not in said


def test_a_file_with_a_password_lies_relative_to_its_config(tmp_path, monkeypatch):
    raw = changed("kafka.security", {"sasl_plain_password": {"file": "kafka.password"}})
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    (tmp_path / "kafka.password").write_text(PASSWORD + "\n")
    config = load(tmp_path / "mine.yaml")
    assert config.kafka.client_security() == {"sasl_plain_password": PASSWORD}


@pytest.mark.parametrize(
    ("assignment", "plain"),
    [
        (f"{SETTING}=s3cret", True),
        (f"{SETTING}=1234", True),
        ("kafka.security={ssl_password: s3cret}", True),
        ("kafka={security: {ssl_password: s3cret}}", True),
        (f"{SETTING}={{env: KAFKA_PASSWORD}}", False),
        (f"{SETTING}.env=KAFKA_PASSWORD", False),
        ("kafka.security.sasl_plain_username=exfm", False),
        ("seed=2", False),
        ("kafka=null", False),
    ],
)
def test_a_password_in_an_option_is_noticed(assignment, plain):
    assert bool(passwords_in(assignment)) is plain


@pytest.mark.parametrize(
    "assignment",
    [
        "kafka.security={sasl_plain_password: s3cret",
        "kafka={security: {ssl_password: s3cret}, port: [",
        "kafka.security.sasl_plain_password=[s3cret",
        "kafka.security.sasl_plain_password.env={a: s3cret",
        "kafka.security.sasl_plain_password:s3cret",
        "students.9={sasl_plain_password: s3cret}",
        "seed.below={sasl_plain_password: s3cret}",
        "kafka.security=sasl_plain_password:s3cret",
        "kafka.security='{sasl_plain_password: s3cret}'",
        "kafka='security: {sasl_plain_password: s3cret}'",
    ],
)
def test_an_option_that_went_wrong_is_shown_without_the_password_in_it(assignment):
    def load_with_it():
        raw = changed("seed", 1)
        override(raw, assignment)
        parse(raw)

    with pytest.raises(BadInput) as refused:
        load_with_it()
    assert "s3cret" not in str(refused.value)
    assert assignment.split("=")[0].split(":")[0].split(".")[0] in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        "'s3cret",
        "*s3cret",
        "!s3cret x",
        "!!int s3cret",
        "!!float s3cret",
        '"s3cret\\q"',
        "[s3cret",
        "s3cret: x",
    ],
)
def test_a_file_that_is_no_yaml_is_refused_without_its_password(tmp_path, value):
    (tmp_path / "mine.yaml").write_text(f"name: mine\nkafka:\n  security:\n    sasl_plain_password: {value}\nseed: 1\n")
    with pytest.raises(BadInput, match=r"mine\.yaml is not YAML: ") as refused:
        load(tmp_path / "mine.yaml")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "security",
    [
        {"sasl_mechanism": "OAUTHBEARER"},
        {"sasl_oauth_token": {"env": "TOKEN"}},
        {"sasl_mechanism": "PLAIN", "sasl_oauth_token": {"env": "TOKEN"}},
    ],
)
def test_oauth_and_its_token_belong_together(security):
    assert "`sasl_mechanism: OAUTHBEARER` and `sasl_oauth_token`" in refusal(changed("kafka.security", security))


def test_a_token_is_a_secret_like_a_password():
    config = parse(changed("kafka.security", {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token": "t0ken"}))
    assert "t0ken" not in dump(config) + repr(config) + config.model_dump_json()
    assert config.kafka.oauth_tokens.token() == "t0ken"
    assert passwords_in("kafka.security.sasl_oauth_token=t0ken") == ["kafka.security.sasl_oauth_token"]

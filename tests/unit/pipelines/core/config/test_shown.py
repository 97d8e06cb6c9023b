"""What `exfm config` prints: all settings, those that differ, and the schema by which editors know them."""

from __future__ import annotations

import json

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli.console import app
from pipelines.core.config.settings import load
from pipelines.core.config.text import read_settings
from tests.support.places import CONFIGS

FILES = sorted(CONFIGS.glob("*.yaml"))


def said(*words: str) -> str:
    done = CliRunner().invoke(app, ["config", *words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
@pytest.mark.parametrize("diff", [[], ["--diff"]])
def test_what_is_shown_is_the_same_config(tmp_path, path, diff):
    (tmp_path / "shown.yaml").write_text(said("show", *diff, str(path)))
    assert load(tmp_path / "shown.yaml").hash == load(path).hash


def test_only_what_differs_from_the_defaults_is_a_difference():
    whole, diff = (yaml.safe_load(said("show", *words, "jd")) for words in ([], ["--diff"]))
    assert diff["pace"] == {"mode": "lockstep", "block_rows": 256, "lag": 1}
    assert whole["pace"]["commit_interval_s"] == 5.0
    assert "lake" in whole
    assert "lake" not in diff
    assert diff["students"][0]["batch_rows"] == 128  # of student_defaults


def test_an_override_is_shown():
    assert yaml.safe_load(said("show", "--diff", "jd", "--set", "seed=7"))["seed"] == 7


def test_the_schema_is_written_where_it_is_wanted(tmp_path):
    assert said("schema", "-o", str(tmp_path / "schema.json")) == ""
    assert (tmp_path / "schema.json").read_text() == said("schema")


def schema() -> jsonschema.Draft202012Validator:
    value = json.loads(said("schema"))
    jsonschema.Draft202012Validator.check_schema(value)
    return jsonschema.Draft202012Validator(value)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_config_that_is_shipped_has_the_schema(path):
    assert [error.message for error in schema().iter_errors(read_settings(path, "config"))] == []


@pytest.mark.parametrize(
    ("section", "wrong"),
    [("pace", {"mode": "fast"}), ("teacher", {"batch_row": 8}), ("students", [{"verticals": "all"}]), ("seed", "one")],
)
def test_a_wrong_setting_is_found_by_the_schema(section, wrong):
    settings = read_settings(CONFIGS / "jd.yaml", "config") | {section: wrong}
    assert [error.absolute_path[0] for error in schema().iter_errors(settings)] == [section]

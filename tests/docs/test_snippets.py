"""Snippets of the documents: Python parses, the training loop runs with torch alone, configs are valid."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
import yaml

from pipelines.core.config.following import follows_lake
from pipelines.core.config.settings import dump, load
from tests.support.documents import documents, fenced
from tests.support.places import ROOT

DOCUMENTS = documents()
ABSENT = ("ray", "kafka", "mlflow", "torchrec", "streaming", "pipelines")


def test_the_training_loop_runs_with_torch_alone():
    page = DOCUMENTS["docs/tutorials/own-training-loop.md"]
    (snippet,) = [snippet for snippet in fenced(page, "python") if "optimizer.step()" in snippet]
    absent = f"import sys\nfor name in {ABSENT}: sys.modules[name] = None\n"
    subprocess.run([sys.executable, "-c", absent + snippet], check=True, timeout=120, cwd=ROOT)


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_python_snippet_is_python(path):
    for snippet in fenced(DOCUMENTS[path], "python"):
        ast.parse(snippet)


def configs() -> list[tuple[str, dict]]:
    return [(path, yaml.safe_load(block)) for path, text in DOCUMENTS.items() for block in fenced(text, "yaml")]


WHOLE = [(path, config) for path, config in configs() if "rows" in config]
PARTS = [(path, config) for path, config in configs() if "rows" not in config]


def valid(config: dict, folder) -> None:
    (folder / "clicks.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    load(folder / "clicks.yaml")


@pytest.mark.parametrize(("path", "config"), WHOLE, ids=[path for path, _ in WHOLE])
def test_every_whole_config_is_valid(path, config, tmp_path):
    valid(config, tmp_path)


@pytest.mark.parametrize(("path", "config"), PARTS, ids=[path for path, _ in PARTS])
def test_every_part_of_a_config_is_valid_within_that_of_the_readme(path, config, tmp_path):
    (whole,) = (config for page, config in WHOLE if page == "README.md")
    if follows_lake(config):  # beside the run whose lake it is
        leads = tmp_path / config["source"]["lake"]
        leads.mkdir(parents=True)
        (leads / "config.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
        (leads / "config.yaml").write_text(dump(load(leads / "config.yaml")))
        valid(config, tmp_path)
        return
    valid({key: value for key, value in whole.items() if key != "source"} | config, tmp_path)

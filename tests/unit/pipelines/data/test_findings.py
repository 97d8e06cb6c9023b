"""The table of findings: ids that stay, each remedy written once, and no row that nothing raises."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

import pipelines.data
from pipelines.data.findings import TABLE, Rules, Severity

SOURCES = {path: path.read_text() for path in sorted(Path("pipelines/data").rglob("*.py"))}


@pytest.fixture(scope="module", autouse=True)
def all_rules():
    for module in pkgutil.walk_packages(pipelines.data.__path__, "pipelines.data."):
        importlib.import_module(module.name)


def test_an_id_is_an_area_and_a_name():
    assert len(TABLE) > 100
    assert [id_ for id_ in TABLE if not re.fullmatch(r"[a-z]+\.[a-z0-9-]+", id_)] == []


def test_a_remedy_is_written_once():
    remedies = Counter(rule.remedy for rule in TABLE.values() if rule.remedy and not rule.remedy.startswith("{"))
    assert [remedy for remedy, rows in remedies.items() if rows > 1] == []


def test_every_row_is_raised_by_the_file_that_holds_it():
    for id_ in TABLE:
        (source,) = (
            text for text in SOURCES.values() if re.search(rf"^[a-z|]+  {re.escape(id_)}  ", text, re.MULTILINE)
        )
        assert f'"{id_}"' in source, id_


def test_a_finding_takes_a_severity_of_its_row():
    rules = Rules("note|warn  test.row  x\n    seen")
    try:
        assert rules("test.row", Severity.WARN).severity is Severity.WARN
        with pytest.raises(ValueError, match="never of severity stop"):
            rules("test.row", Severity.STOP)
        with pytest.raises(ValueError, match=r"of the same id: test\.row"):
            Rules("stop  test.row  x\n    seen")
    finally:
        del TABLE["test.row"]

"""The page of settings that matter names settings that exist, with the defaults that they have."""

from __future__ import annotations

import re

import pytest
from pydantic.fields import FieldInfo

from docs.generate.settings import default_of, sections
from pipelines.core.config.settings import Config
from tests.support.places import ROOT

PAGE = (ROOT / "docs/guides/the-20-settings-that-matter.md").read_text()
ROWS = re.findall(r"^\| `([^`]+)` \| (required|`[^`]+`) \|", PAGE, re.M)


def fields() -> dict[str, FieldInfo]:
    """Every setting of a config, by its path."""
    return {
        f"{path}.{name}".lstrip("."): field
        for model, paths in sections(Config).items()
        for path in paths
        for name, field in model.model_fields.items()
    }


def test_there_are_twenty():
    assert len(ROWS) == len(dict(ROWS)) == 20


@pytest.mark.parametrize(("path", "default"), ROWS)
def test_a_setting_has_the_default_that_the_page_says(path, default):
    assert default_of(fields()[path]) == default

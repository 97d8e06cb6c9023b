"""Changelog, citation and package name one version."""

from __future__ import annotations

import re

import yaml

import exfm
from tests.support.places import ROOT


def test_the_citation_is_complete_and_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "title", "message", "authors", "license"} <= set(citation)
    assert citation["version"] == exfm.__version__


def test_the_changelog_has_this_version_and_what_comes_next():
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0] == "Unreleased"
    assert exfm.__version__ in versions

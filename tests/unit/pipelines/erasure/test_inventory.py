"""The inventory of erasures: every kind of file that the reference names is in it, and every place of the code."""

from __future__ import annotations

import re

import pytest

from pipelines.erasure.inventory import KINDS, Fate, kind_of
from tests.support.places import ROOT

PAGE = (ROOT / "docs/reference/run-directory.md").read_text()


def documented():
    """The paths in the first column of the page's first table, with a name for each placeholder."""
    table = PAGE.split("| path | what it is |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    paths = [path for cell in cells for path in re.findall(r"`([^`]+)`", cell)]
    return [path.rstrip("/").replace("NAME", "feed") for path in paths]


@pytest.mark.parametrize("path", documented())
def test_every_kind_of_file_that_the_reference_names_is_in_the_inventory(path):
    assert kind_of(path) is not None


def test_a_new_kind_of_file_is_not_in_it_by_itself():
    assert kind_of("diary.json") is None
    assert kind_of("lake/new_table/part.parquet") is None


def test_every_kind_of_the_inventory_is_in_the_reference_or_made_by_the_program_alone():
    named = set(documented())
    own = {"forgotten.lock", ".status.json.spare", "lineage.json", "source_files", "end_offsets.json", "place.json"}
    own |= {
        "run.lock",
        ".object-store.json",
        ".pull",
        "lake/asof_features.lock",
        "lake/withdrawn.json",
        "lake/withdraw.json",
    }
    own |= {"lake/.withdrawn.json.lock", "lake/logit_sets", "checkpoints/augmentation", "snapshots/live", "students"}
    paths = {path for kind in KINDS for path in kind.paths} - own
    assert {path for path in paths if path not in named} == set()


def test_what_stays_says_why_where_it_holds_anything_of_a_person():
    silent = [kind.paths for kind in KINDS if kind.fate is Fate.OLDER_REMOVED and not kind.why]
    assert silent == []

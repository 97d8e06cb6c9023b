"""The list of mutations does not rot: every edit finds its place, and names tests that are there."""

from __future__ import annotations

import re

import pytest

from tests.mutations.attempts import ROOT, Mutation
from tests.mutations.edits import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_still_finds_its_place_and_its_tests(mutation: Mutation):
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert mutation.old != mutation.new
    for name in mutation.tests.split(" -k")[0].split():
        path, _, test = name.partition("::")
        assert (ROOT / path).exists()
        assert not test or re.search(rf"def {test}\b", (ROOT / path).read_text())


def moved(path: str, test: str) -> bool:
    """True where `make test` leaves out this test, or the whole file."""
    text = (ROOT / path).read_text()
    decorated = re.search(rf"((?:^@.*\n)*)^def {test}\b", text, re.MULTILINE) if test else None
    marks = (decorated[1] if decorated else "") + "".join(re.findall(r"^pytestmark = .*$", text, re.MULTILINE))
    return "mark.check" in marks or bool(re.search(r"^@pytest\.mark\.slow", marks, re.MULTILINE))


def test_what_finds_a_planted_fault_is_in_the_first_tier():
    named = [name for mutation in MUTATIONS for name in mutation.tests.split(" -k")[0].split()]
    assert named
    assert [name for name in named if moved(*(name + "::").split("::")[:2])] == []


def test_every_invariant_of_the_design_has_one():
    rules = " ".join(mutation.rule for mutation in MUTATIONS)
    names = {
        "score before learn",
        "exactly once",
        "the lake is the log",
        "slow labels hold nobody up",
        "the lake holds raw values",
        "nothing lost",
        "replay equals live",
        "logits from a trained teacher",
        "serving purity",
    }
    assert {name for name in names if name not in rules} == set()
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 20

"""`exfm promote` and `exfm rollback` as a person or a script uses them, on a run that has published versions."""

from __future__ import annotations

import json

import pytest

from pipelines.cli import console as cli
from pipelines.core.config.settings import dump, parse
from pipelines.core.run_dir.paths import RunDir
from pipelines.track.registry.aliases import Action, Aliases
from pipelines.track.registry.ledger import POLICY, Ledger
from tests.support.pipelines.raw_configs import small

V1, V2, V3 = "v00000001", "v00000002", "v00000003"


@pytest.fixture
def ledger(tmp_path):
    """Of student `feed`, whose champion is the second of three versions, and whose candidate is the third."""
    run_dir = RunDir(tmp_path)
    run_dir.config.write_text(dump(parse(small(tracking={"enabled": False}))))
    ledger = Ledger(run_dir, "feed")
    with ledger.writing() as writing:
        for version in (V1, V2, V3):
            writing.add(Action.PUBLISHED, version, by=POLICY, reason="so many rows")
            ledger.folder(version).mkdir(parents=True)
        for action, version in ((Action.PROMOTED, V1), (Action.PROMOTED, V2), (Action.TRIAL, V3)):
            writing.add(action, version, by=POLICY, reason="as planned")
    return ledger


def run(capsys, tmp_path, command, *options):
    with pytest.raises(SystemExit) as left:
        cli.main([*command.split(), "--run-dir", str(tmp_path), *options])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


def test_the_candidate_is_promoted_by_hand_and_the_reason_kept(capsys, tmp_path, ledger):
    code, out, _ = run(capsys, tmp_path, "promote feed", "--reason", "seen in the shadow test")
    assert code == 0
    assert f"feed: {V3} is champion (by hand" in out
    assert ledger.aliases() == Aliases(champion=V3, previous=V2)
    last = ledger.entries()[-1]
    assert (last["by"], last["reason"], last["version"]) == ("hand", "seen in the shadow test", V3)


def test_a_version_may_be_named_and_naming_it_again_changes_nothing(capsys, tmp_path, ledger):
    options = ("--version", V1, "--reason", "the old one was better", "--json")
    found = [json.loads(run(capsys, tmp_path, "promote feed", *options)[1]) for _ in range(2)]
    assert [value["changed"] for value in found] == [True, False]
    assert found[0] | {"changed": False} == found[1]
    assert (found[0]["champion"], found[0]["previous"], found[0]["candidate"]) == (V1, V2, None)
    assert len(ledger.entries()) == 7


def test_a_rollback_goes_one_step_back_however_often_it_is_asked_for(capsys, tmp_path, ledger):
    found = [json.loads(run(capsys, tmp_path, "rollback feed", "--reason", "bad ads", "--json")[1]) for _ in range(3)]
    assert [value["changed"] for value in found] == [True, False, False]
    assert {value["champion"] for value in found} == {V1}
    assert ledger.aliases() == Aliases(champion=V1)


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ("promote fed", ("--reason", "x"), "did you mean `feed`?"),
        (
            "promote feed",
            ("--version", "v9", "--reason", "x"),
            f"has no version `v9` on the disk; it has {V1}, {V2}, {V3}",
        ),
        ("promote feed", ("--reason", "  "), "--reason is empty"),
        ("rollback fed", ("--reason", "x"), "no student `fed`"),
    ],
)
def test_mistakes_are_said_and_change_nothing(capsys, tmp_path, ledger, command, options, words):
    before = ledger.entries()
    code, _, err = run(capsys, tmp_path, command, *options)
    assert code == 2
    assert words in err
    assert ledger.entries() == before


def test_without_a_candidate_a_version_has_to_be_named(capsys, tmp_path, ledger):
    with ledger.writing() as writing:
        writing.add(Action.ENDED, V3, by=POLICY, reason="worse")
    code, _, err = run(capsys, tmp_path, "promote feed", "--reason", "x")
    assert (code, "has no candidate now" in err) == (2, True)


def test_there_is_no_way_back_from_the_first_champion(capsys, tmp_path, ledger):
    ledger.path.write_text("".join(ledger.path.read_text().splitlines(keepends=True)[:4]))
    code, _, err = run(capsys, tmp_path, "rollback feed", "--reason", "x")
    assert (code, f"has had one champion, {V1}" in err) == (2, True)


def test_a_champion_that_was_pruned_cannot_be_gone_back_to(capsys, tmp_path, ledger):
    ledger.folder(V1).rmdir()
    code, _, err = run(capsys, tmp_path, "rollback feed", "--reason", "x")
    assert (code, f"the champion before, {V1}, is not on the disk any more" in err) == (2, True)


def test_a_run_without_versions_and_a_folder_without_a_run_are_said(capsys, tmp_path):
    code, _, err = run(capsys, tmp_path, "promote feed", "--reason", "x")
    assert (code, "holds no run" in err) == (2, True)
    RunDir(tmp_path).config.write_text("name: toy\n")
    code, _, err = run(capsys, tmp_path, "promote feed", "--reason", "x")
    assert (code, "has published a version yet" in err) == (2, True)

"""The ledger: only ever added to, whole after a crash, one writer at a time."""

from __future__ import annotations

import json

import pytest

from pipelines.core.run_dir.paths import RunDir
from pipelines.track.registry import ledger
from pipelines.track.registry.aliases import Action, Aliases
from pipelines.track.registry.ledger import HAND, POLICY, Ledger
from streaming.errors import StreamingError
from streaming.store.lock import file_lock


@pytest.fixture
def feed(tmp_path):
    return Ledger(RunDir(tmp_path), "feed")


def add(feed, *actions):
    with feed.writing() as writing:
        for action, version in actions:
            writing.add(action, version, by=POLICY, reason="because")


def test_every_decision_is_kept_with_the_standing_that_it_left(feed):
    assert (feed.entries(), feed.aliases()) == ([], Aliases())
    add(feed, (Action.PUBLISHED, "v1"), (Action.PROMOTED, "v1"), (Action.PUBLISHED, "v2"), (Action.TRIAL, "v2"))
    assert feed.aliases() == Aliases(candidate="v2", champion="v1")
    add(feed, (Action.PROMOTED, "v2"))
    assert feed.aliases() == Aliases(champion="v2", previous="v1")
    with feed.writing() as writing:
        writing.add(Action.ROLLED_BACK, "v1", by=HAND, reason="v2 shows bad ads")
    assert feed.aliases() == Aliases(champion="v1")
    assert [(e["action"], e["champion"]) for e in feed.entries()][-2:] == [("promoted", "v2"), ("rolled back", "v1")]
    assert feed.entries()[-1]["reason"] == "v2 shows bad ads"


def test_a_trial_that_ended_leaves_the_champion(feed):
    add(feed, (Action.PROMOTED, "v1"), (Action.TRIAL, "v2"), (Action.ENDED, "v2"))
    assert feed.aliases() == Aliases(champion="v1")


def test_half_a_line_that_a_crash_left_was_never_an_entry(feed):
    add(feed, (Action.PROMOTED, "v1"))
    with feed.path.open("a") as file:
        file.write('{"action": "promoted", "version": "v2", "cha')
    assert feed.aliases().champion == "v1"
    add(feed, (Action.PROMOTED, "v3"))
    assert [json.loads(line)["version"] for line in feed.path.read_text().splitlines()] == ["v1", "v3"]


def test_a_ledger_that_was_altered_is_named(feed):
    add(feed, (Action.PROMOTED, "v1"))
    feed.path.write_text("no json\n")
    with pytest.raises(StreamingError, match=r"feed\.jsonl is damaged"):
        feed.aliases()


def test_who_cannot_have_the_lock_is_told_and_writes_nothing(feed, monkeypatch):
    monkeypatch.setattr(ledger, "LOCK_WAIT_S", 0.02)
    add(feed, (Action.PROMOTED, "v1"))
    with file_lock(feed.path.with_suffix(".lock")), pytest.raises(StreamingError, match="another process"):
        add(feed, (Action.PROMOTED, "v2"))
    assert feed.aliases().champion == "v1"


def test_versions_that_stand_for_something_are_not_pruned(feed):
    for number in range(6):
        feed.folder(f"v{number}").mkdir(parents=True)
    add(feed, (Action.PROMOTED, "v0"), (Action.PROMOTED, "v2"), (Action.TRIAL, "v1"))
    with feed.writing() as writing:
        writing.prune(keep=2)
    assert sorted(folder.name for folder in feed.versions.iterdir()) == ["v0", "v1", "v2", "v4", "v5"]

"""The wishes of a roster, granted or refused by a run; nothing in a wish ends it."""

from __future__ import annotations

from typing import Any

import pytest

from exfm.errors import ModelError
from pipelines.core.config.settings import parse
from pipelines.core.run_dir.roster import Presence, Roster
from pipelines.live.loop.reconciler import Change, ChangeKind, RosterReconciler
from pipelines.live.rules.states import WorkerState
from streaming.errors import BadInput
from streaming.store.files import write_json
from tests.support.pipelines.raw_configs import changed, small


class Run:
    """A run that does as it is asked, and notes it."""

    def __init__(self, raw: dict[str, Any] | None = None) -> None:
        self.config = parse(raw or small())
        self.asked: list[str] = []
        self.lake_rows, self.draining = 0, False
        self.at_work = {"feed", "shop"}
        self.given_up: set[str] = set()
        self.kept: list[str] = []
        self.trouble: Exception | None = None

    def reconcile(self, reconciler: RosterReconciler) -> None:
        """As `LiveRun` does it."""
        states = dict.fromkeys(self.at_work, WorkerState.RUNNING) | dict.fromkeys(self.given_up, WorkerState.FAILED)
        for change in reconciler.changes(self.config, states, self.lake_rows, stream_ended=self.draining):
            try:
                self._make(change)
            except (BadInput, ModelError) as error:
                reconciler.answer(change, error)
            else:
                reconciler.answer(change)

    def _make(self, change: Change) -> None:
        if change.kind is ChangeKind.KEEP_ROWS:
            self.kept.append(change.name)
        elif change.kind not in (ChangeKind.NONE, ChangeKind.REFUSE):
            if change.kind is ChangeKind.SPAWN and self.trouble is not None:
                raise self.trouble
            joins = change.kind in (ChangeKind.SPAWN, ChangeKind.RESUME)
            self._note(str(change.kind), change.name, at_work=joins)

    def _note(self, what: str, name: str, *, at_work: bool) -> None:
        self.asked.append(f"{what} {name}")
        (self.at_work.add if at_work else self.at_work.discard)(name)


@pytest.fixture
def roster(tmp_path) -> Roster:
    return Roster(tmp_path)


def test_every_wish_is_granted_once(roster):
    run, reconciler = Run(), RosterReconciler(roster)
    roster.ask("late", Presence.RUNNING, {"name": "late"})
    roster.ask("feed", Presence.PAUSED)
    for _ in range(3):
        run.reconcile(reconciler)
    assert run.asked == ["pause feed", "spawn late"]
    roster.ask("feed", Presence.RUNNING)
    roster.ask("shop", Presence.RETIRED)
    for _ in range(3):
        run.reconcile(reconciler)
    assert run.asked[2:] == ["resume feed", "retire shop"]
    assert roster.open == []


@pytest.mark.parametrize("trouble", [BadInput("no room"), ModelError("it does not fit")])
def test_what_cannot_be_granted_is_refused_with_why_and_the_run_goes_on(roster, trouble):
    run, reconciler = Run(), RosterReconciler(roster)
    run.trouble = trouble
    roster.ask("late", Presence.RUNNING, {"name": "late"})
    roster.ask("nobody", Presence.PAUSED)
    run.reconcile(reconciler)
    outcomes = {name: roster.outcome(name) for name in ("late", "nobody")}
    assert outcomes["late"] is not None
    assert (outcomes["late"].refused, outcomes["late"].words) == (True, str(trouble))
    assert outcomes["nobody"] is not None
    assert "no student of the run is named `nobody`" in outcomes["nobody"].words
    assert roster.standing == []


def test_a_damaged_wish_ends_no_run_keeps_no_one_else_waiting_and_is_said_once(roster, monkeypatch):
    run, reconciler, said = Run(), RosterReconciler(roster), list[str]()
    monkeypatch.setattr("pipelines.live.loop.reconciler.log.error", lambda form, *of: said.append(form % of))
    roster.ask("late", Presence.RUNNING, {"name": "late"})
    path = roster.folder / "late" / "wish.json"
    path.write_text('{"name": 3}')
    roster.ask("shop", Presence.PAUSED)
    for _ in range(3):
        run.reconcile(reconciler)
    assert run.asked == ["pause shop"]
    assert len(said) == 1
    assert "wish.json is damaged" in said[0]


def test_an_answer_that_finds_no_room_on_the_disk_is_given_at_the_next_look(roster, monkeypatch):
    run, reconciler = Run(), RosterReconciler(roster)
    roster.ask("shop", Presence.PAUSED)
    with monkeypatch.context() as patch:
        patch.setattr(Roster, "answer", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        run.reconcile(reconciler)
    assert [desired.name for desired in roster.open] == ["shop"]
    run.reconcile(reconciler)
    assert roster.open == []


def test_a_student_that_has_failed_goes_on_when_it_is_asked_for(roster):
    run, reconciler = Run(), RosterReconciler(roster)
    run.given_up = {"feed"}
    roster.ask("feed", Presence.RUNNING)
    run.reconcile(reconciler)
    assert run.asked == ["resume feed"]
    run.given_up = set()
    roster.ask("feed", Presence.RUNNING, again=True)
    run.reconcile(reconciler)
    assert run.asked == ["resume feed"]


def test_a_student_that_joins_later_is_let_in_once_the_lake_has_its_rows_or_ends(roster):
    raw = changed("students.0.joins_at_rows", 100)
    run, reconciler = Run(raw), RosterReconciler(roster)
    run.at_work = {"shop"}
    run.reconcile(reconciler)
    run.lake_rows = 99
    run.reconcile(reconciler)
    assert run.asked == []
    assert run.kept == ["feed"]  # not at every look
    run.lake_rows = 100
    run.reconcile(reconciler)
    run.reconcile(reconciler)
    assert run.asked == ["resume feed"]
    short = Run(raw)
    short.at_work, short.draining = {"shop"}, True
    short.reconcile(RosterReconciler(roster))
    assert short.asked == ["resume feed"]


def test_a_student_that_could_not_join_when_it_was_due_joins_later_and_holds_up_no_other(roster):
    raw = changed("students.0.joins_at_rows", 100)
    raw["students"][1]["joins_at_rows"] = 100
    run, reconciler = Run(raw), RosterReconciler(roster)
    run.at_work, run.lake_rows = set(), 100
    roster.answer(roster.ask("feed", Presence.RUNNING), "it joins when it is due")
    path = roster.folder / "feed" / "wish.json"
    whole = path.read_text()
    path.write_text('{"name": 3}')
    for _ in range(2):
        run.reconcile(reconciler)
    assert run.asked == ["resume shop"]
    path.write_text(whole)
    for _ in range(2):
        run.reconcile(reconciler)
    assert run.asked == ["resume shop", "resume feed"]


def test_rows_of_a_student_that_is_yet_to_join_are_kept_until_it_does(roster):
    now = 0.0
    run, reconciler = Run(changed("students.0.joins_at_rows", 100)), RosterReconciler(roster, lambda: now)
    run.at_work = {"shop"}
    for now in (0.0, 5.0, 11.0, 22.0):  # noqa: B007
        run.reconcile(reconciler)
    assert run.kept == ["feed"] * 3
    run.lake_rows, now = 100, 40.0
    run.reconcile(reconciler)
    assert run.kept == ["feed"] * 3


def test_a_refused_wish_leaves_what_was_granted_before_it(roster):
    run, reconciler = Run(), RosterReconciler(roster)
    roster.ask("late", Presence.RUNNING, {"name": "late"})
    run.reconcile(reconciler)
    roster.ask("late", Presence.PAUSED)
    run.reconcile(reconciler)
    run.at_work.discard("late")
    run.trouble = BadInput("no room")
    roster.ask("late", Presence.RUNNING)
    run.reconcile(reconciler)
    (stands,) = roster.standing
    assert (stands.wanted, stands.section) == (Presence.PAUSED, {"name": "late"})
    assert roster.ask("late", Presence.RUNNING).section == {"name": "late"}


def test_an_answer_to_another_machines_request_of_the_same_number_is_no_answer(tmp_path):
    """Each machine numbers by what it has fetched."""
    roster = Roster(tmp_path)
    first = roster.ask("late", Presence.PAUSED)
    roster.answer(first, "paused")
    other = first.model_copy(update={"wanted": Presence.RETIRED, "asked_at": "2026-11-29T12:00:00.001+00:00"})
    write_json(roster.place("late") / "wish.json", other.model_dump(mode="json"))
    assert roster.open == [other]
    assert roster.outcome("late").answers(first)
    roster.answer(other, "it has left")
    assert roster.open == []

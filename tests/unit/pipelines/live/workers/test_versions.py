"""A student's versions while it learns: published, refused, compared, promoted; and what a crash changes: nothing."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from exfm.models.served import load_served
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.feeds.student import StudentBatch
from pipelines.live.training.predictions import read_predictions
from pipelines.live.workers.student import versions
from pipelines.track.registry.aliases import Action, Aliases
from pipelines.track.registry.ledger import CONCLUSION, HAND, Ledger
from tests.support.models.states import same
from tests.support.pipelines.stored_run import SMALL_RUN, rows_of
from tests.support.pipelines.student_at_work import starting
from tests.support.waiting import eventually

ROWS = 64
SETTINGS = [
    "students.0.checkpoint_every_rows=1000000",
    "registry.publish_every_rows=640",
    "registry.block_rows=8",
    "registry.pilot_blocks=8",
    "registry.min_positives=20",
]


def rows_at(step: int, *, late: bool = False) -> pa.Table:
    """Users of even ids click, the others do not, but for one in ten; from the tenth step on the other way about, so
    that what was learned before is of no use. `late`: shown at the very beginning."""
    rows = rows_of(step, ROWS)
    rng = np.random.default_rng(step)
    clicks = (rows["user_id"].to_numpy() % 2 == (step >= 10)) ^ (rng.random(ROWS) < 0.1)
    shown = np.zeros(ROWS, np.int64) if late else rows["lake_seq"].to_numpy()
    for name, values in {"label_ctr": clicks.astype(np.int8), "event_time_ms": shown}.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values))
    return rows


def learn(worker, first: int, upto: int, **how) -> None:
    for step in range(first, upto):
        worker.state.versions.read_decisions()
        rows = rows_at(step, **how)
        worker.learn(StudentBatch(rows, worker.build(rows)))
    eventually(lambda: worker.checkpointer.idle)


def plain(entries) -> list[dict]:
    """Entries without the time at which they were written, and without the folder of the run."""
    return [{k: v for k, v in entry.items() if k not in ("at", "lineage")} for entry in entries]


@pytest.fixture
def student(tmp_path):
    """`start()` starts a worker in the one run directory; `start.ledger` is its ledger."""
    with starting_in(tmp_path) as start:
        yield start


def starting_in(root, *settings):
    class Started:
        def __init__(self):
            self._context = starting(load(SMALL_RUN, [*SETTINGS, *settings]), root)
            self.root, self.ledger = root, Ledger(RunDir(root), "feed")

        def __enter__(self):
            self.start = self._context.__enter__()
            return self

        def __call__(self):
            worker = self.start()
            worker.checkpointer.put(worker.state.versions.pending_write())
            return worker

        def __exit__(self, *error):
            return self._context.__exit__(*error)

    return Started()


def actions(ledger) -> list[tuple[str, str]]:
    return [(entry["action"], entry["version"]) for entry in ledger.entries()]


def test_versions_are_published_while_it_learns_and_a_better_one_becomes_champion(student):
    worker = student()
    learn(worker, 0, 40)
    first, second = "v00000640", "v00001280"
    assert actions(student.ledger)[:5] == [
        ("published", first),
        ("promoted", first),
        ("published", second),
        ("trial", second),
        ("promoted", second),
    ]
    promoted = student.ledger.entries()[4]
    assert "better on ctr: log-loss lower by" in promoted["reason"]
    assert (promoted["by"], promoted["champion"], promoted["previous"]) == ("policy", second, first)
    assert promoted["evidence"]["tasks"]["ctr"]["log_e"] > np.log(20)
    assert promoted["evidence"]["rows"] == promoted["lake_seq"] + 1 - 1280  # every row since, none before
    assert worker.state.versions.aliases.champion == student.ledger.aliases().champion


def test_a_version_says_what_it_was_made_of(student):
    learn(student(), 0, 10)
    (published, _) = student.ledger.entries()
    assert published["lineage"]["run"] == "toy"
    assert (published["lineage"]["lake_range"], published["rows"]) == ([0, 639], 640)
    assert published["lineage"]["teacher_versions"] == [1, 8]
    assert {"ne_ctr", "auc_ctr", "calibration_ctr"} <= published["figures"].keys()
    folder = student.ledger.folder("v00000640")
    assert published["bytes"] == sum(file.stat().st_size for file in folder.iterdir())
    assert published["parity"] == {"rows": ROWS, "largest_difference": 0.0}


def test_what_is_published_is_the_student_of_that_moment(student):
    worker = student()
    learn(worker, 0, 10)
    batch = worker.build(rows_at(99))
    now = worker.state.engine.student.score(batch)
    learn(worker, 10, 13)
    assert np.array_equal(load_served(student.ledger.folder("v00000640")).score(batch), now)


def test_what_is_published_and_compared_changes_nothing_that_is_learned(tmp_path):
    with (
        starting_in(tmp_path / "with") as publishing,
        starting_in(tmp_path / "without", "registry.publish_every_rows=null") as plain_start,
    ):
        worker, without = publishing(), plain_start()
        learn(worker, 0, 25)
        learn(without, 0, 25)
        assert "trial" in dict(actions(publishing.ledger))
        assert actions(plain_start.ledger) == []
        assert same(worker.state.engine.student.state(), without.state.engine.student.state())


def test_the_champions_logits_are_logged_for_the_rows_of_a_trial(student):
    worker = student()
    learn(worker, 0, 20)  # the first version is champion from 640 rows on, and is compared from 1,280 rows on
    assert worker.state.record.figures.windows["ctr"].ne.keys() == {"student", "no_teacher"}
    learn(worker, 20, 22)
    worker.checkpoint()
    eventually(lambda: worker.checkpointer.idle)
    logged = read_predictions(RunDir(student.root).predictions("feed"))
    champion = load_served(student.ledger.folder("v00000640"))
    assert logged["champion_ctr"].null_count == 20 * ROWS
    for step in (20, 21):
        own = logged.slice(step * ROWS, ROWS)["champion_ctr"].to_numpy()
        assert np.array_equal(own, champion.score(worker.build(rows_at(step)))[:, 0])
    assert worker.state.record.figures.windows["ctr"].ne["champion"] is None  # it scored two steps of 22


def test_an_export_that_is_another_model_is_refused_and_training_goes_on(student, monkeypatch):
    def wrong(served, state):
        plainly(served, state)
        served.serving.bias.data += 1e-3

    plainly = versions.load_student
    worker = student()
    monkeypatch.setattr(versions, "load_student", wrong)
    learn(worker, 0, 11)
    assert actions(student.ledger) == [("refused", "v00000640")]
    assert "differs from the student it was made of by" in student.ledger.entries()[0]["reason"]
    assert student.ledger.aliases() == Aliases()
    assert not student.ledger.folder("v00000640").exists()
    assert "version v00000640 was refused" in worker.state.versions.alarm
    monkeypatch.undo()
    learn(worker, 11, 20)
    assert worker.state.versions.alarm is None
    assert actions(student.ledger)[1:] == [("published", "v00001280"), ("promoted", "v00001280")]


def test_rows_that_were_shown_before_the_candidate_are_no_evidence(student):
    """Labels that come late: the candidate has learned from the time of these rows, the champion has not."""
    worker = student()
    learn(worker, 0, 20)
    assert worker.state.versions.trial.rows == 0
    learn(worker, 20, 24, late=True)
    assert worker.state.versions.trial.rows == 0
    learn(worker, 24, 26)
    assert worker.state.versions.trial.rows == 2 * ROWS


@pytest.mark.parametrize("killed_at", [5, 10, 15, 20, 23, 31])
def test_a_killed_worker_comes_to_the_same_evidence_and_the_same_ledger(tmp_path, killed_at):
    with starting_in(tmp_path / "whole") as undisturbed, starting_in(tmp_path / "killed") as killed:
        whole = undisturbed()
        learn(whole, 0, 34)
        first = killed()
        learn(first, 0, killed_at)
        first.abandon()
        second = killed()
        assert second.position < killed_at * ROWS
        learn(second, (second.position + 1) // ROWS, 34)
        assert plain(killed.ledger.entries()) == plain(undisturbed.ledger.entries())
        assert second.state.versions.aliases == whole.state.versions.aliases
        assert same(second.state.versions.state(), whole.state.versions.state())
        assert same(second.state.engine.student.state(), whole.state.engine.student.state())


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_entries_that_a_crash_kept_from_the_ledger_are_made_good(student, lost):
    worker = student()
    learn(worker, 0, 20)
    worker.abandon()
    whole = student.ledger.entries()
    lines = student.ledger.path.read_text().splitlines(keepends=True)
    student.ledger.path.write_text("".join(lines[: len(lines) - min(lost, 2)]))
    if lost == 3:  # the version, too
        for file in student.ledger.folder("v00001280").iterdir():
            file.unlink()
        student.ledger.folder("v00001280").rmdir()
    again = student()
    eventually(lambda: again.checkpointer.idle)
    assert plain(student.ledger.entries()) == plain(whole)
    assert again.state.versions.trial is not None
    assert np.array_equal(
        load_served(student.ledger.folder("v00001280")).score(again.build(rows_at(99))),
        again.state.engine.student.score(again.build(rows_at(99))),
    )


def decide(ledger, action, version):
    with ledger.writing() as writing:
        writing.add(action, version, by=HAND, reason="by hand")


def test_what_people_decide_ends_a_trial_and_is_what_later_versions_are_compared_with(student):
    worker = student()
    learn(worker, 0, 31)
    aliases = worker.state.versions.aliases
    assert aliases.previous == "v00000640"
    decide(student.ledger, Action.ROLLED_BACK, "v00000640")
    learn(worker, 31, 32)
    assert worker.state.versions.aliases == Aliases(champion="v00000640")
    assert worker.state.versions.trial is None
    learn(worker, 32, 40)
    assert student.ledger.aliases() == Aliases(candidate="v00002560", champion="v00000640")
    batch = worker.build(rows_at(99))
    champion = load_served(student.ledger.folder("v00000640")).score(batch)
    assert np.array_equal(worker.state.versions.champion.score(batch), champion)


def test_a_decision_by_hand_wins_over_one_that_the_policy_made_before_it_knew(student, monkeypatch):
    worker = student()
    learn(worker, 0, 20)
    monkeypatch.setattr(worker.state.versions, "read_decisions", lambda: None)  # it was looking elsewhere
    decide(student.ledger, Action.PROMOTED, "v00000640")
    learn(worker, 20, 29)
    assert worker.state.versions.aliases.champion == "v00001280"
    assert student.ledger.entries()[-1]["by"] == HAND
    worker.abandon()
    again = student()
    eventually(lambda: again.checkpointer.idle)
    assert again.state.versions.aliases == student.ledger.aliases() == Aliases(champion="v00000640")


def test_by_hand_alone_nothing_is_promoted(tmp_path):
    with starting(load(SMALL_RUN, [*SETTINGS, "registry.promotion=by_hand"]), tmp_path) as start:
        ledger = Ledger(RunDir(tmp_path), "feed")
        worker = start()
        learn(worker, 0, 20)
        assert ledger.aliases() == Aliases(candidate="v00001280")
        decide(ledger, Action.PROMOTED, "v00000640")
        learn(worker, 20, 45)
        assert ledger.aliases() == Aliases(candidate="v00001920", champion="v00000640")
        assert worker.state.versions.as_json()["trial"]["so_far"].startswith("better on ctr")


def test_event_time_may_say_when_a_version_is_due(tmp_path):
    settings = [*SETTINGS, "registry.publish_every_rows=null", "registry.publish_every_minutes=0.02"]  # 1,200 ms
    with starting(load(SMALL_RUN, settings), tmp_path) as start:
        learn(start(), 0, 20)
        assert actions(Ledger(RunDir(tmp_path), "feed"))[0] == ("published", "v00001280")


def test_few_versions_stay_on_the_disk(tmp_path):
    settings = [*SETTINGS, "registry.keep_versions=2", "registry.publish_every_rows=64", "registry.level=0.000001"]
    with starting(load(SMALL_RUN, settings), tmp_path) as start:
        learn(start(), 0, 8)
        ledger = Ledger(RunDir(tmp_path), "feed")
        assert sorted(f.name for f in ledger.versions.glob("v*")) == [f"v{n * 64:08d}" for n in (1, 2, 7, 8)]


def test_a_run_that_was_concluded_by_others_is_taken_up_as_it_stands(student):
    worker = student()
    learn(worker, 0, 11)
    with student.ledger.writing() as writing:
        writing.add(Action.WITHDRAWN, None, by=CONCLUSION, reason="the stream lost too much")
    worker.state.versions.read_decisions()
    assert worker.state.versions.aliases == Aliases()


def test_other_blocks_begin_the_trial_again(student, tmp_path):
    worker = student()
    learn(worker, 0, 22)
    worker.checkpoint()
    eventually(partial(getattr, worker.checkpointer, "idle"))
    worker.abandon()
    with starting(load(SMALL_RUN, [*SETTINGS, "registry.block_rows=16"]), tmp_path) as start:
        again = start()
        assert again.state.versions.aliases.candidate == "v00001280"
        assert again.state.versions.trial.rows == 0

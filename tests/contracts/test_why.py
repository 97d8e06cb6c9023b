"""`exfm why` on one run that was killed and resumed: every fate of an impression, with its positions.

What is planted, and where it lies, is read from the topics and tables themselves.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.cli.console import main
from pipelines.cli.tools.lake import LakeCare
from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.roster.pipeline import Pipeline
from pipelines.live.roster.section import SpawnRequest
from pipelines.teacher.replace.revocation import revoke
from pipelines.ui.server import RunPage
from pipelines.why.impression import why_impression
from pipelines.why.on_topics import TopicSearch
from pipelines.why.student import why_student
from streaming.errors import BadInput
from streaming.lake.readers import Readers
from tests.support.pipelines.small_runs import Finished, small, to_the_end
from tests.support.pipelines.topics import messages_of
from tests.support.places import ROOT

pytestmark = pytest.mark.broker

COMMITS = 3
KILLED = f"""
import os, signal, sys
from pathlib import Path
from pipelines.core.config.settings import load
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from streaming.lake.writer import LakeWriter
commit, commits = LakeWriter.commit, []
def counted(*given, **options):
    commits.append(1)
    if len(commits) > {COMMITS}:  # rows were read, and scored, and are not in the lake
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(*given, **options)
LakeWriter.commit = counted
run(load(sys.argv[1]), RunDir(Path(sys.argv[2])), local=True, until_end=True)
"""
REVOKED = "2:3"


class Stream:
    """What stands on the input topics, by id: (place, row), in order of offset."""

    def __init__(self, config: Config) -> None:
        self.impressions = self._read(config, config.kafka.impressions.topic)
        self.feedback = self._read(config, config.kafka.feedback.topic)

    def _read(self, config: Config, topic: str) -> dict[int, list[tuple[str, dict[str, Any]]]]:
        found = defaultdict(list)
        for message in messages_of(config.kafka.bootstrap_servers, topic):
            with suppress(pa.ArrowInvalid, TypeError), pa.ipc.open_stream(message.value) as reader:
                for at, row in enumerate(reader.read_all().to_pylist()):
                    found[row["impression_id"]].append((f"{topic}:{message.partition}:{message.offset}:{at}", row))
        return found


@pytest.fixture(scope="module")
def killed(broker, tmp_path_factory):
    """A run that was killed between reading rows and committing them: its config, its folder, what it is fed."""
    root = tmp_path_factory.mktemp("why") / "run"
    config = small(
        broker.bootstrap_servers, pace__block_rows=512, source__duplicate_rate=0.02, source__malformed_rate=0.02
    )
    (root.parent / "config.yaml").write_text(dump(config))
    arguments = [sys.executable, "-c", KILLED, str(root.parent / "config.yaml"), str(root)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    return config, root


@pytest.fixture(scope="module")
def waiting(killed):
    """The answer for an impression that had been read when the run was killed, asked before the run went on."""
    config, root = killed
    lake = Finished(config, root).lake
    settled = pc.max(lake["event_time_ms"]).as_py()
    ids = set(lake["impression_id"].to_pylist())
    shown = [rows[0][1] for rows in Stream(config).impressions.values() if len(rows) == 1]
    next_row = min((row["event_time_ms"], row["impression_id"]) for row in shown
                   if row["event_time_ms"] > settled and row["impression_id"] not in ids)  # fmt: skip
    return next_row[1], why_impression(RunDir(root), str(next_row[1]))


@pytest.fixture(scope="module")
def finished(killed, waiting):
    """The run, resumed to its end with a student that was spawned meanwhile, and a lake whose versions 2 and 3 of the
    teacher are revoked then."""
    config, root = killed
    Pipeline(root).spawn(SpawnRequest("late", verticals=("feed",), like="feed", since_seq=1000))
    finished = to_the_end(config, root)
    revoke(finished.run_dir, config, REVOKED, "a feature was wrong", live=False)
    return finished


@pytest.fixture(scope="module")
def stream(finished):
    return Stream(finished.config)


def lake_rows(finished: Finished, impression_id: int) -> list[dict[str, Any]]:
    return finished.lake.filter(pc.field("impression_id") == impression_id).to_pylist()


def place_of(row: dict[str, Any]) -> str:
    return ":".join(str(row[f"source_{name}"]) for name in ("topic", "partition", "offset", "row"))


def ask(finished: Finished, impression_id: int | str, *, topics: bool = False) -> Any:
    return why_impression(finished.run_dir, str(impression_id), TopicSearch(finished.run_dir) if topics else None)


def by_outcome(answer: Any) -> dict[str, list[str]]:
    found = defaultdict(list)
    for record in answer.records:
        found[f"{record.kind} {record.outcome}"].append(record.place)
    return found


def test_a_settled_impression_is_told_with_its_rows_its_logits_and_who_learned_it(finished, stream):
    clicked = finished.lake.filter((pc.field("label_cvr") == 1) & pc.field("teacher_logit_cvr").is_valid())
    impression_id = clicked["impression_id"][-1].as_py()
    answer = ask(finished, impression_id, topics=True)
    rows = lake_rows(finished, impression_id)
    assert (answer.fate, [row.lake_seq for row in answer.rows]) == ("settled", [row["lake_seq"] for row in rows])
    assert by_outcome(answer)["impression admitted"] == [place_of(rows[0])]
    assert set(by_outcome(answer)["feedback label"]) <= {place for place, _ in stream.feedback[impression_id]}
    assert {r.task for r in answer.records if r.outcome == "label"} == {"ctr", "cvr"}
    for told, row in zip(answer.rows, rows, strict=True):
        assert (told.block, told.scored_by.version) == (row["block"], row["teacher_version"])
        assert told.scored_by.learned_upto < told.lake_seq
        assert {logit.task: logit.value for logit in told.logits} == {
            task: row[f"teacher_logit_{task}"] for task in ("ctr", "cvr")
        }
        for student in told.students:
            own = finished.config.student(student.student).row_filter if student.student != "late" else ("feed",)
            if student.state == "learned":
                assert row["vertical"] in own
            else:
                assert student.state in ("not its row", "other tasks", "began later")
    assert answer.rows[1].logits[0].why_none.startswith("`ctr` had settled in an earlier row")


def test_the_row_of_a_student_has_its_number_and_step(finished):
    """Counted in the lake: the number-th row of its verticals, and batches of 200."""
    own = finished.lake.filter(pc.field("vertical") == "feed")
    place = own.num_rows // 2
    answer = ask(finished, own["impression_id"][place].as_py())
    row = next(row for row in answer.rows if row.lake_seq == own["lake_seq"][place].as_py())
    feed = next(student for student in row.students if student.student == "feed")
    assert (feed.state, feed.number, feed.step) == ("learned", place + 1, place // 200 + 1)
    assert set(feed.predicted) == {"ctr", "cvr"}


def test_a_late_click_is_told_with_its_reason_and_its_offset(finished):
    late = finished.side_table("late_feedback")[0]
    answer = ask(finished, late["impression_id"])
    (record,) = (r for r in answer.records if r.place == place_of(late))
    assert (record.kind, record.outcome, record.task) == ("feedback", "late", late["task"])
    assert record.words.startswith(late["reason"])
    assert f"{abs(late['late_by_ms']):,} ms" in record.words


def test_a_duplicate_is_found_on_the_topic_beside_the_one_that_was_admitted(finished, stream):
    admitted = {row["impression_id"]: place_of(row) for row in finished.lake.to_pylist()}
    twice = next(i for i, rows in stream.impressions.items() if i in admitted and len(rows) == 2)
    assert "impression duplicate" not in by_outcome(ask(finished, twice))
    answer = ask(finished, twice, topics=True)
    others = [place for place, _ in stream.impressions[twice] if place != admitted[twice]]
    assert by_outcome(answer)["impression admitted"] == [admitted[twice]]
    assert by_outcome(answer)["impression duplicate"] == others
    assert any(admitted[twice] in record.words for record in answer.records if record.outcome == "duplicate")


def test_the_page_looks_on_the_topics_where_it_is_asked_to(finished, stream):
    admitted = {row["impression_id"] for row in finished.lake.to_pylist()}
    twice = next(i for i, rows in stream.impressions.items() if i in admitted and len(rows) == 2)
    query, page = {"of": "impression", "name": str(twice)}, RunPage(finished.run_dir)
    (without,), (answer,) = page.why(query), page.why(query | {"topics": "1"})
    assert answer == ask(finished, twice, topics=True).as_json() | {"lines": answer["lines"]}
    outcomes = [{record["outcome"] for record in each["records"]} for each in (without, answer)]
    assert "duplicate" not in outcomes[0]
    assert "duplicate" in outcomes[1]


def test_a_refused_row_is_told_with_the_letters_reason_and_place(finished):
    settled = set(finished.lake["impression_id"].to_pylist())
    own = []
    for letter in finished.side_table("dead_letters"):
        with suppress(ValueError):  # bytes that are no JSON
            own.append((json.loads(letter["payload"]).get("impression_id"), letter))
    own = [(impression_id, letter) for impression_id, letter in own if isinstance(impression_id, int)]
    assert {letter["kind"] for _, letter in own} == {"impression", "feedback"}
    for impression_id, letter in own[:5] + own[-5:]:
        answer = ask(finished, impression_id)
        (record,) = (record for record in answer.records if record.place == place_of(letter))
        assert (record.kind, record.outcome) == (letter["kind"], "refused")
        assert record.words.startswith(f"{letter['reason']}: ")
        if impression_id not in settled:
            assert answer.fate == ("refused" if letter["kind"] == "impression" else "feedback only")


def test_an_impression_that_waits_is_pending_until_a_deadline(waiting, killed, stream):
    impression_id, answer = waiting
    config, _ = killed
    place, row = stream.impressions[impression_id][0]
    assert (answer.fate, [group.state for group in answer.groups]) == ("pending", ["pending", "pending"])
    assert by_outcome(answer)["impression admitted"] == [place]
    window_ms, lateness_ms = config.rows.tasks[0].window_ms, config.settlement.lateness_ms
    deadline = int(answer.groups[0].words.partition("beyond ")[2].split(",")[0].split(";")[0])
    assert deadline >= row["event_time_ms"] + window_ms + lateness_ms
    assert answer.rows == []


def test_what_was_read_again_after_a_kill_is_one_impression_with_one_row_for_each_group(waiting, finished):
    impression_id, before = waiting
    answer = ask(finished, impression_id, topics=True)
    assert answer.fate == "settled"
    assert by_outcome(answer)["impression admitted"] == by_outcome(before)["impression admitted"]
    assert "impression duplicate" not in by_outcome(answer)
    assert max(Counter(row.settlement for row in answer.rows).values()) == 1


def test_a_student_that_was_spawned_later_says_from_which_row_on_it_learns(finished):
    own = finished.lake.filter((pc.field("vertical") == "feed") & (pc.field("settlement") == "ctr"))
    seq = own["lake_seq"].to_pylist()
    early, later = (next(i for i, at in enumerate(seq) if at >= least) for least in (0, 1000))
    for at, state in ((early, "began later"), (later, "learned")):
        answer = ask(finished, own["impression_id"][at].as_py())
        (row,) = (row for row in answer.rows if row.lake_seq == seq[at])
        late = next(student for student in row.students if student.student == "late")
        assert (late.state, "1,000" in late.words) == (state, state == "began later")
        assert late.number == (1 if state == "learned" else None)


def test_revoked_logits_are_told_with_the_reason_and_the_row_from_which_on_they_are(finished):
    scored = finished.lake.filter((pc.field("teacher_version") == 2) & (pc.field("vertical") == "feed"))
    answer = ask(finished, scored["impression_id"][0].as_py())
    (row,) = (row for row in answer.rows if row.lake_seq == scored["lake_seq"][0].as_py())
    logit = row.logits[0]
    assert logit.value == scored["teacher_logit_ctr"][0].as_py()
    assert f"recorded at lake_seq {finished.lake.num_rows:,}" in logit.revoked
    assert "a feature was wrong" in logit.revoked
    feed = next(student for student in row.students if student.student == "feed")
    assert feed.words == "with its logit, revoked since"
    other = finished.lake.filter(pc.field("teacher_version") == 4)["impression_id"][0].as_py()
    assert all(logit.revoked is None for row in ask(finished, other).rows if row.scored_by.version == 4
               for logit in row.logits)  # fmt: skip


def test_a_compacted_lake_answers_as_before(finished, tmp_path):
    shutil.copytree(finished.run_dir.root, tmp_path / "run")
    impression_id = finished.lake["impression_id"][700].as_py()
    before = why_impression(RunDir(tmp_path / "run"), str(impression_id))
    files = len(list((tmp_path / "run" / "lake" / "augmented_examples").rglob("*.parquet")))
    done = LakeCare(tmp_path / "run").compact(everything=True, force=(), say=lambda line: None)
    assert files > 8
    assert any(each for each in done.values())
    assert why_impression(RunDir(tmp_path / "run"), str(impression_id)) == before


def test_a_row_that_retention_deleted_is_told_by_a_student_that_had_learned_it(finished, tmp_path):
    shutil.copytree(finished.run_dir.root, tmp_path / "run")
    own = finished.lake.filter(pc.field("vertical") == "feed")
    readers = [reader.name for reader in Readers(RunDir(tmp_path / "run").readers).all()]
    LakeCare(tmp_path / "run").retain(days=0.0, force=readers)
    answer = why_impression(RunDir(tmp_path / "run"), str(own["impression_id"][0].as_py()))
    assert answer.fate == "deleted"
    assert f"lake_seq {own['lake_seq'][0].as_py():,} is deleted (retention)" in answer.words
    assert "feed had learned it, as its row 1" in answer.words


def test_an_unknown_id_is_told_with_what_was_searched(finished, capsys):
    with suppress(SystemExit):
        main(["why", str(finished.run_dir.root), "impression", "12", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (answer["of"], answer["fate"], answer["records"], answer["rows"]) == ("impression", "unknown", [], [])
    assert answer["searched"]["lake"] == f"lake_seq 0 to {finished.lake.num_rows - 1:,}"


def test_a_students_version_is_traced_to_snapshots_rows_and_offsets(finished):
    answer = why_student(finished.run_dir, "feed")
    own = finished.lake.filter(pc.field("vertical") == "feed")
    assert answer.lake_range == [own["lake_seq"][0].as_py(), own["lake_seq"][-1].as_py()]
    versions = own["teacher_version"].drop_null().to_pylist()
    assert (answer.teacher[0].version, answer.teacher[-1].version) == (min(versions), max(versions))
    for told in answer.offsets:
        mine = own.filter(pc.field("source_partition") == told.partition)["source_offset"].to_pylist()
        assert (told.first, told.last, told.rows) == (min(mine), max(mine), len(mine))
    assert sum(told.rows for told in answer.offsets) == own.num_rows


def test_what_cannot_be_asked_is_refused_with_what_can(finished):
    with pytest.raises(BadInput, match="`abc` is no impression_id of this run"):
        ask(finished, "abc")
    with pytest.raises(BadInput, match=r"no student `nobody`.*choose from feed, brand, clicks, late"):
        why_student(finished.run_dir, "nobody")

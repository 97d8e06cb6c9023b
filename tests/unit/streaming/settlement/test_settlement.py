from dataclasses import replace

import pyarrow as pa
import pytest

from streaming.errors import BadInput, StreamingError
from streaming.intake.merge import REFUSED_SCHEMA
from streaming.messages.dead_letters import DeadLetter, letters_to_batch
from streaming.schema import RowSchema
from streaming.settlement import pending
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement
from tests.support.streams.rows import merged, settle

CLICKS_AND_SALES = [{"name": "ctr", "window_s": 1}, {"name": "cvr", "window_s": 10, "given": "ctr"}]


def schema_of(tasks) -> RowSchema:
    return RowSchema(columns=[{"name": "price"}], tasks=tasks)


def new_settlement(tasks=CLICKS_AND_SALES, **config) -> Settlement:
    return Settlement(schema_of(tasks), SettlementConfig(**config))


def labels(rows, task):
    return {row["impression_id"]: row[f"label_{task}"] for row in rows if row["settlement"] == task}


def test_a_click_inside_its_window_is_a_label_and_one_beyond_is_late():
    settlement = new_settlement()
    rows, late, _ = settle(settlement, [(1, 100), (2, 200)], [(1, 1100, "ctr"), (2, 1201, "ctr")])
    assert labels(rows, "ctr") == {1: 1, 2: 0}
    (row,) = late
    assert (row["impression_id"], row["reason"], row["late_by_ms"]) == (2, "after_settlement", 1)
    assert (row["impression_event_time_ms"], row["deadline_ms"]) == (200, 1200)
    assert settlement.counters()["late_feedback"] == 1


def test_lateness_waits_for_slow_clicks_but_does_not_widen_the_window():
    rows, late, _ = settle(
        new_settlement(lateness_s=5), [(1, 0), (2, 0), (3, 900)], [(3, 1900, "ctr"), (1, 800, "ctr"), (2, 1901, "ctr")]
    )
    assert labels(rows, "ctr") == {1: 1, 2: 0, 3: 1}  # 1 came behind the clock of its partition, in time all the same
    assert [(row["impression_id"], row["reason"], row["late_by_ms"]) for row in late] == [(2, "outside_window", 901)]


def test_a_click_before_its_impression_is_counted_as_such_and_a_label_within_the_tolerance():
    ads, clicks = [(1, 1050), (2, 1100), (3, 1100)], [(1, 1000, "ctr"), (2, 1000, "ctr"), (3, 1100, "ctr")]
    strict = new_settlement()
    rows, late, _ = settle(strict, ads, clicks)
    assert labels(rows, "ctr") == {1: 0, 2: 0, 3: 1}
    assert [(row["impression_id"], row["reason"], row["late_by_ms"]) for row in late] == [
        (1, "before_impression", -50), (2, "before_impression", -100),
    ]  # fmt: skip
    assert (strict.counters()["late_feedback"], strict.counters()["early_feedback"]) == (2, 2)
    tolerant = new_settlement(early_ms=50)
    rows, late, _ = settle(tolerant, ads, clicks)
    assert labels(rows, "ctr") == {1: 1, 2: 0, 3: 1}
    assert [row["impression_id"] for row in late] == [2]
    exact = new_settlement(early_ms=1000)
    rows, late, _ = settle(exact, ads, clicks)
    assert labels(rows, "ctr") == {1: 1, 2: 1, 3: 1}
    assert "early_feedback" not in exact.counters()


def test_sales_settle_on_clicked_rows_only():
    settlement = new_settlement()
    rows, _, _ = settle(settlement, [(1, 0), (2, 0)], [(1, 500, "ctr"), (1, 5000, "cvr"), (2, 5000, "cvr")])
    assert labels(rows, "ctr") == {1: 1, 2: 0}
    assert labels(rows, "cvr") == {1: 1}
    assert all(row["label_cvr"] is None for row in rows if row["settlement"] == "ctr")
    assert settlement.counters()["not_applicable"] == {"ctr": 0, "cvr": 1}


def test_a_conditional_task_beside_an_unconditional_one_is_null_where_its_condition_fails():
    tasks = [{"name": "ctr", "window_s": 1}, {"name": "cvr", "window_s": 1, "given": "ctr"}]
    rows, _, _ = settle(new_settlement(tasks), [(1, 0), (2, 0)], [(1, 100, "ctr"), (2, 100, "cvr")])
    assert [(row["label_ctr"], row["label_cvr"]) for row in rows] == [(1, 0), (0, None)]


def test_feedback_whose_condition_never_came_is_counted():
    settlement = new_settlement()
    sold = [(2, 100, "cvr"), (2, 200, "cvr"), (3, 50, "ctr"), (3, 60, "cvr")]
    rows, _, _ = settle(settlement, [(1, 0), (2, 0), (3, 0)], sold)
    assert labels(rows, "cvr") == {3: 1}
    assert settlement.counters()["unmet_conditions"] == {"cvr": [1, 2]}
    again = new_settlement()
    again.restore(settlement.state())
    assert again.counters() == settlement.counters()


def test_a_label_that_is_unknown_is_null_and_not_negative():
    settlement = new_settlement([{"name": "ctr", "window_s": 1}, {"name": "like", "window_s": 1}])
    rows, late, _ = settle(settlement, [(1, 0), (2, 0)], [(1, 0, "unknown:ctr"), (1, 500, "like")])
    assert [(row["label_ctr"], row["label_like"]) for row in rows] == [(None, 1), (0, 0)]
    assert settlement.counters()["unknown_labels"] == {"ctr": 1, "like": 0}
    assert late == []


def test_a_row_of_which_no_label_is_known_is_not_applicable_and_the_counts_balance():
    settlement = new_settlement()
    rows, _, _ = settle(settlement, [(1, 0), (2, 0)], [(1, 0, "unknown:ctr"), (2, 5, "ctr"), (2, 9, "unknown:cvr")])
    assert [(row["impression_id"], row["settlement"], row["label_ctr"], row["label_cvr"]) for row in rows] == [
        (2, "ctr", 1, None)
    ]
    counted = settlement.counters()
    assert (counted["settled"], counted["not_applicable"]) == ({"ctr": 1, "cvr": 0}, {"ctr": 1, "cvr": 2})
    assert counted["unknown_labels"] == {"ctr": 1, "cvr": 1}  # a sale of 1 does not apply: no click is known
    assert (counted["feedback_read"], counted["matched_feedback"]) == (3, 3)


@pytest.mark.parametrize("order", [("ctr", "unknown:ctr"), ("unknown:ctr", "ctr")])
def test_a_positive_label_wins_over_an_unknown_one(order):
    rows, _, _ = settle(new_settlement(), [(1, 0)], [(1, 100 + n, task) for n, task in enumerate(order)])
    assert labels(rows, "ctr") == {1: 1}


def test_what_becomes_unknown_after_its_label_has_settled_is_late():
    rows, late, _ = settle(new_settlement(), [(1, 0), (2, 5000)], [(1, 1500, "unknown:ctr")])
    assert labels(rows, "ctr") == {1: 0, 2: 0}
    assert [(row["task"], row["reason"]) for row in late] == [("unknown:ctr", "after_settlement")]


def test_a_task_cannot_be_named_like_an_unknown_label():
    with pytest.raises(ValueError, match=r"task `unknown:ctr` begins with `unknown:`, which feedback uses; name it"):
        schema_of([{"name": "unknown:ctr", "window_s": 1}])


def test_a_repeated_click_counts_once():
    settlement = new_settlement()
    rows, late, _ = settle(settlement, [(1, 0)], [(1, 500, "ctr"), (1, 500, "ctr"), (1, 5000, "ctr")])
    assert labels(rows, "ctr") == {1: 1}
    assert late == []
    assert settlement.counters()["duplicate_feedback"] == 2


def test_the_first_of_duplicates_wins_until_the_horizon_has_passed():
    settlement = new_settlement(dedup_horizon_s=10)
    rows, _, _ = settle(settlement, [(1, 0), (1, 10_000), (1, 10_001)])
    assert [row["source_offset"] for row in rows if row["settlement"] == "ctr"] == [0, 2]
    assert settlement.counters()["duplicates_dropped"] == 1


def test_an_impression_older_than_the_horizon_is_a_dead_letter():
    settlement = new_settlement(dedup_horizon_s=10)
    rows, _, dead = settle(settlement, [(1, 50_000), (2, 40_000), (3, 39_999)])
    assert labels(rows, "ctr") == {1: 0, 2: 0}
    assert [(letter.reason, letter.offset) for letter in dead] == [("too_old", 2)]


def test_a_click_ahead_of_its_impression_waits_for_it():
    rows, _, dead = settle(new_settlement(), [(9, 5000), (1, 5000)], [(1, 4000, "ctr"), (9, 5000, "ctr")])
    assert dead == []
    assert labels(rows, "ctr") == {9: 1, 1: 0}  # 1's click has an event time before the impression: no label


def test_a_click_waits_for_its_impression_to_the_last_moment_of_the_horizon():
    settlement = new_settlement(dedup_horizon_s=12)
    whole = merged(settlement.schema, [(5, 0), (9, 12_000), (1, 12_000)], [(1, 0, "ctr")])
    ads = whole.impressions
    first = settlement.step(replace(whole, impressions=ads.slice(0, 2)))
    second = settlement.step(replace(whole, impressions=ads.slice(2), feedback=whole.feedback.slice(0, 0)))
    assert first.dead.num_rows == second.dead.num_rows == 0
    assert second.late["reason"].to_pylist() == ["before_impression"]


def test_a_click_on_nothing_is_unmatched_and_a_dead_letter():
    settlement = new_settlement()
    _, _, dead = settle(settlement, [(1, 0)], [(2, 500, "ctr")])
    assert [(letter.reason, letter.kind) for letter in dead] == [("unknown_impression", "feedback")]
    assert b'"impression_id": 2' in dead[0].payload
    assert settlement.counters()["unmatched_feedback"] == 1


def test_reasons_that_quote_what_was_sent_do_not_fill_the_state(monkeypatch):
    monkeypatch.setattr("streaming.messages.dead_letters.MOST_NAMES", 3)
    letters = [
        DeadLetter("feedback", f"unknown_task:{n % 5}", "clicks", 0, n, 0, "no such task", b"") for n in range(20)
    ]
    columns = [*letters_to_batch(letters).columns, pa.array([100] * 20), pa.array(range(9, 29))]
    dead = pa.RecordBatch.from_arrays(columns, schema=REFUSED_SCHEMA)
    settlement = new_settlement()
    chunk = merged(settlement.schema, [(1, 100)], [])
    settlement.step(replace(chunk, dead=dead))
    assert settlement.counters()["dead_letters"]["feedback"] == {
        "unknown_task:0": 4,
        "unknown_task:1": 4,
        "unknown_task:2": 4,
        "other reasons": 8,
    }


def test_pending_is_what_waits_for_each_group():
    settlement = new_settlement()
    settlement.step(merged(settlement.schema, [(1, 0), (2, 2000)], []))
    assert (settlement.pending("ctr"), settlement.pending("cvr")) == (1, 2)
    settlement.finish()
    assert (settlement.pending("ctr"), settlement.pending("cvr")) == (0, 0)
    with pytest.raises(StreamingError, match="after the end of the stream"):
        settlement.step(merged(settlement.schema, [(3, 3000)], []))


def test_a_horizon_that_forgets_ids_too_early_is_refused():
    with pytest.raises(BadInput, match=r"dedup_horizon_s is 11, .* = 10 \+ 2 s"):
        new_settlement(lateness_s=2, dedup_horizon_s=11)


class TestStateOnDisk:
    @pytest.fixture(autouse=True)
    def _small_segments(self, monkeypatch):
        monkeypatch.setattr(pending, "SEGMENT_ROWS", 4)

    def play(self, settlement, start, stop):
        """Impressions [start, stop), one a second; every third is clicked."""
        clicks = [(i, i * 1000 + 10, "ctr") for i in range(start, stop) if i % 3 == 0]
        return settlement.step(merged(settlement.schema, [(i, i * 1000) for i in range(start, stop)], clicks)).batch

    def test_a_loaded_settlement_goes_on_like_the_one_that_was_saved(self, tmp_path):
        settlement = new_settlement()
        self.play(settlement, 0, 13)
        settlement.save(tmp_path, "step-1", extra={"positions": [1, 2]})
        again = new_settlement()
        assert again.load(tmp_path, "step-1") == {"positions": [1, 2]}
        assert again.counters() == settlement.counters()
        for start in (13, 20):
            assert self.play(again, start, start + 7).equals(self.play(settlement, start, start + 7))
        assert again.finish().batch.equals(settlement.finish().batch)

    def test_full_segments_are_written_once_and_go_when_no_kept_manifest_needs_them(self, tmp_path):
        settlement = new_settlement()
        self.play(settlement, 0, 5)
        settlement.save(tmp_path, "a")
        first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("segment-*")}
        self.play(settlement, 5, 10)
        settlement.save(tmp_path, "b", keep=["a"])
        assert {path: path.stat().st_mtime_ns for path in first} == first
        assert len(list(tmp_path.glob("segment-*"))) > len(first)

        self.play(settlement, 200, 203)
        settlement.save(tmp_path, "c", keep=["b"])
        assert sorted(path.name for path in tmp_path.glob("*.json")) == ["b.json", "c.json"]
        assert all(path.exists() for path in first)  # b still needs them
        settlement.save(tmp_path, "d")
        assert not any(path.exists() for path in first)
        new_settlement().load(tmp_path, "d")

    def test_a_save_that_dies_leaves_the_one_before_intact(self, tmp_path, monkeypatch):
        settlement = new_settlement()
        self.play(settlement, 0, 6)
        settlement.save(tmp_path, "a")
        counted = settlement.counters()
        self.play(settlement, 6, 30)
        with monkeypatch.context() as killed:
            killed.setattr("streaming.settlement.state.json.dumps", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                settlement.save(tmp_path, "b")
        again = new_settlement()
        again.load(tmp_path, "a")
        assert again.counters() == counted
        self.play(again, 6, 30)
        again.save(tmp_path, "b", keep=["a"])
        assert not list(tmp_path.glob("*.part"))

    def test_features_of_emitted_segments_are_let_go_and_their_ids_still_known(self, tmp_path):
        settlement = new_settlement(dedup_horizon_s=1000)
        self.play(settlement, 0, 4)
        held = settlement.state_bytes
        self.play(settlement, 100, 101)
        settlement.save(tmp_path, "a")
        again = new_settlement(dedup_horizon_s=1000)
        again.load(tmp_path, "a")
        assert again.state_bytes <= settlement.state_bytes < held + 200
        self.play(again, 0, 4)
        assert again.counters()["duplicates_dropped"] == 4

    def test_what_cannot_be_resumed_says_so(self, tmp_path):
        settlement = new_settlement()
        self.play(settlement, 0, 6)
        settlement.save(tmp_path, "a")
        with pytest.raises(BadInput, match=r"no settlement state `b` in .*; there is a"):
            new_settlement().load(tmp_path, "b")
        with pytest.raises(BadInput, match="written under config"):
            new_settlement(lateness_s=1).load(tmp_path, "a")
        segment = next(tmp_path.glob("segment-*"))
        segment.write_bytes(segment.read_bytes()[:100])
        with pytest.raises(StreamingError, match=f"{segment.name} of a settlement state cannot be read"):
            new_settlement().load(tmp_path, "a")


def test_the_first_dead_letter_of_each_reason_is_its_example_also_after_a_restart(tmp_path):
    settlement = new_settlement()
    settle(settlement, [(1, 0)], [(2, 500, "ctr"), (3, 600, "ctr")])
    settlement.save(tmp_path, "1")
    again = new_settlement()
    again.load(tmp_path, "1")
    for each in (settlement, again):
        example = each.letters.examples["feedback"]["unknown_impression"]
        assert example["detail"].startswith("no impression of this id within")
        assert example.keys() == {"topic", "partition", "offset", "row", "detail"}
        assert each.counters()["verticals"] == settlement.counters()["verticals"] != {}


def test_it_is_known_how_long_the_first_window_is_still_open():
    settlement = new_settlement()
    wait_s, passed_s = settlement.first_wait_s
    assert (wait_s > 0, passed_s) == (True, 0)
    settlement.step(merged(settlement.schema, [(1, 100), (2, 350)], []))
    assert settlement.first_wait_s == (wait_s, 0.25)


def test_the_rest_of_a_block_comes_at_once_where_most_of_what_is_due_leaves_for_no_group():
    settlement = new_settlement()
    shown = merged(settlement.schema, [(n, n) for n in range(1000)], [(999, 1500, "ctr")])
    assert settlement.step(shown, max_rows=600).batch.num_rows == 500
    assert settlement.finish(max_rows=99).more
    found = settlement.release(max_rows=402)  # 401 for clicks, and behind 999 that are not applicable the one for sales
    assert found.batch.num_rows == 402
    assert not found.more

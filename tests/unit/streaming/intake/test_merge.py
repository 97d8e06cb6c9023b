import random

import pyarrow as pa
import pytest

from streaming.errors import BadInput, StreamingError
from streaming.intake.merge import Merge, with_partitions
from streaming.messages.dead_letters import DeadLetter, letters_from_batch
from streaming.position import Partition, SourcePosition
from streaming.schema import RowSchema
from tests.support.streams.rows import ADS, CLICKS, feedback, impressions

SCHEMA = RowSchema(columns=[], tasks=[{"name": "ctr", "window_s": 1}])
MORE = Partition("ads", 1)


def new_merge(**options) -> Merge:
    return Merge(SCHEMA, {ADS: "impression", CLICKS: "feedback"}, **options)


def test_rows_wait_while_another_partition_may_bring_an_earlier_one():
    merge = new_merge()
    merge.push(ADS, impressions(SCHEMA, [(1, 10), (2, 20), (3, 30)]))
    assert merge.pop() is None
    assert merge.held_by() == [CLICKS]
    merge.push(CLICKS, feedback(SCHEMA, [(1, 20, "ctr")]))
    chunk = merge.pop()
    assert chunk.impressions["impression_id"].to_pylist() == [1]  # 2 ties with the click and waits
    assert chunk.watermark_ms == 10
    merge.mark_ended(CLICKS)
    chunk = merge.pop()
    assert chunk.impressions["order"].to_pylist() == [1]
    assert chunk.feedback["order"].to_pylist() == [2]
    assert not merge.finished
    merge.mark_ended(ADS)
    assert merge.pop().impressions["impression_id"].to_pylist() == [3]
    assert merge.finished


def test_a_row_behind_its_partition_is_keyed_at_the_running_maximum():
    merge = new_merge()
    merge.mark_ended(CLICKS)
    merge.push(ADS, impressions(SCHEMA, [(1, 50), (2, 10)]))
    merge.mark_ended(ADS)
    assert merge.pop().impressions["key_time_ms"].to_pylist() == [50, 50]


def test_an_idle_partition_holds_nobody_up_until_it_speaks_again():
    merge = new_merge()
    merge.push(ADS, impressions(SCHEMA, [(1, 10), (2, 20)]))
    merge.mark_idle(CLICKS)
    assert merge.pop().impressions.num_rows == 1
    merge.push(CLICKS, feedback(SCHEMA, [(1, 3, "ctr")]))
    assert merge.held_by() == [CLICKS]
    merge.mark_ended(CLICKS)
    assert merge.pop().feedback["key_time_ms"].to_pylist() == [10]  # where the merge stands, not 3


def test_a_partition_that_was_added_is_awaited_and_its_rows_are_keyed_where_the_merge_stands():
    before = new_merge()
    before.push(ADS, impressions(SCHEMA, [(1, 10), (2, 20), (3, 30)]))
    before.push(CLICKS, feedback(SCHEMA, [(1, 25, "ctr")]))
    assert before.pop().impressions["impression_id"].to_pylist() == [1, 2]
    merge = Merge(SCHEMA, {ADS: "impression", MORE: "impression", CLICKS: "feedback"})
    merge.restore(with_partitions(before.state(), [MORE]))
    assert merge.positions()[MORE] == SourcePosition(0)
    merge.push(ADS, impressions(SCHEMA, [(3, 30)], offset=merge.positions()[ADS].offset))
    merge.mark_ended(ADS)
    merge.mark_ended(CLICKS)
    assert merge.held_by() == [MORE]
    assert merge.pop() is None
    merge.push(MORE, impressions(SCHEMA, [(4, 5), (5, 26)], MORE))
    merge.mark_ended(MORE)
    chunk = merge.pop()
    assert chunk.impressions["impression_id"].to_pylist() == [4, 5, 3]
    assert chunk.impressions["key_time_ms"].to_pylist() == [20, 26, 30]
    assert with_partitions(merge.state(), [MORE]) == merge.state()


def test_a_wrong_clock_cannot_move_event_time():
    merge = new_merge(max_future_skew_s=1)
    merge.mark_ended(CLICKS)
    merge.push(ADS, impressions(SCHEMA, [(1, 10), (2, 999_999), (3, 20)], recorded=[10, 15, 20]))
    merge.mark_ended(ADS)
    chunk = merge.pop()
    assert chunk.impressions["impression_id"].to_pylist() == [1, 3]
    assert chunk.watermark_ms == 20
    (letter,) = letters_from_batch(chunk.dead)
    assert (letter.reason, letter.offset, letter.kind) == ("in_the_future", 1, "impression")
    assert b'"impression_id": 2' in letter.payload
    assert len(chunk) == 3


def test_a_record_without_timestamp_is_not_from_the_future():
    merge = new_merge(max_future_skew_s=1)
    merge.push(ADS, impressions(SCHEMA, [(1, 10_000)], recorded=[-1]))
    merge.mark_ended(CLICKS)
    merge.mark_ended(ADS)
    assert merge.pop().dead.num_rows == 0


def test_a_clock_that_sets_both_times_is_found_by_our_own():
    merge = new_merge(max_future_skew_s=1, now_ms=lambda: 5_000)
    merge.mark_ended(CLICKS)
    year_9000 = 221_845_392_000_000
    merge.push(ADS, impressions(SCHEMA, [(1, 10), (2, year_9000), (3, year_9000)], recorded=[10, year_9000, -1]))
    merge.push(ADS, impressions(SCHEMA, [(4, 6_000), (5, 6_001)], offset=3, recorded=[6_000, 6_001]))
    merge.mark_ended(ADS)
    chunk = merge.pop()
    assert chunk.impressions["impression_id"].to_pylist() == [1, 4]
    assert chunk.watermark_ms == 6_000
    assert chunk.dead["reason"].to_pylist() == ["in_the_future"] * 3
    assert "of the clock" in chunk.dead["detail"][0].as_py()


NOW = 1_700_000_000_000


@pytest.mark.parametrize("stamp", [0, 1, NOW // 1000, NOW * 1000, 1_262_304_000_000])
@pytest.mark.parametrize("live", [True, False])
def test_a_timestamp_that_cannot_be_right_is_none(stamp, live):
    if stamp > 10**12 and stamp < NOW and not live:
        pytest.skip("without a clock of our own, either time may be wrong")
    merge = new_merge(max_future_skew_s=300, now_ms=(lambda: NOW) if live else None)
    merge.push(ADS, impressions(SCHEMA, [(1, NOW - 3_600_000), (2, NOW - 1000)], recorded=[stamp] * 2))
    merge.push(CLICKS, feedback(SCHEMA, [(1, NOW, "ctr")], recorded=[stamp]))
    merge.mark_ended(ADS)
    merge.mark_ended(CLICKS)
    chunk = merge.pop()
    assert (chunk.impressions.num_rows, chunk.feedback.num_rows, chunk.dead.num_rows) == (2, 1, 0)
    assert f"ads/0 at offset 0: the record has {stamp} " in merge.warnings["record_times"]


def test_what_a_timestamp_of_none_lets_in_is_bounded_by_our_own_clock():
    merge = new_merge(max_future_skew_s=300, now_ms=lambda: NOW)
    merge.mark_ended(CLICKS)
    year_9000 = 221_845_392_000_000
    merge.push(ADS, impressions(SCHEMA, [(1, NOW), (2, year_9000), (3, NOW + 400_000)], recorded=[0, 0, 1]))
    merge.mark_ended(ADS)
    chunk = merge.pop()
    assert chunk.impressions["impression_id"].to_pylist() == [1]
    assert chunk.dead["reason"].to_pylist() == ["in_the_future"] * 2


def test_event_times_in_seconds_are_refused_with_a_question_and_do_not_hold_the_others_up():
    merge = new_merge()
    merge.push(ADS, impressions(SCHEMA, [(1, NOW), (2, NOW + 5)], recorded=[NOW, NOW + 5]))
    merge.push(CLICKS, feedback(SCHEMA, [(1, NOW // 1000, "ctr"), (2, NOW + 9, "ctr")], recorded=[NOW + 7, NOW + 9]))
    chunk = merge.pop()
    assert chunk.impressions["impression_id"].to_pylist() == [1]
    [letter] = letters_from_batch(chunk.dead)
    assert (letter.kind, letter.reason, letter.topic) == ("feedback", "bad_event_time", "clicks")
    assert "1700000000; milliseconds since 1970 needed: seconds?" in letter.detail


def test_times_that_count_from_the_start_of_a_log_are_not_taken_for_seconds():
    merge = new_merge()
    merge.mark_ended(CLICKS)
    merge.push(ADS, impressions(SCHEMA, [(1, 1_600_000_000)], recorded=[NOW]))
    merge.push(ADS, impressions(SCHEMA, [(2, NOW // 1000)], offset=1, recorded=[NOW]))
    merge.mark_ended(ADS)
    assert merge.pop().dead.num_rows == 0


def test_undecodable_rows_leave_in_their_place_and_positions_cover_them():
    merge = new_merge()
    merge.mark_ended(CLICKS)
    letters = [DeadLetter("impression", "undecodable", "ads", 0, offset, 0, "", b"") for offset in (0, 5)]
    merge.push(ADS, impressions(SCHEMA, [(1, 10), (2, 20)], offset=3), letters)
    chunk = merge.pop()
    assert chunk.dead["source_offset"].to_pylist() == [0]  # the one at 5 shares the key of the row that still waits
    assert chunk.dead["order"].to_pylist() == [0]
    assert merge.positions() == {ADS: SourcePosition(4)}
    merge.mark_ended(ADS)
    assert merge.pop().dead["source_offset"].to_pylist() == [5]
    assert merge.positions() == {ADS: SourcePosition(6)}


def test_a_full_buffer_wants_no_more_unless_it_is_the_one_waited_for():
    merge = new_merge(buffer_rows=2)
    merge.push(ADS, impressions(SCHEMA, [(1, 10), (2, 20)]))
    assert not merge.wants(ADS)
    assert merge.wants(CLICKS)
    merge.push(CLICKS, feedback(SCHEMA, [(1, 30, "ctr"), (2, 30, "ctr"), (3, 30, "ctr")]))
    assert merge.wants(ADS)
    assert not merge.wants(CLICKS)


def test_equal_keys_go_by_topic_partition_offset():
    merge = Merge(SCHEMA, {MORE: "impression", CLICKS: "feedback", ADS: "impression"})
    merge.push(CLICKS, feedback(SCHEMA, [(7, 10, "ctr")]))
    merge.push(MORE, impressions(SCHEMA, [(3, 10)], partition=MORE))
    merge.push(ADS, impressions(SCHEMA, [(1, 10), (2, 10)]))
    for partition in (ADS, MORE, CLICKS):
        merge.mark_ended(partition)
    chunk = merge.pop()
    assert chunk.impressions["impression_id"].to_pylist() == [1, 2, 3]
    assert chunk.feedback["order"].to_pylist() == [3]


def test_a_restored_merge_skips_what_was_popped_and_goes_on_with_the_same_order():
    merge = new_merge()
    merge.push(ADS, impressions(SCHEMA, [(1, 50), (2, 10), (3, 90)]))
    merge.push(CLICKS, feedback(SCHEMA, [(1, 60, "ctr")]))
    assert merge.pop().impressions.num_rows == 2

    again = new_merge()
    again.restore(merge.state())
    assert again.positions() == {ADS: SourcePosition(2)}
    again.push(ADS, impressions(SCHEMA, [(2, 10), (3, 20)], offset=1))  # a reader may go on further back
    again.push(CLICKS, feedback(SCHEMA, [(1, 60, "ctr")]))
    again.mark_ended(ADS)
    chunk = again.pop()
    assert chunk.impressions["impression_id"].to_pylist() == [3]
    assert chunk.impressions["key_time_ms"].to_pylist() == [50]  # the running maximum survived
    assert chunk.impressions["order"].to_pylist() == [2]


def test_a_position_is_inside_a_message_only_where_rows_of_it_are_left():
    merge = new_merge()
    merge.mark_ended(CLICKS)
    rows = impressions(SCHEMA, [(1, 10), (2, 20), (3, 30), (4, 40)], offset=7)
    for name, values in {"source_offset": [7, 7, 7, 8], "source_row": [0, 1, 2, 0]}.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, rows.schema.field(place).type))
    merge.push(ADS, rows.slice(0, 3))
    merge.pop()
    assert merge.positions() == {ADS: SourcePosition(7, 2)}
    merge.push(ADS, rows.slice(3))
    merge.pop()
    assert merge.positions() == {ADS: SourcePosition(8)}  # from here on nobody misses message 7


def test_where_a_partition_begins_is_part_of_the_state_before_any_of_its_rows():
    merge = new_merge()
    merge.begin_at({ADS: SourcePosition(5), CLICKS: SourcePosition(0)})
    merge.push(ADS, impressions(SCHEMA, [(1, 10), (2, 20)], offset=5))
    merge.mark_idle(CLICKS)
    assert merge.pop().impressions.num_rows == 1
    again = new_merge()
    again.restore(merge.state())
    again.begin_at({ADS: SourcePosition(9), CLICKS: SourcePosition(9)})  # where retention has come to meanwhile
    assert again.positions() == {ADS: SourcePosition(6), CLICKS: SourcePosition(0)}


def test_mistakes_are_named():
    merge = new_merge()
    with pytest.raises(BadInput, match="ads/1 is not merged here; the partitions are ads/0, clicks/0"):
        merge.push(MORE, impressions(SCHEMA, [(1, 1)], partition=MORE))
    merge.mark_ended(ADS)
    with pytest.raises(StreamingError, match="ads/0 was declared ended"):
        merge.push(ADS, impressions(SCHEMA, [(1, 1)]))


def refused(count, offset, bytes_each=0):
    return [DeadLetter("impression", "null:age", *ADS, offset + n, 0, "", bytes(bytes_each)) for n in range(count)]


@pytest.mark.parametrize("limit", [{"buffer_rows": 300}, {"buffer_bytes": 40_000}])
def test_records_that_do_not_move_event_time_are_not_held_without_end(limit):
    merge, whole = new_merge(**limit), new_merge()
    seen, held = [], 0
    for one in (merge, whole):
        one.push(ADS, impressions(SCHEMA, [(1, 50)]))
        one.push(CLICKS, feedback(SCHEMA, [(1, 60, "ctr")]))
    for n in range(100):
        for one in (merge, whole):
            one.push(ADS, impressions(SCHEMA, []), refused(100, 1 + 100 * n, bytes_each=100))
        assert merge.wants(ADS)
        if (chunk := merge.pop()) is not None:
            seen += list(zip(chunk.dead["source_offset"].to_pylist(), chunk.dead["order"].to_pylist(), strict=True))
            assert chunk.watermark_ms == 50
        held = max(held, merge.buffered_rows)
    assert held <= 500
    for one in (merge, whole):
        one.mark_ended(ADS)
        one.mark_ended(CLICKS)
    last, everything = merge.pop(), whole.pop()
    seen += list(zip(last.dead["source_offset"].to_pylist(), last.dead["order"].to_pylist(), strict=True))
    dead = everything.dead
    assert seen == list(zip(dead["source_offset"].to_pylist(), dead["order"].to_pylist(), strict=True))
    assert len(seen) == 10_000
    assert last.feedback.to_pylist() == everything.feedback.to_pylist()


@pytest.mark.parametrize("seed", range(20))
def test_rows_leave_in_one_order_however_little_is_held(seed):
    rng = random.Random(seed)
    partitions = {ADS: "impression", MORE: "impression", CLICKS: "feedback", Partition("clicks", 1): "feedback"}
    streams = {p: [rng.randrange(40) for _ in range(rng.randrange(60))] for p in partitions}

    def order_of(rng, **limits):
        merge, left, found = Merge(SCHEMA, partitions, **limits), {p: 0 for p in partitions}, []

        def pop():
            while (chunk := merge.pop()) is not None:
                for rows in (chunk.impressions, chunk.feedback, chunk.dead):
                    names = ("order", "source_topic", "source_partition", "source_offset", "key_time_ms")
                    found.extend(zip(*(rows[name].to_pylist() for name in names), strict=True))

        while left:
            partition = rng.choice([p for p in left if merge.wants(p)])
            at, times = left[partition], streams[partition]
            part = times[at : at + rng.randrange(1, 6)]
            good = [(n, t) for n, t in enumerate(part) if t % 5]
            rows = [(at + n, t) if partitions[partition] == "impression" else (at + n, t, "ctr") for n, t in good]
            make = impressions if partitions[partition] == "impression" else feedback
            batches = [make(SCHEMA, [row], partition, offset=row[0]) for row in rows]
            batch = pa.concat_batches([make(SCHEMA, [], partition), *batches])
            dead = [
                DeadLetter(partitions[partition], "null:age", *partition, at + n, 0, "", b"")
                for n, t in enumerate(part)
                if not t % 5
            ]
            merge.push(partition, batch, dead)
            left[partition] = at + len(part)
            if left[partition] == len(times):
                merge.mark_ended(partition)
                del left[partition]
            pop()
        pop()
        assert merge.finished
        return sorted(found)

    whole = order_of(random.Random(0))
    assert len(whole) == sum(map(len, streams.values()))
    assert order_of(rng, buffer_rows=1) == whole
    assert order_of(rng, buffer_bytes=100) == whole

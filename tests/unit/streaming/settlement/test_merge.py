import pyarrow as pa
import pytest

from streaming.errors import BadInput, StreamingError
from streaming.messages import DeadLetter, letters_from_batch
from streaming.position import Partition, SourcePosition
from streaming.schema import RowSchema
from streaming.settlement import Merge
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

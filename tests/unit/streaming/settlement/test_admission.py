"""A run takes so many verticals and no more: which ones follows from the merged order, whatever is cut or killed."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from streaming.intake.merge import Merge
from streaming.messages.dead_letters import letters_from_batch
from streaming.position import Partition
from streaming.schema import RowSchema
from streaming.settlement.admission import Verticals
from streaming.settlement.config import SettlementConfig
from streaming.settlement.settlement import Settlement
from tests.support.streams.rows import CLICKS, impressions

SCHEMA = RowSchema(columns=[{"name": "price"}], tasks=[{"name": "ctr", "window_s": 1}])
PARTITIONS = (Partition("ads", 0), Partition("ads", 1))


def rows(partition, spec, offset=0):
    """Rows (id, event time, vertical) of a partition."""
    batch = impressions(SCHEMA, [(i, t) for i, t, _ in spec], partition, offset)
    place = batch.schema.get_field_index("vertical")
    return batch.set_column(place, "vertical", pa.array([vertical for *_, vertical in spec]))


def settlement(declared=(), most=2, **config):
    return Settlement(SCHEMA, SettlementConfig(**config), verticals=Verticals(declared, most))


def play(settled, *chunks):
    """Steps over what is read of each partition, chunk by chunk, in one merge; (rows, dead letters)."""
    merge = Merge(SCHEMA, {PARTITIONS[0]: "impression", PARTITIONS[1]: "impression", CLICKS: "feedback"})
    merge.mark_ended(CLICKS)
    read, steps = {p: 0 for p in PARTITIONS}, []
    for chunk in chunks:
        for partition, spec in zip(PARTITIONS, chunk, strict=True):
            if spec:
                merge.push(partition, rows(partition, spec, read[partition]))
                read[partition] += len(spec)
        if (merged := merge.pop()) is not None:
            steps.append(settled.step(merged))
    for partition in PARTITIONS:
        merge.mark_ended(partition)
    if (merged := merge.pop()) is not None:
        steps.append(settled.step(merged))
    steps.append(settled.finish())
    letters = [letter for step in steps for letter in letters_from_batch(step.dead)]
    return [row for step in steps for row in step.batch.to_pylist()], letters


def of(rows):
    return {row["impression_id"]: row["vertical"] for row in rows}


def test_the_first_verticals_of_the_merged_order_are_taken_and_rows_of_others_are_dead_letters():
    settled = settlement()
    ahead = [(1, 100, "feed"), (2, 300, "late")]
    good, dead = play(settled, (ahead, [(3, 200, "shop"), (4, 400, "feed"), (5, 500, "late")]))
    assert of(good) == {1: "feed", 3: "shop", 4: "feed"}  # `late` came first in its partition, and third in event time
    assert [(letter.reason, letter.partition, letter.offset) for letter in dead] == [
        ("too_many_verticals", 0, 1), ("too_many_verticals", 1, 2)
    ]  # fmt: skip
    assert dead[0].detail == "`late` is a further vertical; this run takes 2 (lake.max_verticals)"
    counts = settled.counters()
    assert counts["dead_letters"]["impression"] == {"too_many_verticals": 2}
    assert counts["impressions_read"] == 5 == counts["settled"]["ctr"] + 2 + counts["duplicates_dropped"]


def test_declared_verticals_count_and_always_fit():
    good, dead = play(
        settlement(["shop"], most=2),
        ([(1, 100, "feed"), (2, 200, "video"), (3, 300, "shop")], [(4, 400, "feed")]),
    )
    assert of(good) == {1: "feed", 3: "shop", 4: "feed"}
    assert len(dead) == 1
    more = settlement(["feed"], most=1)
    more.verticals.declare(["shop"])  # of a student that has joined
    assert of(play(more, ([(1, 100, "shop"), (2, 200, "video")], [(3, 300, "feed")]))[0]) == {1: "shop", 3: "feed"}


def test_a_row_that_is_too_old_makes_no_vertical_known():
    spec = [(1, 50_000, "feed"), (2, 10, "old"), (3, 50_001, "shop")]
    good, dead = play(settlement(dedup_horizon_s=10), (spec, [(4, 60_000, "feed")]))
    assert of(good) == {1: "feed", 3: "shop", 4: "feed"}
    assert [letter.reason for letter in dead] == ["too_old"]


def test_a_copy_under_a_vertical_that_is_taken_is_admitted_where_the_first_was_refused():
    spec = [(1, 100, "feed"), (2, 200, "shop"), (3, 300, "video"), (3, 400, "shop")]
    for chunks in ([(spec, [])], [(spec[:3], []), (spec[3:], [])]):
        good, dead = play(settlement(), *chunks)
        assert of(good) == {1: "feed", 2: "shop", 3: "shop"}
        assert len(dead) == 1


def stream(seed, count=300):
    chosen, times = random.Random(seed), (0, 0)
    parts = []
    for partition, at in enumerate(times):
        spec = []
        for _ in range(count):
            at += chosen.randrange(0, 40)
            spec.append(
                (chosen.randrange(2 * count), max(0, at - chosen.choice((0, 0, 4000))), f"v{chosen.randrange(9)}")
            )
        parts.append([(2 * i + partition, t, v) for i, t, v in spec])
    return parts


def cut(parts, seed):
    """The partitions in chunks of random lengths."""
    chosen, at, chunks = random.Random(seed), [0, 0], []
    while any(start < len(part) for start, part in zip(at, parts, strict=True)):
        ends = [start + chosen.randrange(0, 30) for start in at]
        chunks.append(tuple(part[start:end] for part, start, end in zip(parts, at, ends, strict=True)))
        at = ends
    return chunks


@pytest.mark.parametrize("seed", range(5))
def test_wherever_chunks_are_cut_the_same_rows_are_refused(seed):
    parts = stream(seed)
    found = [play(settlement(["v8"], most=4, dedup_horizon_s=2), *cut(parts, way)) for way in (0, 1)]
    found.append(play(settlement(["v8"], most=4, dedup_horizon_s=2), tuple(parts)))
    assert found[0] == found[1] == found[2]
    assert {"too_many_verticals", "too_old"} <= {letter.reason for letter in found[0][1]}
    assert len(set(of(found[0][0]).values())) == 4


def test_a_restart_knows_what_was_known_and_one_that_may_take_more_does(tmp_path):
    first = settlement()
    play(first, ([(1, 100, "feed"), (2, 200, "shop")], [(3, 300, "video")]))
    first.save(tmp_path, "a")
    for most, known in ((2, ["feed", "shop"]), (1, ["feed", "shop"]), (3, ["feed", "shop", "video"])):
        again = settlement(most=most)
        again.load(tmp_path, "a")
        again.verticals.refuse(pa.array(["video", "shop"]))
        assert again.verticals.known == known
    declared = settlement(["travel"])
    declared.load(tmp_path, "a")
    assert declared.verticals.known == ["feed", "shop", "travel"]

"""Processes killed with SIGKILL, under the command a person types: workers, the broker, the coordinator itself.

Whatever is killed whenever, the stream ends as one that was left alone: nothing lost, nothing twice. In lockstep
every logit, weight and metric is the same to the last bit; in free pace, where the clock decides which snapshot scores,
the rows, their labels and what was learned are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pipelines.core.config.sections import Generated
from pipelines.core.config.settings import Config
from streaming.sources.synthetic.stream import generated_stream
from tests.support.pipelines.expected_rows import expected_rows, lake_rows
from tests.support.pipelines.kills import BROKER, COORDINATOR, EVERYTHING, KILLED, SHORT, Hail, victims_of
from tests.support.pipelines.small_runs import (
    Finished,
    assert_learned_the_lake,
    assert_same_run,
    everything,
    to_the_end,
)
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import messages_of

pytestmark = [pytest.mark.broker, pytest.mark.ray]

LONG = KILLED | {"source__impressions": 8000}


@pytest.fixture
def hail(tmp_path):
    """Makes one in the test's folder; whatever happens, nothing of it outlives the test."""
    made: list[Hail] = []

    def make(config: Config, **options: Any) -> Hail:
        made.append(Hail(config, tmp_path / "run", **{"victims": victims_of(config)} | options))
        return made[-1]

    yield make
    for each in made:
        each.clean_up()


def assert_nothing_lost_nothing_twice(finished: Finished) -> None:
    """Against the source, the topics, and the lake itself, row by row; and every model against the lake."""
    config, lake = finished.config, finished.lake
    source = config.source
    assert isinstance(source, Generated)
    assert written_twice(config) == []
    assert lake["lake_seq"].to_pylist() == list(range(lake.num_rows))
    chunks = generated_stream(source, config.rows, encoding=config.kafka.impressions.codec).chunks(source.chunk_rows)
    made = {impression for chunk in chunks for impression in chunk.impressions["impression_id"].to_pylist()}
    settled = Counter(zip(lake["settlement"].to_pylist(), lake["impression_id"].to_pylist(), strict=True))
    assert max(settled.values()) == 1
    assert {impression for settlement, impression in settled if settlement == "ctr"} == made
    assert len(made) == source.impressions
    assert lake_rows(lake) == expected_rows(config)
    assert_learned_the_lake(finished)
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["lake_rows"] == lake.num_rows
    assert counts["dead_letters"] == 0


def written_twice(config: Config) -> list[tuple[Any, ...]]:
    """Messages of the input topics that are there more than once: (topic, partition, chunk, part, offsets)."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for topic in (config.kafka.impressions.topic, config.kafka.feedback.topic):
        for message in messages_of(config.kafka.bootstrap_servers, topic):
            headers = dict(message.headers)
            place = (topic, message.partition, headers.get("chunk"), headers.get("part"))
            found.setdefault(place, []).append(message.offset)
    return [(*place, offsets) for place, offsets in found.items() if len(offsets) > 1]


def without_logits(rows: pa.Table) -> pa.Table:
    """What does not depend on which snapshot scored, nor on where blocks were cut."""
    scored = ("block", "teacher_version", "scored_at_ms")
    return rows.drop_columns([name for name in rows.column_names if name in scored or name.startswith("teacher_logit")])


@pytest.fixture
def undisturbed(broker, tmp_path) -> Callable[..., Finished]:
    """The same stream, in lockstep, in this process, at full speed, with nobody killed."""
    return lambda **changes: to_the_end(everything(broker.bootstrap_servers, **changes), tmp_path / "undisturbed")


@pytest.mark.check
@pytest.mark.timeout(700)
def test_a_few_kills_anywhere_change_no_bit_and_leave_nothing_behind(undisturbed, hail):
    config = everything("nowhere:1", **SHORT, source__rate="400")
    one = hail(config, seed=11, most=5)
    with one.finished(at_least=4, wait_s=500) as finished:
        assert {BROKER, COORDINATOR} <= one.by_victim.keys()
        assert finished.run_dir.picture.stat().st_size > 10_000
        assert_nothing_lost_nothing_twice(finished)
        assert_same_run(finished, undisturbed(**SHORT))


OF_PROCESSES = {"started_at", "wall_s", "legs", "busy_s", "phases_s", "rows_per_s", "peak_rss_bytes", "restarts"}


def of_the_stream(value: Any) -> Any:
    """A summary without times, and without how many processes of which size made it."""
    if isinstance(value, dict):
        return {key: of_the_stream(each) for key, each in value.items() if key not in OF_PROCESSES}
    return [of_the_stream(each) for each in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_everything_killed_at_once_and_twice_leaves_the_summary_as_it_would_have_been(undisturbed, hail):
    topics = ("impressions", "feedback", "examples", "dead_letters")
    named = {f"kafka__{topic}__topic": f"all-killed-{topic}" for topic in topics}  # a summary names them
    stream = SHORT | named | {"source__rate": "200"}
    one = hail(everything("nowhere:1", **stream), seed=3, victims=[EVERYTHING], most=2)
    with one.finished(at_least=2, wait_s=1200) as finished:
        assert len(one.commands) == 3
        assert one.by_victim == {EVERYTHING: 2}
        alone = undisturbed(**stream)
        assert of_the_stream(finished.summary) == of_the_stream(alone.summary)
        assert_same_run(finished, alone)


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_fifty_kills_in_lockstep_change_no_bit(undisturbed, hail):
    config = everything("nowhere:1", **LONG, source__rate="50")
    one = hail(config, seed=1, most=55)
    with one.finished(at_least=50, wait_s=2400) as finished:
        assert one.by_victim.keys() == set(victims_of(config))
        assert_nothing_lost_nothing_twice(finished)
        assert_same_run(finished, undisturbed(**LONG))


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_kills_in_free_pace_lose_nothing_and_repeat_nothing(undisturbed, hail):
    live = {"pace__mode": "free", "pace__commit_interval_s": 0.5, "teacher__publish_every_rows": 500}
    config = everything("nowhere:1", **(LONG | live), source__rate="100", augmentation__idle_s=3600)
    one = hail(config, seed=2, most=25)
    with one.finished(at_least=20, wait_s=1800) as finished:
        assert_nothing_lost_nothing_twice(finished)
        assert without_logits(finished.rows).equals(without_logits(undisturbed(**LONG).rows))

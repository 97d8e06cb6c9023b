"""What comes in from outside: broken records, somebody else's producer, brokers and topics that are not as said."""

from __future__ import annotations

import json
import math
import os
import signal
from typing import Any

import pyarrow as pa
import pytest

from pipelines.cli.console import main
from pipelines.core.config.settings import Config, dump
from pipelines.core.run_dir.paths import RunDir
from pipelines.live.loop.lifecycle import run
from pipelines.live.rules.states import RunState
from streaming.kafka.topics import ensure_topics
from streaming.ports import free_port
from tests.support.pipelines.expected_rows import expected_rows, lake_rows
from tests.support.pipelines.small_runs import assert_learned_the_lake, origin, small, to_the_end
from tests.support.pipelines.summaries import counts_hold
from tests.support.pipelines.topics import by_hand, ipc, make_inputs, send

pytestmark = pytest.mark.broker


def partition_of(row: dict[str, Any]) -> int:
    return int(row["impression_id"] % 2)


def as_json(config: Config, impressions: list[dict[str, Any]], feedback: list[dict[str, Any]]) -> list[Any]:
    inputs = ((config.kafka.impressions.topic, impressions), (config.kafka.feedback.topic, feedback))
    return [(topic, partition_of(row), json.dumps(row).encode()) for topic, rows in inputs for row in rows]


# --- broken records ------------------------------------------------------------------------------------------------


def test_each_broken_record_is_a_dead_letter_once_and_the_others_go_on(broker, tmp_path):
    config = small(broker.bootstrap_servers, source=None, kafka__max_message_bytes=100_000)
    make_inputs(config)
    shown, feedback = by_hand(config, 2000)
    feedback = [row for row in feedback if row["event_time_ms"] < shown[-1]["event_time_ms"]]  # none beyond the horizon
    schema, clicks = config.rows.impression, config.rows.feedback
    ads, events = config.kafka.impressions.topic, config.kafka.feedback.topic
    good = shown[-1]
    nan_inside = [dict(row) for row in shown[:10]]
    nan_inside[3] |= {"impression_id": 1, "bid": math.nan}
    nan_inside[7] |= {"impression_id": 2, "bid": math.inf}
    name_for_id = [*schema]
    name_for_id[schema.get_field_index("user_id")] = pa.field("user_id", pa.string())
    no_bid = schema.remove(schema.get_field_index("bid"))
    event = {"impression_id": good["impression_id"], "event_time_ms": shown[0]["event_time_ms"], "task": "ctr"}

    broken = [  # topic, message, {row: reason}
        (ads, b"\x00\xffnot a record", {0: "undecodable"}),
        (ads, ipc(shown, schema)[:5000], {0: "undecodable"}),
        (ads, ipc(shown[:1] * 3000, schema), {0: "oversized"}),
        (ads, ipc([good], no_bid), {0: "missing_column:bid"}),
        (ads, ipc([good | {"user_id": "kim"}], pa.schema(name_for_id)), {0: "wrong_type:user_id"}),
        (ads, ipc(nan_inside, schema), {3: "not_finite:bid", 7: "not_finite:bid"}),
        (ads, ipc([good | {"user_id": -1}], schema), {0: "out_of_range:user_id"}),
        (ads, ipc([good | {"vertical": ""}], schema), {0: "bad_vertical"}),
        (events, b"{", {0: "undecodable"}),
        (events, ipc([event | {"task": "teleport"}], clicks), {0: "unknown_task:teleport"}),
        (events, ipc([event | {"impression_id": 4}], clicks), {0: "unknown_impression"}),
    ]
    half = len(shown) // 2
    messages = [
        (ads, partition, ipc([r for r in shown[:half] if partition_of(r) == partition], schema)) for partition in (0, 1)
    ]
    first = len(messages)
    messages += [(topic, 0, value) for topic, value, _ in broken]
    messages += [
        (ads, partition, ipc([r for r in shown[half:] if partition_of(r) == partition], schema)) for partition in (0, 1)
    ]
    messages += [
        (events, partition, ipc([r for r in feedback if partition_of(r) == partition], clicks)) for partition in (0, 1)
    ]
    offsets = send(broker.bootstrap_servers, messages)

    finished = to_the_end(config, tmp_path / "run")

    expected = sorted(
        (topic, 0, offset, row, reason)
        for (topic, _, reasons), offset in zip(broken, offsets[first:], strict=False)
        for row, reason in reasons.items()
    )
    kinds = {ads: "impression", events: "feedback"}
    for letters in (finished.side_table("dead_letters"), finished.dead_letter_messages()):
        assert [(*origin(letter), letter["reason"]) for letter in letters] == expected
        assert all(letter["kind"] == kinds[letter["source_topic"]] and letter["detail"] for letter in letters)
    counts = finished.summary["counts"]
    assert counts_hold(counts)
    assert counts["dead_letters"] == 9
    assert counts["feedback_dead_letters"] == 2
    assert counts["unmatched_feedback"] == 1
    assert counts["impressions_read"] == len(shown) + 8 + 9  # the eight good rows beside NaN and infinity come again
    assert counts["duplicates_dropped"] == len(shown) + 8 - counts["settled"]["ctr"]
    assert counts["settled"]["ctr"] == 2000
    assert_learned_the_lake(finished)


# --- somebody else's producer --------------------------------------------------------------------------------------


def test_json_from_a_plain_producer_is_read_up_to_where_it_ended_at_first_start(broker, tmp_path):
    codecs = {"kafka__impressions__codec": "json", "kafka__feedback__codec": "json"}
    config = small(broker.bootstrap_servers, source=None, **codecs)
    make_inputs(config)
    shown, feedback = by_hand(config, 3000, duplicate_rate=0.01)
    send(broker.bootstrap_servers, as_json(config, shown, feedback))
    expected = expected_rows(config)

    def stop(status: Any) -> None:
        if status.state is RunState.RUNNING:
            os.kill(os.getpid(), signal.SIGTERM)

    status, _ = run(config, RunDir(tmp_path / "run"), local=True, until_end=True, watch=stop)
    assert status.state is RunState.STOPPED
    later = [
        row | {"impression_id": row["impression_id"] + 2, "event_time_ms": row["event_time_ms"] + 10**9}
        for row in shown[:50]
    ]
    send(broker.bootstrap_servers, as_json(config, later, []))

    finished = to_the_end(config, tmp_path / "run")
    assert lake_rows(finished.lake) == expected
    assert finished.summary["counts"]["impressions_read"] == len(shown)
    assert counts_hold(finished.summary["counts"])
    assert_learned_the_lake(finished)


# --- what the command says -----------------------------------------------------------------------------------------


def command(capsys, tmp_path, config: Config, **changes: Any) -> tuple[int, str]:
    """Exit code and stderr of `exfm stream --until-end --local`."""
    path = tmp_path / "config.yaml"
    path.write_text(dump(config))
    sets = [
        part for name, value in changes.items() for part in ("--set", f"{name.replace('__', '.')}={json.dumps(value)}")
    ]
    with pytest.raises(SystemExit) as left:
        main(["stream", str(path), "--until-end", "--local", "--run-dir", str(tmp_path / "run"), *sets])
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return int(left.value.code or 0), " ".join(error.split())


def test_an_unreachable_broker_is_named_with_what_to_try(broker, tmp_path, capsys):
    address = f"127.0.0.1:{free_port()}"
    config = small(address, kafka__connect_timeout_s=1)
    code, error = command(capsys, tmp_path, config)
    assert code == 1
    assert address in error
    assert "start it, set `kafka.bootstrap_servers`" in error


def test_an_absent_topic_is_named_beside_those_that_exist(broker, tmp_path, capsys):
    config = small(broker.bootstrap_servers, source=None)
    ensure_topics(config.kafka, {config.kafka.impressions.topic: 2})
    code, error = command(capsys, tmp_path, config)
    assert code == 2
    assert f"no topic `{config.kafka.feedback.topic}`" in error
    assert config.kafka.impressions.topic in error


def test_empty_topics_have_no_end(broker, tmp_path, capsys):
    config = small(broker.bootstrap_servers, source=None)
    make_inputs(config)
    code, error = command(capsys, tmp_path, config)
    assert code == 2
    assert "hold no messages" in error


def test_an_occupied_port_is_named(broker, tmp_path, capsys):
    config = small(broker.bootstrap_servers)
    code, error = command(capsys, tmp_path, config, kafka__bootstrap_servers=None, kafka__port=broker.port)
    assert code in (1, 2)
    assert str(broker.port) in error


def test_topics_with_other_partition_counts_are_refused(broker, tmp_path, capsys):
    config = small(broker.bootstrap_servers)
    ensure_topics(config.kafka, {config.kafka.impressions.topic: 3})
    code, error = command(capsys, tmp_path, config)
    assert code == 2
    assert "has 3 partitions, 2 are configured" in error

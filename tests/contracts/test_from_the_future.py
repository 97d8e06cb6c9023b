"""A record of the year 9000 on a live topic: refused by default; where it was let in, its run is mended by hand."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from pipelines.cli.console import main
from pipelines.core.config.topics import Kafka
from pipelines.core.run_dir.end_offsets import store_ends
from pipelines.data.checks.check import check_config
from pipelines.data.findings import Severity
from pipelines.report.results.losses import losses_now
from streaming.kafka.topics import end_offsets
from streaming.lake.reader import LakeReader
from streaming.lake.side_tables import DEAD_LETTERS
from streaming.position import Partition
from streaming.store.lock import file_lock
from tests.support.pipelines.live_topic import ROWS, Live
from tests.support.pipelines.topics import messages_of

pytestmark = pytest.mark.broker

YEAR_9000 = 221_845_392_000_000


def moved(live: Live) -> list[dict[str, Any]]:
    """The live run after records of the year 9000 in every partition; returns impressions that were not sent."""
    half = ROWS // 2
    first, second = live.shown[:half], live.shown[half:]
    for rows in live.parts(first).values():
        rows[-1]["event_time_ms"] = YEAR_9000
    live.send(first, [])
    live.send([], [dict(rows[0], event_time_ms=YEAR_9000) for rows in live.parts(live.feedback).values()])
    return second


def test_a_live_run_refuses_what_lies_in_the_future_and_loses_nothing_else(broker, tmp_path):
    live = Live(broker.bootstrap_servers, tmp_path)
    live.shown[100]["event_time_ms"] = YEAR_9000
    live.send(live.shown, live.feedback)
    with live.reading() as report:
        counts = report.counts
    assert counts["dead_letters"]["impression"] == {"in_the_future": 1}
    assert counts["impressions_read"] == ROWS
    assert counts["settled"]["ctr"] + counts["pending"]["ctr"] == ROWS - 1


@pytest.mark.parametrize("stamp", [0, 1, 1_704_067_200])
def test_timestamps_of_records_that_cannot_be_right_refuse_no_row_and_are_named_once(broker, tmp_path, stamp):
    live = Live(broker.bootstrap_servers, tmp_path)
    live.shown[100]["event_time_ms"] = YEAR_9000
    live.send(live.shown, live.feedback, timestamp_ms=stamp)
    with live.reading() as report:
        counts = report.counts
    assert counts["dead_letters"]["impression"] == {"in_the_future": 1}
    assert counts["matched_feedback"] > 0
    [warning] = counts["warnings"]
    assert "timestamps of records cannot be right" in warning
    assert f"the record has {stamp} (ms since 1970)" in warning
    checked = check_config(live.config)
    assert [f.severity for f in checked.findings if f.where == "record timestamps"] == [Severity.WARN]
    assert {reason: seen.rows for reason, seen in checked.profile.refused.items()} == {"in_the_future": 1}
    assert not checked.profile.feedback_refused


ASOF = {"features": [{"name": "met", "by": ["user_id"], "rate": "ctr"}]}


@pytest.mark.parametrize("settings", [{}, {"settlement__by": "partition", "rows__asof": ASOF}], ids=["stream", "parts"])
def test_a_run_that_let_it_in_says_so_and_is_mended_by_hand(broker, tmp_path, capsys, settings):
    live = Live(broker.bootstrap_servers, tmp_path, settlement__max_future_skew_s=1e12, **settings)
    second = moved(live)
    live.send(second[:100], [])
    with live.reading() as report:
        assert report.counts["dead_letters"]["impression"]["too_old"] == 100
        assert "exfm mend watermark" in report.note
        said = losses_now(report.counts, live.config)[1].words
        assert any("exfm mend watermark" in words for words in said)
        assert not any("dedup_horizon_s" in words for words in said)
    before = LakeReader(live.run_dir.lake, live.config.rows)

    main_ = ["mend", "watermark", "--run-dir", str(tmp_path)]
    with pytest.raises(SystemExit, match="0"):
        main(main_)
    told = capsys.readouterr().out
    assert "100 impressions were refused as `too_old`" in told
    assert "nothing was changed" in told
    assert LakeReader(live.run_dir.lake, live.config.rows).state == before.state
    with pytest.raises(SystemExit, match="2"):
        main([*main_, "--to", "2999-01-01", "--yes"])
    assert "--to 2999-01-01 00:00:00 is in the future" in capsys.readouterr().err
    assert LakeReader(live.run_dir.lake, live.config.rows).state == before.state
    with file_lock(live.run_dir.lock), pytest.raises(SystemExit, match="2"):
        main([*main_, "--yes"])
    assert "is being run by another process" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main([*main_, "--yes"])
    assert "done" in capsys.readouterr().out

    live.send(second[100:], live.feedback)
    with live.reading() as report:
        counts = report.counts
        assert report.note is None
    assert counts["dead_letters"]["impression"] == {"too_old": 100, "in_the_future": 2}
    assert counts["impressions_read"] == ROWS
    settled = counts["settled"]["ctr"] + counts["pending"]["ctr"] + counts["not_applicable"]["ctr"]
    assert settled + counts["duplicates_dropped"] + 102 == ROWS
    lake = LakeReader(live.run_dir.lake, live.config.rows).read().table
    assert lake.num_rows > before.rows
    mended = set(lake["impression_id"].to_pylist()) & {row["impression_id"] for row in second[100:]}
    clicked = {row["impression_id"] for row in live.feedback if row["task"] == "ctr"}
    positive = lake.filter(pc.equal(lake["label_ctr"], 1))["impression_id"].to_pylist()
    assert mended & clicked & set(positive)

    with pytest.raises(SystemExit, match="2"):
        main(main_)
    assert "not in the future: nothing is to be mended" in capsys.readouterr().err


def test_letters_that_a_crash_kept_from_their_topic_are_there_after_event_time_was_set_back(
    broker, tmp_path, monkeypatch
):
    live = Live(broker.bootstrap_servers, tmp_path, settlement__max_future_skew_s=1e12)
    second = moved(live)
    with live.reading():
        pass
    live.send(second[:100], [])
    with monkeypatch.context() as crash:
        crash.setattr(
            "streaming.delivery.outbox.letters_to_json", lambda letters, most: crashed() if len(letters) else []
        )
        with pytest.raises(RuntimeError, match="crash"), live.reading():
            pass
    letters = live.run_dir.side_tables / DEAD_LETTERS
    assert DeltaTable(letters).to_pyarrow_table()["reason"].to_pylist().count("too_old") == 100
    topic = live.config.kafka.dead_letters.topic
    assert not messages_of(live.servers, topic)

    with monkeypatch.context() as away:
        away.setattr("pipelines.cli.tools.event_time.reached", lambda kafka, run_dir: unreachable(kafka))
        before = LakeReader(live.run_dir.lake, live.config.rows).state
        with pytest.raises(SystemExit, match="1"):
            main(["mend", "watermark", "--run-dir", str(tmp_path), "--yes"])
        assert LakeReader(live.run_dir.lake, live.config.rows).state == before

    with pytest.raises(SystemExit, match="0"):
        main(["mend", "watermark", "--run-dir", str(tmp_path), "--yes"])
    with live.reading():
        pass
    reasons = [json.loads(message.value)["reason"] for message in messages_of(live.servers, topic)]
    assert reasons.count("too_old") == 100
    assert sorted(reasons) == sorted(DeltaTable(letters).to_pyarrow_table()["reason"].to_pylist())


def crashed(*_: Any) -> Any:
    raise RuntimeError("crash")


def unreachable(kafka: Kafka) -> Kafka:
    return kafka.model_copy(update={"bootstrap_servers": "127.0.0.1:1", "connect_timeout_s": 0.2})


def test_a_run_that_has_ended_has_no_event_time_to_set_back(broker, tmp_path, capsys):
    live = Live(broker.bootstrap_servers, tmp_path)
    live.send(live.shown, live.feedback)
    kafka = live.config.kafka
    inputs = [Partition(topic.topic, p) for topic in (kafka.impressions, kafka.feedback) for p in range(2)]
    store_ends(live.run_dir.end_offsets, end_offsets(kafka, inputs))
    with live.reading(until_end=True):
        pass
    before = LakeReader(live.run_dir.lake, live.config.rows)
    assert before.rows > 0
    with pytest.raises(SystemExit, match="2"):
        main(["mend", "watermark", "--run-dir", str(tmp_path), "--to", "2024-01-02", "--yes"])
    assert "has ended" in capsys.readouterr().err
    assert LakeReader(live.run_dir.lake, live.config.rows).state == before.state


def test_the_plan_is_said_before_anything_is_set_back(broker, tmp_path, capsys, monkeypatch):
    live = Live(broker.bootstrap_servers, tmp_path, settlement__max_future_skew_s=1e12)
    moved(live)
    with live.reading():
        pass
    monkeypatch.setattr("pipelines.cli.tools.event_time.EventTime.set_back", crashed)
    with pytest.raises(RuntimeError, match="crash"):
        main(["mend", "watermark", "--run-dir", str(tmp_path), "--yes"])
    assert "event time goes back from" in capsys.readouterr().out

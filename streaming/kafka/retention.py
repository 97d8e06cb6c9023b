"""Checks that topics managed by others retain their messages as long as needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streaming.errors import BadInput
from streaming.kafka.settings import KafkaSettings
from streaming.kafka.topics import topic_config


def check_retention(
    settings: KafkaSettings, topics: Iterable[str], *, needed_s: float, max_future_skew_s: float | None = None
) -> list[str]:
    """List warnings about the topics.

    needed_s: the longest window, with its lateness, and the downtime that is to be survived. Raises BadInput, and
    BrokerAway when no broker answers.
    """
    warnings: list[str] = []
    for topic in topics:
        warnings += judge(topic, topic_config(settings, topic), needed_s, max_future_skew_s)
    return warnings


def judge(topic: str, config: Mapping[str, str], needed_s: float, max_future_skew_s: float | None) -> list[str]:
    """List the problems of a topic with these settings, under the broker's names.

    Raises BadInput where messages would be deleted before they are needed no longer.

    >>> kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    >>> judge("ads", kept, 90_000, None)
    []
    >>> judge("ads", kept | {"retention.ms": "3600000"}, 90_000, None)
    Traceback (most recent call last):
    streaming.errors.BadInput: topic `ads` keeps its messages for 3,600 s (retention.ms), and 90,000 s are needed: ...
    """
    if "compact" in config["cleanup.policy"]:
        raise BadInput(
            f"topic `{topic}` is compacted (cleanup.policy is {config['cleanup.policy']}): of messages with one key "
            "all but the last are deleted, read or not; set it to delete"
        )
    retention_ms = int(config["retention.ms"])
    if 0 <= retention_ms < needed_s * 1000:
        raise BadInput(
            f"topic `{topic}` keeps its messages for {retention_ms / 1000:,.0f} s (retention.ms), and {needed_s:,.0f} "
            "s are needed: the longest window, its lateness and kafka.downtime_s; raise retention.ms to "
            f"{round(needed_s * 1000)} or more, or lower kafka.downtime_s or the window"
        )
    warnings = []
    if int(config["retention.bytes"]) >= 0:
        warnings.append(
            f"topic `{topic}` keeps {int(config['retention.bytes']):,} bytes of each partition (retention.bytes), "
            f"which may be less than the {needed_s:,.0f} s that are needed; a gap will end the run; -1 sets no limit"
        )
    if max_future_skew_s is not None and config.get("message.timestamp.type", "CreateTime") == "CreateTime":
        ahead_s = int(config["message.timestamp.after.max.ms"]) / 1000
        if ahead_s > max_future_skew_s:
            warnings.append(
                f"topic `{topic}` believes its producers' clocks (message.timestamp.type is CreateTime), up to "
                f"{ahead_s:,.0f} s ahead: one that jumps takes its records' timestamps along, and "
                f"settlement.max_future_skew_s = {max_future_skew_s:g} cannot tell; set message.timestamp.after.max.ms "
                f"to {round(max_future_skew_s * 1000)}, or the type to LogAppendTime"
            )
    return warnings

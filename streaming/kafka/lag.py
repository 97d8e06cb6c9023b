"""Offsets committed to a consumer group, only for lag monitors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from streaming.kafka.client import (
    GroupAuthorizationFailedError,
    KafkaConsumer,
    OffsetAndMetadata,
    RetriableError,
    TopicPartition,
    connect,
)
from streaming.kafka.rights import Right
from streaming.kafka.settings import KafkaSettings
from streaming.position import Positions

log = logging.getLogger(__name__)


class LagDisplay:
    """Commits a group's offsets, best effort: failures are ignored. After a refusal, the next try is a minute later.

    It has a client of its own, so that a right that the group lacks cannot stop what is read.
    """

    AGAIN_AFTER_S = 60.0

    def __init__(self, settings: KafkaSettings, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._group, self._clock = settings, group, clock
        self._client: Any = None
        self._not_before = float("-inf")
        self._said: str | None = None

    def show(self, positions: Positions) -> None:
        """Send the positions without waiting."""
        if self._clock() < self._not_before:
            return
        try:
            if self._client is None:
                self._client = connect(self._settings, KafkaConsumer, group_id=self._group, enable_auto_commit=False)
            offsets = {TopicPartition(*p): OffsetAndMetadata(at.offset, "", -1) for p, at in positions.items()}
            self._client.commit_async(offsets).add_errback(self._failed)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Runs in the client's thread too."""
        if isinstance(error, RetriableError):
            return  # the next commit shows where we are then
        self._not_before = self._clock() + self.AGAIN_AFTER_S
        missing = isinstance(error, GroupAuthorizationFailedError)
        words = str(Right("Read", "group", {self._group}).missing(self._settings)) if missing else repr(error)
        if words != self._said:
            self._said = words
            log.warning("lag monitors see no position of group `%s`: %s", self._group, words)

    def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                self._client.close(autocommit=False, timeout_ms=2000)

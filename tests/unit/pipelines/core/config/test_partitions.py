"""Which streams may be settled partition by partition, and by how many processes."""

from __future__ import annotations

import pytest

from pipelines.core.config.text import override
from tests.support.pipelines.raw_configs import refusal, small

FOUR = {"kafka.impressions.partitions": 4, "kafka.feedback.partitions": 4}
BY = {"settlement.by": "partition"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"augmentation.workers": 2}, "set settlement.by to partition"),
        (BY | FOUR | {"kafka.feedback.partitions": 3}, "the topics have 4 and 3 partitions"),
        (BY | FOUR | {"augmentation.workers": 5}, "take at most 4"),
        (BY | FOUR | {"augmentation.ranks": 2}, "take ranks: 1"),
        (BY | {"settlement.partitioner": "crc32"}, "exfm"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_words(settings, words):
    raw = small()
    for path, value in settings.items():
        override(raw, f"{path}={value}")
    assert words in refusal(raw)

"""The generated stream as labelled batches, without topics or a lake: for benchmarks of models alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from exfm.features.dense import DenseFeature
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from streaming.sources.synthetic.stream import INTERESTS, GeneratedStream
from streaming.sources.synthetic.world_config import GeneratorConfig, Vertical

FEATURES = FeatureSet(
    sparse=[
        SparseFeature(name="user_id", rows=40_000),
        SparseFeature(name="ad_id", rows=4_000),
        SparseFeature(name="advertiser_id", rows=1_000),
        SparseFeature(name="category_id", rows=100),
        SparseFeature(name="vertical", rows=16),
        *(SparseFeature(name=name, rows=5, transform="index") for name in INTERESTS),
    ],
    dense=[DenseFeature(name="session_minutes", transform="log1p")],
)

STAYING: dict[str, Any] = {
    "verticals": (Vertical(name="feed", share=1.0, base_rate=0.15, drift=0.8),),
    "users": 500,
    "ads": 100,
    "user_stay": 100.0,
    "ad_stay": 100.0,
    "rotation": 1.5,
    "drift_period": 0.4,
    "taste": 2.0,
}
"""A world whose few users and ads stay, while what they like turns 1½ times: years of a stream in little."""


def labelled(rows: int, seed: int, batch_rows: int, world: dict[str, Any] | None = None) -> Iterator[pa.Table]:
    """Batches of a stream of `rows` impressions; `label_ctr` says whether each is ever clicked.

    `world`: settings of the generator; without, it is the demo's.
    """
    config = GeneratorConfig(
        seed=seed, impressions=rows, lost_rate=0.0, duplicate_rate=0.0, malformed_rate=0.0, **(world or {})
    )
    for chunk in GeneratedStream(config, {"ctr": 3600.0}).chunks(batch_rows):
        if chunk.truth is not None and chunk.truth.num_rows:
            clicked = chunk.truth["click_delay_ms"].is_valid().cast(pa.int8())
            yield pa.Table.from_batches([chunk.impressions]).append_column("label_ctr", clicked)

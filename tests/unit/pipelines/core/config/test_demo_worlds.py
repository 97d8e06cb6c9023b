"""The demo's worlds: how concentrated their traffic is, how rare clicks are, and what their teachers see."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.core.config.settings import Config, load
from streaming.sources.synthetic.stream import INTERESTS, generated_stream
from tests.support.places import CONFIGS


def _demo(name: str = "demo") -> Config:
    return load(CONFIGS / f"{name}.yaml")


@pytest.fixture(scope="module")
def ids() -> dict[str, np.ndarray]:
    """Users and ads of all impressions of the demo."""
    config = _demo()
    kept = [column for column in config.rows.columns if column.name in ("user_id", "ad_id")]
    stream = generated_stream(config.source, config.rows.model_copy(update={"columns": tuple(kept)}))
    chunks = [chunk.impressions for chunk in stream.chunks(config.source.chunk_rows)]
    return {c.name: np.concatenate([chunk[c.name].to_numpy() for chunk in chunks]) for c in kept}


def test_the_demo_meets_5000_effective_users_and_500_effective_ads(ids):
    for column, least, top in (("user_id", 5_000, 0.002), ("ad_id", 500, 0.02)):
        counts = np.unique(ids[column], return_counts=True)[1]
        share = counts / counts.sum()
        assert 1 / (share**2).sum() >= least
        assert share.max() < top


@pytest.mark.parametrize("name", ["demo", "demo_sequences"])
def test_clicks_are_as_rare_as_on_real_streams(name):
    assert all(0.01 <= _demo(name).source.click_rate(vertical) <= 0.05 for vertical in _demo(name).source.verticals)


@pytest.mark.parametrize("name", ["demo", "demo_sequences"])
def test_the_teacher_sees_nothing_that_no_real_teacher_would(name):
    seen = {column for feature in _demo(name).teacher_features.all for column in feature.reads}
    assert not seen & set(INTERESTS)
    assert not {column.name for column in _demo(name).rows.columns} & set(INTERESTS)


def test_the_privileged_demo_is_the_demo_but_for_its_tastes():
    demo, privileged = _demo().model_dump(mode="json"), _demo("demo_privileged").model_dump(mode="json")
    bounds = {"type": "int64", "nullable": False, "minimum": 0, "maximum": 4}
    own = privileged["rows"]["columns"][-len(INTERESTS) :]
    assert [{key: column[key] for key in ("name", *bounds)} for column in own] == [
        {"name": name, **bounds} for name in INTERESTS
    ]
    del privileged["rows"]["columns"][-len(INTERESTS) :], privileged["features"]["sparse"][-len(INTERESTS) :]
    del privileged["teacher"]["only"][-len(INTERESTS) :]
    assert privileged | {"name": "demo"} == demo

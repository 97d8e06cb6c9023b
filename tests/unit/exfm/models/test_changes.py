"""Which rows of its tables a student's batches have."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.models import changes
from exfm.models.changes import Touched
from tests.support.models.states import same

FEATURES = FeatureSet(sparse=(SparseFeature(name="ad", rows=50), SparseFeature(name="user", rows=90_000)))


def batch(seed: int) -> KeyedJaggedTensor:
    """Of 20 rows."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(feature.rows, (20,), generator=generator) for feature in FEATURES.sparse]
    return KeyedJaggedTensor(keys=["ad", "user"], values=torch.cat(ids), lengths=torch.ones(40, dtype=torch.int64))


def test_rows_are_the_same_however_often_batches_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, touched = Touched(FEATURES), Touched(FEATURES)
    for seed in range(30):
        expected.note(batch(seed))
    rows = expected.take()
    monkeypatch.setattr(changes, "MOST_IDS", 100)
    noted = []
    for seed in range(30):
        sparse = batch(seed)
        noted.append(weakref.ref(sparse))
        touched.note(sparse)
    del sparse
    gc.collect()
    assert sum(each() is not None for each in noted) < 3
    found = touched.take()
    assert same(found, rows)
    assert found.keys() == {"ad", "user"}
    assert not touched.take()

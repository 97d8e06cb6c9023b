"""Every kind of table is one class; each inherits the same questions. One of them is a test's own, in one file."""

from __future__ import annotations

import pytest
import torch

from exfm.embeddings.table import Table, tables_of
from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from tests.support.models.halves import Halves
from tests.support.models.table_contract import TableContract


class TestRows(TableContract):
    kind = Table


class TestHalves(TableContract):
    kind = Halves
    twice_the_rows = False


class Summed(Table):
    """Quotient and remainder of an id, each with rows of its own, summed (arXiv 1909.02107)."""

    REMAINDERS = 8

    @classmethod
    def of(cls, feature, width):
        return cls(feature.name, cls.REMAINDERS + -(-feature.rows // cls.REMAINDERS), width, (feature.name,), True)

    def read(self, ids_N):
        rows = [ids_N % self.REMAINDERS, self.REMAINDERS + ids_N // self.REMAINDERS]
        return torch.stack(rows, dim=1).unsqueeze(1)

    def grow(self, stored, initial):
        old = torch.arange(self.rows)
        quotients = stored.shape[0] - self.REMAINDERS
        old[self.REMAINDERS :] = self.REMAINDERS + (old[self.REMAINDERS :] - self.REMAINDERS) % quotients
        return stored[old]


class TestSummed(TableContract):
    kind = Summed


def test_a_kind_is_found_by_its_path_and_an_unknown_one_is_refused_with_the_choice():
    def table_of(kind: str) -> Table:
        return tables_of(FeatureSet(sparse=[SparseFeature(name="ad", rows=40, table=kind)]), 8)[0]

    assert table_of("tests.support.models.halves:Halves") == Halves("ad", 10, 4, ("ad",))
    with pytest.raises(ConfigError, match=r"unknown kind of table `plane` .* choose from plain"):
        table_of("plane")
    with pytest.raises(ConfigError, match="must be a subclass"):
        table_of("tests.support.models.halves:Tensor")

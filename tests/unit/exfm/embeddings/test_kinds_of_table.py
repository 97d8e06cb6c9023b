"""Every kind of table is one file; each inherits the same questions. One of them is a test's own."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
import torch

from exfm.embeddings.composed import Composed
from exfm.embeddings.kinds.registry import FULL, settings_of, tables_of
from exfm.embeddings.kinds.settings import EmbeddingSettings
from exfm.embeddings.table import Table, keys_of
from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from tests.support.models.kinds import KINDS
from tests.support.models.table_contract import TableContract


class TestFull(TableContract):
    kind: ClassVar = KINDS["full"]


class TestHash(TableContract):
    kind: ClassVar = KINDS["hash"]


class TestQuotientRemainder(TableContract):
    kind: ClassVar = KINDS["qr"]
    rows_of_an_id = 4.0


class TestPartitionsAdded(TableContract):
    kind: ClassVar = KINDS["qr added"]
    rows_of_an_id = 3.0


class TestSideBySide(TableContract):
    kind: ClassVar = KINDS["qr side by side"]


class TestNarrow(TableContract):
    kind: ClassVar = KINDS["mixed"]
    rows_of_an_id = 8.0


class TestChunks(TableContract):
    kind: ClassVar = {"kind": "fiited", "chunks": 2, "keep": 0.5, "every": 2}


class TestChunksThatAreAllKept(TableContract):
    kind: ClassVar = {"kind": "fiited", "chunks": 2, "keep": 1}


class TestManaged(TableContract):
    kind: ClassVar = {"kind": "managed", "rows": 30, "fallback_rows": 3}


class TestManagedFromTheSecondSightOn(TableContract):
    kind: ClassVar = {"kind": "managed", "rows": 30, "min_count": 2, "fallback": "zero"}


class Halves(EmbeddingSettings):
    """A kind of our own: an id is two halves, both of one table that has a quarter of the rows."""

    kind: Literal["tests.unit.exfm.embeddings.test_kinds_of_table:Halves"]

    def table(self, feature, width):
        rows, keys = max(2, feature.rows // 4), keys_of(feature)
        tables = [Table(f"{feature.name}~{n}", rows, width // 2, tuple(f"{k}~{n}" for k in keys)) for n in (0, 1)]
        return TwoHalves(feature.name, keys, width, tables)

    def linear_rows(self, feature):
        return feature.rows


class TwoHalves(Composed):
    def read(self, ids_N):
        return [ids_N % self.tables[0].rows, ((ids_N * 2654435761) >> 16) % self.tables[1].rows]

    def compose(self, parts, weights):
        return torch.cat(parts, dim=1)


class TestHalves(TableContract):
    kind: ClassVar = {"kind": f"{__name__}:Halves"}


AD = FeatureSet(sparse=[SparseFeature(name="ad", rows=40)])


def test_a_kind_is_found_by_its_path_and_an_unknown_one_is_refused_with_the_choice():
    with pytest.raises(ConfigError, match=r"unknown kind of table `plane` .* choose from full, hash, qr"):
        settings_of({"kind": "plane"})
    with pytest.raises(ConfigError, match="must be a subclass"):
        settings_of({"kind": f"{__name__}:TwoHalves"})
    with pytest.raises(ValueError, match="name its `kind`"):
        settings_of({"rows": 3})


def test_settings_of_a_table_that_there_is_not_are_refused():
    with pytest.raises(ConfigError, match=r"embeddings.user is no table of this model; its tables are ad"):
        tables_of(AD, 8, {"user": FULL})


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ({"kind": "full"}, 2**62, "a row for each"),
        ({"kind": "qr", "op": "concat", "partitions": 3}, 40, "multiple of 12"),
        ({"kind": "qr", "collisions": 3, "partitions": 3}, 40, "leave one of them out"),
        ({"kind": "mixed"}, 40, "give one of them"),
        ({"kind": "mixed", "width": 16}, 40, "at most 8"),
    ],
)
def test_a_kind_that_cannot_be_had_says_what_to_do(kind, rows, message):
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=rows)])
    with pytest.raises(ConfigError, match=message):
        tables_of(features, 8, {"ad": settings_of(kind)})

"""Every kind of table is one file; each inherits the same questions. One of them is a test's own."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import pyarrow as pa
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import Composed, tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.registry import FULL, check_tables, settings_of, tables_of
from exfm.embeddings.kinds.settings import EmbeddingSettings
from exfm.embeddings.table import Table, keys_of
from exfm.embeddings.weights import initial_rows
from exfm.errors import ConfigError
from exfm.features.batch import BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
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


class TestBlocks(TableContract):
    kind: ClassVar = KINDS["mixed in blocks"]
    rows_of_an_id = 8.0


class TestChunks(TableContract):
    kind: ClassVar = {"kind": "fiited", "chunks": 2, "keep": 0.5, "every": 2}


class TestChunksThatAreAllKept(TableContract):
    kind: ClassVar = {"kind": "fiited", "chunks": 2, "keep": 1}


class TestChunksOfOnePool(TableContract):
    """Tables that share one, apart from each other among the model's; one is a sequence's, one twice as wide."""

    kind: ClassVar = {"kind": "fiited", "chunks": 2, "keep": 0.5, "every": 2}

    @property
    def embeddings(self):
        return {name: settings_of(of) for name, of in self.all_kinds.items()}

    shared: ClassVar = {"kind": "fiited", "shares": "user"}
    all_kinds: ClassVar = {"user": kind, "ad": shared, "seen": shared}


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


@pytest.mark.parametrize("name", [*KINDS, "chunks that are all kept"])
def test_an_id_that_is_forgotten_reads_what_a_new_one_would(name):
    """Or the fallback's zeros, and others keep what they learned."""
    kind = KINDS.get(name, {"kind": "fiited", "chunks": 2, "keep": 1})

    def drawn():
        held = tables_held(
            tables_of(AD, 8, {"ad": settings_of(kind)}),
            lambda plain: FusedTables(plain, lr=0.1, eps=1e-8),
            lr=0.1,
            eps=1e-8,
        )
        held.draw(3)
        return held

    def looked_up(tables, ids):
        sparse = KeyedJaggedTensor(["ad"], torch.tensor(ids), lengths=torch.ones(len(ids), dtype=torch.int64))
        return tables.lookup(tables.send(OfIds(sparse)))

    fresh, tables = drawn(), drawn()
    for _ in range(4):
        tables.learn(looked_up(tables, [3, 5, 8]), torch.rand(3, 8, generator=torch.Generator().manual_seed(1)))
    learned = looked_up(tables, [3, 5]).pooled
    tables.forget("ad", torch.tensor([3]), 3)
    forgotten, other = looked_up(tables, [3, 5]).pooled
    assert not torch.equal(forgotten, learned[0])
    begin = [looked_up(fresh, [3]).pooled[0], torch.zeros(8)]
    begin += [initial_rows("ad", torch.tensor([6, 7]), 4, 3, 40**-0.5).flatten()] if kind["kind"] == "fiited" else []
    if kind["kind"] == "mixed":
        begin.append(fresh.tensors()["ad/weight"][3] @ tables.kinds[0].learned()["projection"][:4])
    assert any(torch.allclose(forgotten, start, atol=1e-6) for start in begin)
    if kind["kind"] in ("full", "fiited", "managed", "mixed"):
        assert torch.equal(other, learned[1])


@pytest.mark.parametrize("name", KINDS)
def test_odd_batches_are_learned_like_any_other(name):
    """None at first, more new ids than rows, one id in nine of ten rows, and the ends of the integers."""
    user = FeatureSet(sparse=[SparseFeature(name="ad", rows=40)])
    tables = tables_held(
        tables_of(user, 8, {"ad": settings_of(KINDS[name])}),
        lambda plain: FusedTables(plain, lr=0.1, eps=1e-8),
        lr=0.1,
        eps=1e-8,
    )
    tables.draw(0)
    build, ends = BatchBuilder(user, []), [-1, -(2**63), 2**63 - 1, 0]
    for ids in ([], list(range(500)), [*[7] * 900, *range(100)], [*ends, *ends]):
        batch = build(pa.table({"ad": pa.array(ids, pa.int64())}))
        lookup = tables.lookup(tables.send(batch))
        assert lookup.pooled.shape == (len(ids), 8)
        tables.learn(lookup, torch.ones(len(ids), 8))
        assert all(bool(torch.isfinite(own).all()) for own in tables.copies("/weight").values())
    after = tables.lookup(tables.send(batch)).pooled
    assert torch.equal(after[:4], after[4:])
    assert not torch.equal(after, lookup.pooled)


class OfIds(NamedTuple):
    sparse: KeyedJaggedTensor

    def once(self, what, make):
        return make()


@pytest.mark.parametrize("kind", [{"kind": "qr"}, {"kind": "mixed", "width": 4}, {"kind": "fiited"}])
def test_more_ids_than_a_table_can_have_rows_for_are_refused_before_memory_is_taken(kind):
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=2**62)])
    with pytest.raises(ConfigError, match=r"embeddings\.ad .*(at most|modulo)"):
        check_tables(features, 16, {"ad": settings_of(kind)})


def test_a_further_step_on_a_batch_counts_no_id_again():
    """Whatever is admitted at the second sight waits for the second batch."""
    table = settings_of({"kind": "managed", "rows": 8, "min_count": 2})
    cfg = StudentConfig(
        width=8,
        trunk=TrunkConfig(name="mlp", mlp=(8,)),
        embeddings={"ad": table},
        arm={"kind": "auxiliary_head", "extra_steps": 2},
    )
    student = Student(cfg, AD, ["ctr"], 0)
    rows = {
        "ad": [3, 5],
        "label_ctr": pa.array([1, 0], pa.int8()),
        "teacher_logit_ctr": pa.array([1, -1], pa.float32()),
    }
    batch = BatchBuilder(AD, ["ctr"])(pa.table(rows))
    admitted = []
    for _ in range(2):
        student.train_step(batch)
        admitted.append(student.net.tables.figures()["ad"]["admitted"])
    assert admitted == [0, 2]

"""What every kind of table is asked for, under everyone who holds tables. A subclass names its kind, and inherits the
questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.composed import Composed, physical, tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.registry import settings_of, tables_of
from exfm.embeddings.table import Table, Tables
from exfm.errors import ModelError
from exfm.features.batch import Batch, BatchBuilder
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.interactions.registry import TrunkConfig
from exfm.models.changes import Touched, changes_of
from exfm.models.growth.refit import MadeWith, fitted_student
from exfm.models.scorer import TeacherScorer, snapshot_of
from exfm.models.served import ServedStudent, check_parity, load_served, save_served
from exfm.models.student import Student
from exfm.models.student_config import StudentConfig
from exfm.models.teacher import Teacher
from exfm.models.teacher_config import TeacherConfig
from exfm.parallel.group import RankGroup
from exfm.parallel.layout import Sharding
from exfm.parallel.sharding import TableGroup, plan_sharding
from exfm.parallel.tables import ParallelTables, of_tables
from exfm.snapshots.changed import ChangedTensor
from exfm.snapshots.delta import ChangedRows, read_delta, write_delta
from tests.support.models.states import same

LR, EPS, WIDTH = 0.1, 1e-3, 8
STEPS = {"int8": 255, "int4": 15}
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is seen here"))
LEARNING = ["fused", "table_wise", "row_wise", "data_parallel", CUDA]
"""Our loops, and FBGEMM's kernels for pieces of each kind, on a CPU and on a GPU."""


class TableContract:
    """`kind`: the settings of a table of it."""

    kind: ClassVar[dict[str, Any]]
    rows_of_an_id = 1.0
    """Rows that are added up to an embedding, or by how much more a row's error may count in it."""

    @property
    def embeddings(self) -> dict[str, Any]:
        return {name: settings_of(self.kind) for name in ("user", "ad", "seen")}

    def features(self, rows: int = 40) -> FeatureSet:
        """Two tables of the kind, the second wider; a plain one; and a sequence's, whose places share a table."""
        return FeatureSet(
            sparse=[
                SparseFeature(name="user", rows=rows),
                SparseFeature(name="plain", rows=12, transform="index"),
                SparseFeature(name="ad", rows=2 * rows, width=2 * WIDTH),
            ],
            sequence=[SequenceFeature(name="seen", rows=20, length=3)],
        )

    def batch(self, seed: int, *, lists: bool = True, count: int = 50, rows: int = 40) -> Batch:
        random = np.random.default_rng(seed)

        def ids(most: int) -> list[list[int]]:
            return [random.integers(0, most, random.integers(0, 4) if lists else 1).tolist() for _ in range(count)]

        columns = {"user": ids(9999), "ad": ids(9999), "plain": ids(12), "seen": ids(99)}
        labels = pa.array(random.integers(0, 2, count).astype(np.int8))
        lists_of = {name: pa.array(values, pa.list_(pa.int64())) for name, values in columns.items()}
        return BatchBuilder(self.features(rows), ["ctr"])(pa.table(lists_of | {"label_ctr": labels}))

    @pytest.fixture
    def group(self, request: pytest.FixtureRequest) -> Iterator[RankGroup]:
        on_gpu = "cuda" in str(request.node.callspec.params.values())
        with RankGroup(device="cuda" if on_gpu else "cpu") as group:
            yield group

    def made(self, held_by: str, group: RankGroup, optimizer: str = "row_wise_adagrad", seed: int = 0) -> Tables:
        tables = tables_of(self.features(), WIDTH, self.embeddings)
        if held_by == "fused":

            def hold(plain):
                return FusedTables(plain, lr=LR, eps=EPS, optimizer=optimizer)
        else:
            sharding = Sharding(types=("table_wise" if held_by == "cuda" else held_by,))
            plan = plan_sharding({"tables": TableGroup(tables, optimizer)}, group, sharding).plan["tables"]

            def hold(plain):
                own = of_tables(plan, plain)
                return ParallelTables(plain, own, group, sharding, optimizer=optimizer, lr=LR, eps=EPS)

        made = tables_held(tables, hold, lr=LR, eps=EPS, group=group)
        made.draw(seed)
        return made

    def embedded(self, tables: Tables, weights: dict[str, Tensor], sparse: KeyedJaggedTensor) -> Tensor:
        """(B, E), id by id, composed of the rows that the kind says an id reads; no row is zeros."""
        B, rows = sparse.stride(), []
        for table in getattr(tables, "whole", tables.tables):
            for key in table.keys:
                ids, lengths = sparse[key].values(), sparse[key].lengths()
                read = table.read(ids) if isinstance(table, Composed) else [ids]
                parts = []
                of_parts = [own for own in physical([table]) for _ in range(len(own.keys) // len(table.keys))]
                for own, at in zip(of_parts, read, strict=True):
                    there = (at >= 0).unsqueeze(1)
                    parts.append(torch.where(there, weights[own.name][at.clamp(min=0)], 0.0))
                of_ids = parts[0]
                if isinstance(table, Composed):
                    of_ids = table.compose(parts, {n: weights[f"{table.name}/{n}"] for n in table.learned()})
                bags = torch.arange(B).repeat_interleave(lengths)
                rows.append(torch.zeros(B, of_ids.shape[1]).index_add(0, bags, of_ids))
        return torch.cat(rows, 1)

    def weights(self, tables: Tables) -> dict[str, Tensor]:
        """What is learned, by the plain table's name, and `<table>/<name>` of what a kind learns beside rows."""
        found = {name.removesuffix("/weight"): w.cpu() for name, w in tables.copies("/weight").items()}
        plain = {table.name for table in tables.tables}
        beside = {f"{k.name}/{n}": w.clone() for k in getattr(tables, "kinds", []) for n, w in k.learned().items()}
        return {name: w for name, w in found.items() if name in plain} | beside

    def learn(self, tables: Tables, batch: Batch, gradient: Tensor) -> None:
        tables.learn(tables.lookup(tables.send(batch)), gradient)

    # looked up and learned

    @pytest.mark.parametrize("held_by", LEARNING)
    @pytest.mark.parametrize("lists", [False, True])
    def test_a_bag_is_the_sum_of_what_its_ids_read(self, held_by, lists, group):
        tables, batch = self.made(held_by, group), self.batch(1, lists=lists).to(group.device)
        pooled = tables.lookup(tables.send(batch)).pooled.detach().cpu()
        wanted = self.embedded(tables, self.weights(tables), self.batch(1, lists=lists).sparse)
        assert wanted.shape[1] == WIDTH * (1 + 1 + 2 + 3)
        torch.testing.assert_close(pooled, wanted)

    @pytest.mark.parametrize("held_by", LEARNING)
    @pytest.mark.parametrize("optimizer", ["row_wise_adagrad", "adagrad"])
    def test_rows_move_once_by_adagrad_on_the_sum_of_their_gradients(self, held_by, optimizer, group):
        if settings_of(self.kind).learns:
            pytest.skip("ids of this kind come and go: its own tests say which rows a step moves")
        tables = self.made(held_by, group, optimizer)
        weights = {name: w.clone().requires_grad_() for name, w in self.weights(tables).items()}
        for step in range(2):
            batch = self.batch(step)
            gradient = torch.randn(50, WIDTH * 7, generator=torch.Generator().manual_seed(step))
            self.embedded(tables, weights, batch.sparse).backward(gradient)
            tables.learn(tables.lookup(tables.send(batch.to(group.device))), gradient.to(group.device))
            m = {n: h.cpu() for n, h in tables.copies("/accumulator").items()}
            if step:
                continue
            with torch.no_grad():
                for name, w in weights.items():
                    assert w.grad is not None
                    rows = "/" not in name
                    squares = w.grad.square().mean(1) if rows and optimizer != "adagrad" else w.grad.square()
                    own = f"{name}/accumulator" if rows else f"{name}_accumulator"
                    torch.testing.assert_close((m if rows else tables.copies())[own], squares)
                    rate = LR / (squares.sqrt() + EPS)
                    w -= (rate.unsqueeze(1) if rate.dim() == 1 else rate) * w.grad
                    w.grad = None
            torch.testing.assert_close(self.weights(tables), {n: w.detach() for n, w in weights.items()})

    @pytest.mark.parametrize("held_by", LEARNING)
    def test_the_rows_that_are_touched_are_those_that_learned(self, held_by, group):
        tables, batch, ids = self.made(held_by, group), self.batch(3), Touched(self.features())
        tables.touched({})
        tables.learn(tables.lookup(tables.send(batch.to(group.device))), torch.ones(50, WIDTH * 7, device=group.device))
        ids.note(batch.sparse)
        touched = tables.touched(ids.take())
        for table in tables.tables:
            learned = tables.copies("/accumulator")[f"{table.name}/accumulator"].cpu().nonzero().flatten()
            assert set(learned.tolist()) <= set(touched.get(f"{table.name}/weight", learned[:0]).tolist())
            if not settings_of(self.kind).learns:
                assert torch.equal(touched[f"{table.name}/weight"], learned)

    @pytest.mark.parametrize("held_by", LEARNING)
    def test_going_on_from_copies_gives_the_same_bits_whoever_holds_them(self, held_by, group):
        straight, resumed, fused = (
            self.made(by, group, seed=s) for by, s in ((held_by, 0), (held_by, 7), ("fused", 8))
        )

        def learn(tables: Tables, step: int) -> None:
            device = torch.device("cpu") if tables is fused else group.device
            lookup = tables.lookup(tables.send(self.batch(step).to(device)))
            tables.learn(lookup, torch.full((50, WIDTH * 7), 0.1 + step, device=device))

        learn(straight, 0)
        for other in (resumed, fused):
            other.load(straight.copies())
        straight.scale_accumulators(0.5)
        for other in (resumed, fused):
            other.scale_accumulators(0.5)
        for tables in (straight, resumed, fused):
            learn(tables, 1)
        assert same(straight.copies(), resumed.copies())
        torch.testing.assert_close(straight.copies(), fused.copies())

    def test_a_state_of_other_names_or_shapes_is_refused(self):
        with RankGroup() as group:
            tables = self.made("fused", group)
        other = FusedTables([Table(t.name, t.rows + 4, t.width, t.keys) for t in tables.tables], lr=LR, eps=EPS)
        with pytest.raises(ModelError, match="do not fit"):
            tables.load(other.copies())

    # served

    @pytest.mark.parametrize("held_by", LEARNING)
    @pytest.mark.parametrize("lists", [False, True])
    def test_what_is_exported_is_looked_up_alike_and_in_fewer_bits_to_half_a_step(self, held_by, lists, group):
        tables, batch = self.made(held_by, group), self.batch(4, lists=lists)
        self.learn(tables, self.batch(5).to(group.device), torch.ones(50, WIDTH * 7, device=group.device))
        exact = self.embedded(tables, self.weights(tables), batch.sparse)
        served = tables.export()
        assert served.codec == "fp32"
        torch.testing.assert_close(served.lookup(served.send(batch)).pooled, exact)
        weights = {name: w for name, w in self.weights(tables).items() if "/" not in name}
        assert served.nbytes == sum(w.nbytes for w in tables.copies("/weight").values())
        widest = max((w.amax(1) - w.amin(1)).max().item() for w in weights.values())
        for codec, steps in STEPS.items():
            smaller = tables.export(codec)
            off = (smaller.lookup(smaller.send(batch)).pooled - exact).abs().max()
            assert 0 < off <= 3 * self.rows_of_an_id * widest * (0.5 / steps + 2**-10)
            assert smaller.nbytes < served.nbytes
            with pytest.raises(TypeError, match="looked up only"):
                smaller.learn(smaller.lookup(smaller.send(batch)), exact)

    # in models

    def student(self, rows: int = 40) -> Student:
        cfg = StudentConfig(trunk=TrunkConfig(mlp=(8,)), width=WIDTH, embeddings=self.embeddings).without_teacher()
        return Student(cfg, self.features(rows), ["ctr"], 3)

    def test_it_learns_in_a_student_is_followed_by_deltas_and_served(self, tmp_path):
        student = self.student()
        touched = Touched(student.features)
        served = student.export()
        for step in range(3):
            before = self.weights(student.net.tables)
            student.train_step(batch := self.batch(step))
            touched.note(batch.sparse)
            after = self.weights(student.net.tables)
            assert any(not torch.equal(before[name], after[name]) for name in before if name.startswith("user"))
            write_delta(tmp_path / "delta", changes_of(student, touched), {})
            following, now = served.state_dict(), student.export()
            read_delta(tmp_path / "delta").delta.apply(following)
            tables = {name: t for name, t in now.state_dict().items() if name.startswith("tables.")}
            assert same({name: following[name] for name in tables}, tables)
            assert check_parity(student, now, self.batch(9)) <= 1e-6
        stored = load_served(save_served(student.export(), tmp_path, "v1"))
        assert np.array_equal(stored.score(self.batch(9)), student.export().score(self.batch(9)))
        smaller: ServedStudent = stored.quantised_as("int8")
        looked_up = [of.tables(self.batch(9).sparse) for of in (smaller, stored)]
        assert 0 < (looked_up[0] - looked_up[1]).abs().max() < 0.2
        again = self.student()
        again.load_state(student.state())
        for one in (student, again):
            one.train_step(self.batch(5))
        assert same(student.state(), again.state())

    def test_ids_of_a_table_that_grew_find_what_they_had_or_growing_is_refused(self):
        student, cfg = self.student(), self.student().cfg
        student.train_step(self.batch(0))
        was, now = (MadeWith.of(cfg, self.features(rows), ["ctr"], 3) for rows in (40, 80))
        larger = self.student(80)
        if not settings_of(self.kind).grows:
            with pytest.raises(ModelError):
                larger.load_state(fitted_student(student.state(), was, now))
            return
        larger.load_state(fitted_student(student.state(), was, now))
        np.testing.assert_allclose(larger.score(self.batch(1, rows=80)), student.score(self.batch(1)), atol=1e-6)

    def test_it_learns_in_a_teacher_that_scores_alike_as_a_replica_and_on_ranks(self):
        settings = {"embeddings": self.embeddings}
        cfg = TeacherConfig(width=WIDTH, num_fmb=3, num_lcb=2, rank=2, mlp=(8,), head=(8,), **settings)
        with RankGroup() as group:
            teacher = Teacher(cfg, self.features(), ["ctr"], 0, group=group)
            for step in range(3):
                assert teacher.train_step(self.batch(step)).finite
            began = Teacher(cfg, self.features(), ["ctr"], 0, group=group).state()
            state = teacher.state()
            names = [name for name in state if name.startswith("table/user") and name.endswith("/weight")]
            assert any(not torch.equal(began[name], state[name]) for name in names)
            for sharded in ({}, {"group": group, "sharding": Sharding(types=("row_wise",))}):
                scorer = TeacherScorer(cfg, self.features(), ["ctr"], **sharded)
                scorer.load(snapshot_of(teacher.state()))
                since = teacher.tick()
                teacher.train_step(self.batch(7))
                now, changes = snapshot_of(teacher.state()), teacher.changes(since)
                rows = {n: of for n, of in changes.items() if isinstance(of, ChangedRows) and n in now}
                scorer.load(now, {n: ChangedTensor(now[n], of.at, of.values) for n, of in rows.items()})
                np.testing.assert_allclose(scorer.score(self.batch(9)), teacher.score(self.batch(9)), atol=1e-6)

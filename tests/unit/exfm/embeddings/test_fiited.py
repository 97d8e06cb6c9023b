"""Chunks that are pruned and regrown, against a model of them in plain Python; nothing pruned is the full table."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from exfm.embeddings.adagrad import SparseOptimizer
from exfm.embeddings.composed import Seen, TableRanks, tables_held
from exfm.embeddings.fused import FusedTables
from exfm.embeddings.kinds.fiited import (
    UNSEEN,
    ChunkPool,
    Fiited,
    FiitedTable,
    bytes_of,
    decoded,
    encoded,
)
from exfm.embeddings.kinds.registry import KINDS, tables_of
from exfm.embeddings.table import Table, Tables
from exfm.embeddings.weights import initial_rows
from exfm.errors import ConfigError
from exfm.features.features import FeatureSet
from exfm.features.sparse import SequenceFeature, SparseFeature
from exfm.models.teacher_config import TeacherConfig
from tests.support.models.states import same

LR, EPS = 0.1, 1e-3
C, WIDTH, IDS = 2, 8, 60
W = WIDTH // C


class Events:
    """Ids of a batch, as tables look them up."""

    def __init__(self, **bags: Sequence[Sequence[int]]) -> None:
        ids = [i for of_key in bags.values() for bag in of_key for i in bag]
        lengths = [len(bag) for of_key in bags.values() for bag in of_key]
        self.bags = bags
        self.sparse = KeyedJaggedTensor(
            list(bags), torch.tensor(ids, dtype=torch.int64), lengths=torch.tensor(lengths, dtype=torch.int64)
        )

    def once(self, what: Any, make: Callable[[], Any]) -> Any:
        return make()


def settings(**more: Any) -> Fiited:
    return Fiited(kind="fiited", **({"chunks": C, "keep": 0.3, "every": 7} | more))


def chunks_of(table: FiitedTable) -> int:
    """Chunks that have rows."""
    return int((table.address >= 0).sum())


def kind_of(name: str = "ad", keys: tuple[str, ...] = ("ad",), ids: int = IDS, width: int = WIDTH, **more: Any):
    own = settings(**more)
    virtual = own.rows or ids
    pool = ChunkPool(name, width // own.chunks, own, [(virtual, own.chunks)])
    return FiitedTable(name, keys, width, own, virtual, pool)


def held(
    *tables: Any, seed: int = 0, optimizer: SparseOptimizer = "row_wise_adagrad", group: TableRanks | None = None
) -> Tables:
    def hold(plain: Sequence[Table]) -> Tables:
        return FusedTables(plain, lr=LR, eps=EPS, optimizer=optimizer)

    made = tables_held(tables, hold, lr=LR, eps=EPS, group=group)
    made.draw(seed)
    return made


def step(tables: Tables, events: Any, gradient: Tensor) -> Tensor:
    lookup = tables.lookup(tables.send(events))
    tables.learn(lookup, gradient.clone())
    return lookup.pooled


def skewed(random: np.random.Generator, step: int, B: int = 6, most: int = 3) -> list[list[int]]:
    """Bags of ids, low ones often; which are often moves with time."""
    return [
        [(int(i) + step // 50) % IDS for i in np.minimum(random.geometric(0.05, random.integers(0, most + 1)) - 1, 59)]
        for _ in range(B)
    ]


def rng() -> np.random.Generator:
    return np.random.default_rng(8)


class Oracle:
    """A dictionary of chunks; each is a row of numbers of its own."""

    def __init__(self, seed: int, cfg: Fiited, rows: int, headroom: int) -> None:
        self.seed, self.cfg, self.P, self.H = seed, cfg, rows, headroom
        self.codes: dict[tuple[int, int], int] = {}
        self.judged: set[int] = set()
        self.weights: dict[tuple[int, int], np.ndarray] = {}
        self.m: dict[tuple[int, int], float] = {}
        self.steps = 0

    def embedded(self, bags: list[list[int]]) -> np.ndarray:
        zero = np.zeros(W)
        return np.array(
            [
                np.concatenate([sum((self.weights.get((i, c), zero) for i in bag), zero) for c in range(C)])
                for bag in bags
            ]
        )

    def begin(self, i: int, c: int) -> None:
        value = initial_rows("ad", torch.tensor([i * C + c]), W, self.seed, IDS**-0.5)[0]
        self.weights[i, c], self.m[i, c] = value.double().numpy(), 0.0

    def prune(self) -> None:
        waiting = {i for i, c in self.codes if self.codes[i, c]}
        self.judged |= waiting
        most = self.P - min(self.H, (IDS - len(self.judged)) * C)
        ranked = sorted((-self.codes.get((i, c), 0), i, c) for i in self.judged for c in range(C))
        wanted = {(i, c) for _, i, c in ranked[:most]}
        for lost in set(self.weights) - wanted:
            del self.weights[lost], self.m[lost]
        for gained in wanted - set(self.weights):
            self.begin(*gained)
        less = round(-512 * math.log2(self.cfg.decay))
        self.codes = {element: max(0, code - less) for element, code in self.codes.items()}

    def learn(self, bags: list[list[int]], gradient: np.ndarray) -> None:
        if self.steps and self.steps % self.cfg.every == 0:
            self.prune()
        parts = gradient.reshape(len(bags), C, W)
        gained: dict[tuple[int, int], float] = {}
        slopes: dict[tuple[int, int], np.ndarray] = {}
        for bag, of_bag in zip(bags, parts, strict=True):
            for i in bag:
                for c in range(C):
                    gained[i, c] = gained.get((i, c), 0) + math.sqrt((of_bag[c] ** 2).sum())
                    slopes[i, c] = slopes.get((i, c), 0) + of_bag[c]
        for element, norm in gained.items():
            code = self.codes.get(element, 0)
            utility = (2 ** (code / 512 - 32) if code else 0) + norm
            self.codes[element] = min(32767, max(1, round((math.log2(utility) + 32) * 512)))
        for i in sorted({i for bag in bags for i in bag} - self.judged):
            if len(self.weights) + C <= self.P:
                self.judged.add(i)
                for c in range(C):
                    self.begin(i, c)
        for element in slopes.keys() & self.weights.keys():
            self.m[element] += (slopes[element] ** 2).mean()
            self.weights[element] = self.weights[element] - LR * slopes[element] / (math.sqrt(self.m[element]) + EPS)
        self.steps += 1


@pytest.mark.parametrize(
    ("steps", "more"),
    [
        (2_200, {}),
        (300, {"headroom": 0.0, "decay": 0.5}),
        (300, {"keep": 0.7, "every": 3, "headroom": 0.3}),
        (300, {"keep": 1 / IDS}),
    ],
)
def test_over_thousands_of_steps_it_is_a_dictionary_of_chunks_that_come_and_go(steps, more):
    kind, random = kind_of(**more), np.random.default_rng(0)
    tables, oracle = held(kind, seed=5), Oracle(5, settings(**more), kind.pool.rows, kind.pool.headroom)
    changed_owner, owners, codes = 0, dict[int, int](), kind.utility
    for n in range(steps):
        bags = skewed(random, n)
        gradient = torch.from_numpy(random.normal(size=(6, WIDTH)).astype(np.float32) * 10.0 ** (n % 3 - 2))
        gradient[:, W:] *= 0.3
        pooled = step(tables, Events(ad=bags), gradient)
        np.testing.assert_allclose(pooled.numpy(), oracle.embedded(bags), atol=2e-5)
        oracle.learn(bags, gradient.double().numpy())
        address = kind.address.numpy().ravel()
        elements = np.flatnonzero(address >= 0)
        rows = address[elements]
        assert len(set(rows.tolist())) == len(rows) == chunks_of(kind) <= kind.pool.rows
        assert rows.max() < kind.pool.rows
        assert {(int(e) // C, int(e) % C) for e in elements} == set(oracle.weights)
        now = dict(zip(rows.tolist(), elements.tolist(), strict=True))
        changed_owner += sum(owners.get(row, element) != element for row, element in now.items())
        owners |= now
        wanted = np.zeros((IDS, C), np.int64)
        for (i, c), code in oracle.codes.items():
            wanted[i, c] = code
        assert np.array_equal(codes.numpy(), wanted)
        m = tables.tensors()["ad/accumulator"]
        for element, row in zip(elements.tolist(), rows.tolist(), strict=True):
            assert math.isclose(m[row], oracle.m[divmod(element, C)], rel_tol=1e-4, abs_tol=1e-9)
    assert changed_owner > 20


# killed and resumed, on ranks, served


def test_killed_at_any_step_and_resumed_it_goes_on_to_the_last_bit():
    random = np.random.default_rng(1)
    batches = [(Events(ad=skewed(random, 10 * n)), torch.randn(6, WIDTH)) for n in range(120)]
    straight = held(kind_of(), seed=3)
    for events, gradient in batches:
        step(straight, events, gradient)
    resumed = held(kind_of(), seed=3)
    killed_at = {*random.choice(120, 20, replace=False).tolist(), 7, 8, 49}
    for n, (events, gradient) in enumerate(batches):
        if n in killed_at:
            state, resumed = resumed.copies(), held(kind_of(), seed=100 + n)
            resumed.load(state)
        step(resumed, events, gradient)
    assert same(straight.copies(), resumed.copies())
    assert straight.copies()["ad/clock"].tolist()[0] == 120


class Threads:
    """Ranks that are threads of one process, and wait for each other at every collective."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._barrier, self._given = threading.Barrier(world_size), [torch.empty(0)] * world_size
        self._own = threading.local()

    def run(self, of_rank: Callable[[int], None]) -> None:
        def begin(rank: int) -> None:
            self._own.rank = rank
            of_rank(rank)

        threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def all_gather(self, values: Tensor) -> list[Tensor]:
        self._given[self._own.rank] = values
        self._barrier.wait(30)
        all_of_them = list(self._given)
        self._barrier.wait(30)
        return all_of_them

    def sum(self, values: Tensor) -> Tensor:
        return torch.stack(self.all_gather(values)).sum(0)


@pytest.mark.parametrize("rule", ["utility", "frequency", "random"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_comes_and_goes_does_not_depend_on_how_many_ranks_there_are(ranks, rule):
    random = np.random.default_rng(2)
    batches = [(skewed(random, 10 * n), torch.randn(6, WIDTH)) for n in range(60)]
    alone = kind_of(rule=rule)
    tables = held(alone, seed=4)
    for bags, gradient in batches:
        step(tables, Events(ad=bags), gradient)
    group, kinds = Threads(ranks), [kind_of(rule=rule) for _ in range(ranks)]

    def of_rank(rank: int) -> None:
        own = held(kinds[rank], seed=4, group=group)
        for n, (bags, gradient) in enumerate(batches):
            # the last rank has no rows in every third step; who has which rows changes
            most = ranks - 1 if n % 3 == 0 else ranks
            mine = [at for at in range(6) if (at + n) % most == rank]
            step(own, Events(ad=[bags[at] for at in mine]), gradient[mine])

    group.run(of_rank)
    for kind in kinds:
        assert same(alone.tensors(), kind.tensors())
    assert (alone.address == -1).any()


@pytest.fixture
def learned() -> tuple[FiitedTable, Tables]:
    """After prunings, looked up by two keys, beside a plain table."""
    kind = kind_of("ad", ("ad", "seen"))
    tables, random = held(kind, Table("plain", 5, 4, ("plain",)), seed=1), np.random.default_rng(3)
    for n in range(40):
        step(tables, three(random, n), torch.randn(6, 2 * WIDTH + 4))
    assert (kind.address == -1).any()
    return kind, tables


def three(random: np.random.Generator, n: int) -> Events:
    return Events(ad=skewed(random, n), seen=skewed(random, n, most=5), plain=[[n % 5]] * 6)


def test_two_keys_of_one_table_read_the_same_vectors_and_pruned_chunks_are_zeros(learned):
    kind, tables = learned
    every = [[i] for i in range(IDS)]
    events = Events(ad=every, seen=every, plain=[[]] * IDS)
    pooled = tables.lookup(tables.send(events)).pooled
    ad, seen = pooled[:, :WIDTH], pooled[:, WIDTH : 2 * WIDTH]
    assert torch.equal(ad, seen)
    assert torch.equal(ad.view(IDS, C, W).abs().sum(2) == 0, kind.address < 0)
    bags = Events(ad=[[1, 2, 2]], seen=[[]], plain=[[]])
    torch.testing.assert_close(tables.lookup(tables.send(bags)).pooled[0, :WIDTH], ad[1] + 2 * ad[2])
    assert not tables.lookup(tables.send(bags)).pooled[0, WIDTH:].any()


def test_it_is_served_as_it_was_exported_in_fewer_bits_to_half_a_step(learned):
    _, tables = learned
    events = three(np.random.default_rng(9), 0)
    exact, served = tables.lookup(tables.send(events)).pooled, tables.export()
    torch.testing.assert_close(served.lookup(served.send(events)).pooled, exact)
    assert {name.partition("/")[2] for name in served.tensors() if name.startswith("ad/")} == {
        "weight",
        next(name for name in served.tensors() if "address" in name).partition("/")[2],
    }
    w = tables.tensors()["ad/weight"]
    widest = float((w.amax(1) - w.amin(1)).max())
    for codec, steps in (("int8", 255), ("int4", 15)):
        smaller = tables.export(codec)
        off = (smaller.lookup(smaller.send(events)).pooled[:, : 2 * WIDTH] - exact[:, : 2 * WIDTH]).abs().max()
        assert 0 < off <= 5 * widest * (0.5 / steps + 2**-10)
    for n in range(8):  # what goes on learning does not move what is served
        step(tables, three(np.random.default_rng(n), n), torch.randn(6, 2 * WIDTH + 4))
    torch.testing.assert_close(served.lookup(served.send(events)).pooled, exact)
    with pytest.raises(TypeError, match="looked up only"):
        served.learn(served.lookup(served.send(events)), exact)


# nothing pruned


def full() -> Table:
    return Table("ad", IDS, WIDTH, ("ad",))


@pytest.mark.parametrize("chunks", [1, 2])
def test_with_every_chunk_kept_it_is_the_full_table_to_the_last_bit(chunks):
    kind, random = kind_of(keep=1, chunks=chunks), np.random.default_rng(4)
    pruned, whole = held(kind, seed=2, optimizer="adagrad"), held(full(), seed=2, optimizer="adagrad")
    assert not kind.learns
    for n in range(30):
        events, gradient = Events(ad=skewed(random, n)), torch.randn(6, WIDTH)
        assert torch.equal(step(pruned, events, gradient), step(whole, events, gradient))
    for name in ("ad/weight", "ad/accumulator"):
        assert torch.equal(pruned.tensors()[name].view(IDS, WIDTH), whole.tensors()[name])


# what is asked of it


def seen(ids: Sequence[int], counts: Sequence[int] | None = None, norms: Sequence[Sequence[float]] | None = None):
    of_each = [1.0] * C
    norms_UC = torch.tensor(norms if norms is not None else [of_each] * len(ids), dtype=torch.float64)
    return Seen(
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(counts if counts is not None else [1] * len(ids), dtype=torch.int64),
        lambda chunks: norms_UC.view(len(ids), chunks),
        None,
    )


def owners(kind: FiitedTable) -> set[tuple[int, int]]:
    return {(int(i), int(c)) for i, c in (kind.address >= 0).nonzero()}


def whole_ids(kind: FiitedTable) -> set[int]:
    return {i for i, _ in owners(kind)}


def test_utility_keeps_chunks_frequency_keeps_ids_and_a_coin_is_drawn_once():
    norms = [[3.0, 0.1], [0.2, 2.0], [1.0, 0.9]]
    kept = {}
    for rule in ("utility", "frequency", "random"):
        kind = kind_of(ids=3, keep=0.5, every=1, headroom=0, rule=rule, decay=0.5)
        kind.draw(11)
        for _ in range(3):
            kind.learn(seen([0, 1, 2], [1, 5, 2], norms))
        kept[rule], codes = owners(kind), kind.utility.clone()
        kind.learn(seen([0, 1, 2], [1, 5, 2], norms))
        assert torch.equal(codes, kind.utility) == (rule == "random")
    assert kept["utility"] == {(0, 0), (1, 1), (2, 0)}
    assert kept["frequency"] == {(1, 0), (1, 1), (2, 0)}
    ranked = sorted((-int(codes[i, c]), i, c) for i in range(3) for c in range(C))
    assert kept["random"] == {(i, c) for _, i, c in ranked[:3]}


def test_more_new_ids_than_rows_wait_for_the_pruning_and_the_lower_ids_go_first():
    kind = kind_of(ids=10, keep=0.4, every=3, headroom=0.25)
    assert (kind.pool.rows, kind.pool.headroom) == (8, 2)
    (begun,) = kind.learn(seen(range(10), norms=[[i + 1.0] * C for i in range(10)]))
    assert (begun.rows.tolist(), whole_ids(kind)) == (list(range(8)), {0, 1, 2, 3})
    assert int((kind.address == UNSEEN).sum()) == 6 * C
    kind.learn(seen([]))
    kind.learn(seen([]))
    (begun,) = kind.learn(seen([]))
    assert whole_ids(kind) == {6, 7, 8, 9}
    assert begun.rows.tolist() == list(range(8))
    assert not (kind.address == UNSEEN).any()


def test_a_new_id_has_all_its_chunks_until_the_next_pruning():
    kind = kind_of(ids=10, keep=0.5, every=2, headroom=0.2)
    kind.learn(seen([0, 1, 2, 3], norms=[[9.0, 9.0]] * 4))
    kind.learn(seen([8], norms=[[0.01, 0.01]]))
    assert whole_ids(kind) == {0, 1, 2, 3, 8}
    kind.learn(seen([9], norms=[[0.01, 0.01]]))
    assert whole_ids(kind) == {0, 1, 2, 3, 9}
    kind.learn(seen([]))
    kind.learn(seen([7]))
    assert whole_ids(kind) == {0, 1, 2, 3, 7}


def test_empty_batches_change_nothing_but_the_clock_and_the_first_may_be_one():
    kind = kind_of(every=2)
    tables = held(kind, seed=1)
    before = tables.copies()
    for _ in range(5):
        step(tables, Events(ad=[[], []]), torch.randn(2, WIDTH))
        step(tables, Events(ad=[]), torch.randn(0, WIDTH))
    after = tables.copies()
    assert (before.pop("ad/clock").tolist(), after.pop("ad/clock").tolist()) == ([0, 0, 0, 1], [10, 0, 0, 1])
    assert same(before, after)
    step(tables, Events(ad=[[3], []]), torch.randn(2, WIDTH))
    assert owners(kind) == {(3, 0), (3, 1)}


def test_an_id_of_nine_rows_in_ten_keeps_its_chunks_and_leaves_the_others_theirs():
    kind, random = kind_of(decay=1), np.random.default_rng(6)
    tables = held(kind, seed=1)
    for n in range(300):
        bags = [[17] if random.random() < 0.9 else [int(random.integers(0, IDS))] for _ in range(20)]
        step(tables, Events(ad=bags), torch.randn(20, WIDTH))
        assert n == 0 or (kind.address[17] >= 0).all()
    assert int(kind.utility[17].max()) < 32767
    assert chunks_of(kind) >= kind.pool.rows - kind.pool.headroom
    assert torch.isfinite(tables.tensors()["ad/weight"]).all()


def test_ids_are_taken_modulo_the_virtual_rows_up_to_the_largest_integer():
    kind = kind_of(ids=2**62, rows=10)
    (begun,) = kind.learn(seen([3, 13, 2**63 - 1], [1, 1, 1]))
    assert whole_ids(kind) == {3, (2**63 - 1) % 10}
    assert len(begun.rows) == 2 * C
    assert decoded(kind.utility.numpy())[3].tolist() == [2.0, 2.0]
    assert [at.tolist() for at in kind.read(torch.tensor([13]))] == [[int(r)] for r in kind.address[3]]


def test_a_row_that_begins_is_a_function_of_seed_table_id_and_chunk():
    kind, later = kind_of(), kind_of()
    for of in (kind, later):
        of.draw(5)
    later.learn(seen([1, 2, 3]))
    (first,), (second,) = kind.learn(seen([8])), later.learn(seen([8]))
    assert torch.equal(first.values, second.values)
    assert not torch.equal(first.rows, second.rows)
    other = kind_of("user")
    other.draw(5)
    assert not torch.equal(other.learn(seen([8]))[0].values, first.values)


def test_what_cannot_be_had_is_refused_with_what_can():
    ad = SparseFeature(name="ad", rows=1000)
    with pytest.raises(ConfigError, match=r"cuts 20 columns in 2 chunks, .* a multiple of 8 as width"):
        settings().table(ad, 20)
    with pytest.raises(ConfigError, match=r"leaves 1 rows for chunks, and one id has 4; .* at least 0.001"):
        settings(keep=0.0003, chunks=4).table(ad, 16)
    with pytest.raises(ConfigError, match=r"fit in 24,000 bytes of 1,000 ids, .* 24,116 bytes"):
        settings(budget_bytes=24_000, chunks=4).table(ad, 16)
    assert settings(budget_bytes=24_116, chunks=4, headroom=0).table(ad, 16).tables[0].rows == 4
    with pytest.raises(ValueError, match="keep"):
        settings(keep=0)
    assert KINDS["fiited"] is Fiited
    shared = settings().table(SequenceFeature(name="seen", rows=50, length=2), 8)
    assert shared.tables[0].keys == tuple(f"{key}~{c}" for key in shared.keys for c in range(C))


# one pool for several tables

ADS, USERS = 40, 20


def sharing(width: int = WIDTH, **more: Any) -> list[FiitedTable]:
    """Tables of two features that share a pool; another lies between them."""
    features = FeatureSet(sparse=[SparseFeature(name=name, rows=n) for name, n in (("ad", ADS), ("user", USERS))])
    kinds = {"ad": settings(**more), "user": Fiited(kind="fiited", shares="ad")}
    return tables_of(features, width, kinds)  # type: ignore[return-value]


def both(random: np.random.Generator, n: int, rows: int = 6) -> dict[str, list[list[int]]]:
    """Ids of both; which of the two is looked up more often moves with time."""
    often = 0.9 if n // 40 % 2 else 0.2

    def bags(ids: int, share: float) -> list[list[int]]:
        drawn = np.minimum(random.geometric(0.1, (rows, 3)) - 1, ids - 1)
        return [[int(i) for i in of if random.random() < share] for of in drawn]

    return {"ad": bags(ADS, often), "user": bags(USERS, 1.1 - often)}


def test_a_pool_of_two_tables_is_that_of_one_table_with_the_ids_of_both():
    """Which chunk has which row, and all utilities: ties between tables go by their order."""
    ad, user = sharing()
    whole = kind_of("both", ("ad", "user"))
    shared, one, random = held(ad, Table("plain", 5, 4, ("plain",)), user, seed=5), held(whole, seed=5), rng()
    moved = 0
    for n in range(400):
        bags, gradient = both(random, n), torch.randn(6, 2 * WIDTH)
        offset = {"ad": bags["ad"], "user": [[i + ADS for i in bag] for bag in bags["user"]]}
        before = int((ad.address >= 0).sum())
        between = torch.cat([gradient[:, :WIDTH], torch.randn(6, 4), gradient[:, WIDTH:]], dim=1)
        step(shared, Events(ad=bags["ad"], plain=[[n % 5]] * 6, user=bags["user"]), between)
        step(one, Events(**offset), gradient)
        assert torch.equal(torch.cat([ad.address, user.address]), whole.address)
        assert torch.equal(torch.cat([ad.utility, user.utility]), whole.utility)
        moved += abs(int((ad.address >= 0).sum()) - before)
    assert torch.equal(ad.pool.clock, whole.pool.clock)
    assert moved > 50
    rows = torch.cat([of.address[of.address >= 0] for of in (ad, user)])
    assert len(rows) == len(rows.unique()) == chunks_of(ad) + chunks_of(user) <= ad.pool.rows
    read = Events(ad=[[3]], plain=[[]], user=[[7]])
    pooled = shared.lookup(shared.send(read)).pooled[0]
    pool = torch.cat([shared.tensors()["ad/weight"], torch.zeros(1, W)])
    assert torch.equal(pooled[:WIDTH], pool[ad.address[3].clamp(min=-1).long()].flatten())
    assert torch.equal(pooled[WIDTH + 4 :], pool[user.address[7].clamp(min=-1).long()].flatten())


def test_a_hot_table_takes_what_a_cold_one_gives_up_within_the_same_bytes():
    ad, user = sharing(budget_bytes=2_000, every=5, decay=0.5)
    tables = held(ad, user, seed=1)
    nbytes = tables.nbytes
    for n in range(40):
        step(tables, Events(ad=[[n % ADS]] * 4, user=[[]] * 4), torch.randn(4, 2 * WIDTH))
    cold = (chunks_of(ad), chunks_of(user))
    for n in range(60):
        step(tables, Events(ad=[[]] * 4, user=[[n % USERS]] * 4), torch.randn(4, 2 * WIDTH))
    assert cold[1] == 0
    assert chunks_of(user) > cold[0] // 2
    assert chunks_of(ad) < cold[0] // 2
    assert 1_900 <= nbytes == tables.nbytes <= 2_000
    kept, mine = ad.utility.clone(), int(user.address[3, 0])
    tables.forget("user", torch.tensor([3]), 1)
    assert torch.equal(ad.utility, kept)
    assert not user.utility[3].any()
    begun = initial_rows("user", torch.tensor([3 * C]), W, 1, USERS**-0.5)[0]
    assert torch.equal(tables.tensors()["ad/weight"][mine], begun)
    of_pool = {"rows": ad.pool.rows, "taken": chunks_of(ad) + chunks_of(user)}
    assert tables.figures() == {"ad": of_pool, "user": of_pool}


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_pool_of_two_tables_does_not_depend_on_ranks_nor_on_where_it_was_killed(ranks):
    random, batches = rng(), []
    for n in range(90):
        batches.append((both(random, n), torch.randn(6, 2 * WIDTH)))
    alone = sharing()
    tables = held(*alone, seed=4)
    for bags, gradient in batches:
        step(tables, Events(**bags), gradient)
    group, kinds = Threads(ranks), [sharing() for _ in range(ranks)]
    killed_at = {*random.choice(90, 20, replace=False).tolist(), 7, 8, 49}
    resumed = held(*sharing(), seed=4)
    for n, (bags, gradient) in enumerate(batches):
        if n in killed_at:
            state, resumed = resumed.copies(), held(*sharing(), seed=100 + n)
            resumed.load(state)
        step(resumed, Events(**bags), gradient)
    assert same(tables.copies(), resumed.copies())

    def of_rank(rank: int) -> None:
        own = held(*kinds[rank], seed=4, group=group)
        for n, (bags, gradient) in enumerate(batches):
            mine = [at for at in range(6) if (at + n) % ranks == rank]
            step(own, Events(**{name: [of[at] for at in mine] for name, of in bags.items()}), gradient[mine])

    group.run(of_rank)
    for own in kinds:
        assert all(same(one.tensors(), other.tensors()) for one, other in zip(alone, own, strict=True))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"user": {"shares": "add"}}, r"`add`, which is no table of this model; its tables are ad, user"),
        ({"user": {"shares": "ad"}}, r"user shares rows of `ad`, whose table of kind `full` shares none"),
        ({"ad": {"shares": "user"}, "user": {"shares": "ad"}}, "has none for others"),
        ({"ad": {}, "user": {"shares": "ad", "keep": 0.5}}, "user shares the pool of `ad`, .* has `keep`"),
        ({"ad": {"budget_bytes": 800}, "user": {"shares": "ad"}}, "one id of each of 2 tables has 4; .* 836 bytes"),
    ],
)
def test_a_pool_that_cannot_be_shared_is_refused_with_what_can(kinds, message):
    features = FeatureSet(sparse=[SparseFeature(name=name, rows=n) for name, n in (("ad", ADS), ("user", USERS))])
    asked = {
        name: Fiited(kind="fiited", **({"chunks": C} if "shares" not in of else {}), **of) for name, of in kinds.items()
    }
    with pytest.raises(ConfigError, match=message):
        tables_of(features, WIDTH, asked)


def test_a_table_of_another_width_shares_chunks_of_the_same_width_or_is_refused():
    features = FeatureSet(sparse=[SparseFeature(name="ad", rows=40), SparseFeature(name="user", rows=20, width=16)])
    asked = {"ad": settings(), "user": Fiited(kind="fiited", shares="ad")}
    ad, user = tables_of(features, WIDTH, asked)
    assert (ad.chunks, user.chunks, ad.tables[0].width) == (2, 4, 4)
    with pytest.raises(ConfigError, match=r"user cuts 16 columns in chunks of 12, .* a multiple of 12"):
        tables_of(features, 24, asked)


def test_a_budget_that_counts_fewer_accumulators_than_the_teacher_has_is_refused():
    for kind in ({"kind": "fiited", "budget_bytes": 10_000}, {"kind": "mixed", "budget_bytes": 10_000}):
        with pytest.raises(ValueError, match=r"embeddings.ad.budget_bytes counts .*`keep` \(fiited\) or `width`"):
            TeacherConfig(sparse_optimizer="adagrad", embeddings={"ad": kind})
        assert TeacherConfig(embeddings={"ad": kind}).embeddings["ad"].kind == kind["kind"]


# bytes


@pytest.mark.parametrize(
    ("keep", "width", "percent"), [(4, 16, 35), (4, 64, 65), (4, 128, 70), (8, 16, 50), (8, 64, 78), (8, 128, 83)]
)
def test_bytes_saved_are_those_of_the_methods(keep, width, percent):
    V, chunks = 10_000, 4
    full, rows = V * (4 * width + 4), V * chunks // keep
    own = bytes_of([(V, chunks)], width // chunks, rows, 0)
    assert round(100 * (1 - own / full)) == percent
    assert bytes_of([(V, chunks)], width // chunks, rows, rows // 10) - own <= 0.01 * full


@pytest.mark.parametrize("more", [{}, {"keep": 1}, {"budget_bytes": 3_000}])
def test_bytes_are_those_of_the_tensors_and_a_budget_is_kept_and_used(more):
    kind = kind_of(ids=100, width=16, **more)
    of_tensors = held(kind).nbytes
    assert bytes_of([(100, kind.chunks)], 16 // kind.chunks, kind.pool.rows, len(kind.pool.free)) == of_tensors
    if "budget_bytes" in more:
        assert 2_900 <= of_tensors <= 3_000


def test_codes_of_utilities_keep_their_order_and_three_digits():
    utilities = np.geomspace(2**-31, 2**31, 1_000)
    codes = encoded(utilities)
    assert (np.diff(codes.astype(int)) > 0).all()
    np.testing.assert_allclose(decoded(codes), utilities, rtol=1e-3)
    assert encoded(decoded(codes)).tolist() == codes.tolist()
    assert decoded(encoded(np.zeros(2))).tolist() == [0, 0]
